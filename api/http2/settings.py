"""SETTINGS both ways (RFC 9113 §6.5): what this server announces, and what a client has asked for."""

from __future__ import annotations

from . import frames
from .errors import ConnectionFault, ErrorCode
from .limits import Http2Limits


def server_preface(limits: Http2Limits) -> bytes:
    """What a server says first: its SETTINGS, and a wider connection window if it has one."""
    announced = frames.settings(
        (
            (frames.MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams),
            (frames.INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
            (frames.MAX_FRAME_SIZE, limits.max_frame_bytes),
            (frames.MAX_HEADER_LIST_SIZE, limits.header_list_bytes),
        )
    )
    increment = limits.connection_window_bytes - frames.DEFAULT_WINDOW_BYTES
    return announced + (frames.window_update(0, increment) if increment else b"")


def check(payload: bytes) -> dict[int, int]:
    """The settings of a SETTINGS frame, the last value of each.

    Raises:
        ConnectionFault: a value is out of its range.
    """
    values: dict[int, int] = {}
    for name, value in frames.read_settings(payload):
        if name == frames.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}, expected 0 or 1")
        if name == frames.INITIAL_WINDOW_SIZE and value > frames.MAX_WINDOW_BYTES:
            raise ConnectionFault(
                ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}, expected at most 2147483647"
            )
        if name == frames.MAX_FRAME_SIZE and not frames.DEFAULT_FRAME_BYTES <= value < 1 << 24:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}, expected 16384 to 16777215"
            )
        values[name] = value
    return values
