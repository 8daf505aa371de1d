"""HTTP/2's error codes, and the two ways in which what a client sends can be wrong (RFC 9113 §5.4)."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """RFC 9113 §7. A code that is not listed there is treated like INTERNAL_ERROR."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD

    @classmethod
    def of(cls, value: int) -> ErrorCode:
        """The code with that number; INTERNAL_ERROR for an unknown one (RFC 9113 §7)."""
        return cls(value) if value in _KNOWN else cls.INTERNAL_ERROR


_KNOWN = frozenset(ErrorCode)


class ConnectionFault(Exception):
    """The connection cannot go on: GOAWAY, then close.

    Attributes:
        code: what the GOAWAY says.
        debug: its debug text, plain English.
    """

    def __init__(self, code: ErrorCode, debug: str) -> None:
        super().__init__(code, debug)
        self.code = code
        self.debug = debug


class StreamFault(Exception):
    """One stream cannot go on: RST_STREAM with `code`."""

    def __init__(self, code: ErrorCode, debug: str) -> None:
        super().__init__(code, debug)
        self.code = code
        self.debug = debug


class Farewell(Exception):
    """The client has sent GOAWAY, and nothing is open any more: what else it has sent is ignored."""
