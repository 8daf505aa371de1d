"""What a client has done, as the owner of the connection gets to hear it, and how it can be wrong (RFC 9113 §5.4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar


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
    def _missing_(cls, value: object) -> ErrorCode:
        return cls.INTERNAL_ERROR


class Fault(Exception):
    """What a client sends is wrong.

    Attributes:
        code: what it is told.
        debug: the debug text of a GOAWAY, plain English.
    """

    def __init__(self, code: ErrorCode, debug: str) -> None:
        super().__init__(code, debug)
        self.code = code
        self.debug = debug


class ConnectionFault(Fault):
    """The connection cannot go on: GOAWAY, then close."""


class StreamFault(Fault):
    """One stream cannot go on: RST_STREAM."""


class Farewell(Exception):
    """The client has sent GOAWAY, and nothing is open any more: what else it has sent is ignored."""


H = TypeVar("H")
"""What a request's header list means to the owner of the connection; immutable, since equal heads may be one object."""


@dataclass(slots=True)
class RequestReceived(Generic[H]):
    """A stream has been opened. With `end_stream` the request has no data."""

    stream_id: int
    head: H
    end_stream: bool


@dataclass(slots=True)
class DataReceived:
    """The next data of a request, without padding; `Http2Server.consumed` is to be told of it when it has been used up.
    Large DATA frames come in several pieces. Trailers, which are dropped, are an end without data."""

    stream_id: int
    data: bytes
    end_stream: bool


@dataclass(slots=True)
class StreamReset:
    """The stream is gone, by the client's wish or because it broke the rules. Nothing more comes about it."""

    stream_id: int
    code: ErrorCode


@dataclass(slots=True)
class StreamDrained:
    """Everything queued for the stream has been let through by the client's windows."""

    stream_id: int


@dataclass(slots=True)
class Terminated:
    """The connection is over, and so are all its streams. What `take_output` gives may still be sent."""

    code: ErrorCode
    debug: str


Event = RequestReceived[H] | DataReceived | StreamReset | StreamDrained | Terminated
