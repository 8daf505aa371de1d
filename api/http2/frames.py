"""The words of HTTP/2: its frames (RFC 9113 §4.1, §6), as numbers and builders of what is sent; what the peer has done,
as the owner of the connection gets to hear it; and how a peer can be wrong (RFC 9113 §5.4)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

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
GOAWAY_WORDS = struct.Struct(">II")
"""How a GOAWAY begins: the last stream and the error."""


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


class ProtocolFault(Exception):
    """What the peer sends is wrong.

    Attributes:
        code: what it is told.
        debug: the debug text of a GOAWAY, plain English.
    """

    def __init__(self, code: ErrorCode, debug: str) -> None:
        super().__init__(code, debug)
        self.code = code
        self.debug = debug


class ConnectionFault(ProtocolFault):
    """The connection cannot go on: GOAWAY, then close."""


class StreamFault(ProtocolFault):
    """One stream cannot go on: RST_STREAM."""


class Farewell(Exception):
    """One side has left, and nothing is open any more: what else is sent is ignored."""


H = TypeVar("H")
"""What a request's header list means to the owner of the connection; immutable, since equal heads may be one object."""


@dataclass(slots=True)
class RequestReceived(Generic[H]):
    """A stream has been opened. With `end_stream`, the data is all that the request has; else there is none yet. It is
    not much, and need not be reported as consumed."""

    stream_id: int
    head: H
    end_stream: bool
    data: bytes = b""


@dataclass(slots=True)
class DataReceived:
    """The next data of a request or an answer, without padding; `Http2Endpoint.consumed` is to be told of it when it
    has been used up. Large DATA frames come in several pieces. A request's trailers, which are dropped, are an end
    without data. What has landed is a view of its place (`Http2Endpoint.land`)."""

    stream_id: int
    data: bytes | memoryview
    end_stream: bool


@dataclass(slots=True)
class HeadReceived(Generic[H]):
    """The headers of an answer, or its trailers. With `end_stream` nothing more comes about the stream."""

    stream_id: int
    head: H
    end_stream: bool


@dataclass(slots=True)
class AnswerReceived(Generic[H]):
    """A whole answer: headers, data, trailers. The data need not be reported as consumed."""

    stream_id: int
    head: H
    data: bytes
    trailers: H


@dataclass(slots=True)
class PeerLeaves:
    """The server takes no more requests."""

    code: ErrorCode
    debug: str


@dataclass(slots=True)
class StreamReset:
    """The stream is gone, by the peer's wish or because it broke the rules. Nothing more comes about it."""

    stream_id: int
    code: ErrorCode


@dataclass(slots=True)
class StreamDrained:
    """Everything queued for the stream has been let through by the peer's windows."""

    stream_id: int


@dataclass(slots=True)
class Terminated:
    """The connection is over, and so are all its streams. What `take_output` gives may still be sent."""

    code: ErrorCode
    debug: str


Http2Event = (
    RequestReceived[H]
    | HeadReceived[H]
    | AnswerReceived[H]
    | DataReceived
    | StreamReset
    | StreamDrained
    | PeerLeaves
    | Terminated
)


# ---- builders ----


def frame_head(nbytes: int, kind: int, flags: int) -> bytes:
    """The first five bytes of a frame with a payload of so many: all of its header but the stream."""
    return FRAME_HEADER.pack(nbytes << 8 | kind, flags, 0)[:5]


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A whole frame. `payload` is taken as it is: lengths and meanings are for the caller to get right."""
    return FRAME_HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join([SETTING.pack(*value) for value in values]))


SETTINGS_ACK = frame(SETTINGS, ACK, 0)


class AnswerBlocks:
    """The header blocks of whole answers, framed but for the stream.

    Args:
        headers, trailers: from `headers.encode_block`; each fits into a frame of any client.

    Attributes:
        headers_head, trailers_head: how the frames begin, up to the stream.
        nbytes: of both blocks.
    """

    __slots__ = ("headers", "headers_head", "nbytes", "trailers", "trailers_head")

    def __init__(self, headers: bytes, trailers: bytes) -> None:
        self.headers = headers
        self.trailers = trailers
        self.nbytes = len(headers) + len(trailers)
        self.headers_head = frame_head(len(headers), HEADERS, END_HEADERS)
        self.trailers_head = frame_head(len(trailers), HEADERS, END_HEADERS | END_STREAM)


class RequestBlock:
    """The header block of requests, framed but for the stream.

    Args:
        block: from `headers.encode_block`; fits into a frame of any server.

    Attributes:
        head: how the frame begins, up to the stream.
    """

    __slots__ = ("block", "head")

    def __init__(self, block: bytes) -> None:
        self.block = block
        self.head = frame_head(len(block), HEADERS, END_HEADERS)


def window_update(stream_id: int, increment: int) -> bytes:
    return _FRAME_AND_WORD.pack(4 << 8 | WINDOW_UPDATE, 0, stream_id, increment)


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return _FRAME_AND_WORD.pack(4 << 8 | RST_STREAM, 0, stream_id, code)


def ping(payload: bytes, *, ack: bool = False) -> bytes:
    return frame(PING, ACK if ack else 0, 0, payload)


def goaway(last_stream_id: int, code: ErrorCode, debug: str = "") -> bytes:
    text = debug.encode()
    return _GOAWAY.pack((8 + len(text)) << 8 | GOAWAY, 0, 0, last_stream_id, code) + text
