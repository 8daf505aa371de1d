"""What a client has done, as the owner of the connection gets to hear it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import ErrorCode

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
    """The next data of a request, without padding. Large DATA frames come in several pieces.

    `flow_bytes` is what `Http2Server.consumed` is to be told when the data has been used up.
    """

    stream_id: int
    data: bytes
    end_stream: bool
    flow_bytes: int


@dataclass(slots=True)
class StreamEnded:
    """The request is complete; said only when its end came without data, in trailers (which are dropped)."""

    stream_id: int


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


Event = RequestReceived[H] | DataReceived | StreamEnded | StreamReset | StreamDrained | Terminated
