"""The shapes of HTTP/2's frames (RFC 9113 §4.1, §6): numbers, builders of what a server sends, small readers."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from .events import ErrorCode

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

ACK = 0x1
END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

HEADER_TABLE_SIZE = 0x1
ENABLE_PUSH = 0x2
MAX_CONCURRENT_STREAMS = 0x3
INITIAL_WINDOW_SIZE = 0x4
MAX_FRAME_SIZE = 0x5
MAX_HEADER_LIST_SIZE = 0x6

DEFAULT_WINDOW_BYTES = 65_535
DEFAULT_FRAME_BYTES = 16_384
DEFAULT_TABLE_BYTES = 4_096
MAX_WINDOW_BYTES = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1

FRAME_HEADER = struct.Struct(">IBI")
"""Nine bytes, as three numbers: ``length << 8 | type``, flags, and stream id (whose top bit is reserved)."""

FRAME_HEADER_BYTES = 9
WORD = struct.Struct(">I")
SETTING = struct.Struct(">HI")
"""An identifier and a value."""

_FRAME_AND_WORD = struct.Struct(">IBII")
_GOAWAY = struct.Struct(">IBIII")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A whole frame. `payload` is taken as it is: lengths and meanings are for the caller to get right."""
    return FRAME_HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join([SETTING.pack(*value) for value in values]))


SETTINGS_ACK = frame(SETTINGS, ACK, 0)


def window_update(stream_id: int, increment: int) -> bytes:
    return _FRAME_AND_WORD.pack(4 << 8 | WINDOW_UPDATE, 0, stream_id, increment)


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return _FRAME_AND_WORD.pack(4 << 8 | RST_STREAM, 0, stream_id, code)


def ping(payload: bytes, *, ack: bool = False) -> bytes:
    return frame(PING, ACK if ack else 0, 0, payload)


def goaway(last_stream_id: int, code: ErrorCode, debug: str = "") -> bytes:
    text = debug.encode()
    return _GOAWAY.pack((8 + len(text)) << 8 | GOAWAY, 0, 0, last_stream_id, code) + text
