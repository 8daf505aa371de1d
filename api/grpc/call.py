"""A call with one request message, answered by a function: no task, no coroutine, nothing but this object.

States: collecting the message, begun, over. A call is over when it has been answered, cancelled by its client, or out
of time; from then on `answer` and `fail` do nothing, so whoever took it over need not know.

A call that is over holds nothing and is held by nobody: what is left of it goes without the garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...engine.tensor import Buffer
from . import blocks
from .compression import IDENTITY
from .framing import PREFIX_BYTES, MessageReader, prefix

if TYPE_CHECKING:
    from .call_head import CallHead
    from .deadlines import Entry
    from .host import CallHost
    from .methods import Method

DEADLINE_EXCEEDED = "Deadline Exceeded"
UNPARSABLE = "Unable to parse request"
"""What gRPC's server says of a unary call without a complete message."""

_COPIED_BYTES = 4096


class UnaryCall:
    """One request message, and one answer at any later time on the event loop.

    Attributes:
        head: the request's headers.
        message: the request message, unpacked; empty until it has come.
        on_cancel: set by who takes the call over; called once if the client resets the call, vanishes, or its deadline
            passes.
    """

    __slots__ = ("_connection", "_deadline", "_reader", "begun", "head", "message", "method", "on_cancel", "stream_id")

    def __init__(self, connection: CallHost, stream_id: int, head: CallHead, method: Method) -> None:
        self._connection: CallHost | None = connection
        self._deadline: Entry | None = None
        self._reader: MessageReader | None = None
        self.begun = False
        self.stream_id = stream_id
        self.head = head
        self.method = method
        self.message: bytes | memoryview = b""
        self.on_cancel: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = "over" if self._connection is None else "begun" if self.begun else "collecting"
        return f"<UnaryCall {self.head.path}: {state}>"

    # ---- for who takes the call over ----

    def answer(self, parts: Sequence[Buffer]) -> None:
        """Answers OK with the message that the parts are when put together."""
        connection = self._connection
        if connection is None:
            return
        encoding = connection.response_encoding(self.method, self.head)
        if encoding == IDENTITY:
            size = 0
            for part in parts:
                size += len(part)
            self.answer_framed([prefix(size), *parts], IDENTITY)
        else:
            connection.pack(b"".join(parts), encoding, partial(self.answer_framed, encoding=encoding))

    def fail(self, status: Status, message: str) -> None:
        """Answers with an error."""
        connection = self._connection
        if connection is not None:
            self._end(connection)
            connection.core.send_headers(self.stream_id, blocks.trailers_only(status, message), True)
            connection.mark(0)

    # ---- for the connection ----

    @property
    def over(self) -> bool:
        """`answer` and `fail` do nothing any more."""
        return self._connection is None

    def answer_framed(self, parts: Sequence[Buffer], encoding: str) -> None:
        """Answers with a message that has its prefix; `encoding` is what the headers say."""
        connection = self._connection
        if connection is not None:
            self._end(connection)
            connection.core.respond(self.stream_id, blocks.HEADERS[encoding], parts, blocks.OK_TRAILERS)
            connection.mark(0)

    def set_deadline(self, deadline: Entry) -> None:
        self._deadline = deadline

    def receive(self, data: bytes, flow_bytes: int, end_stream: bool) -> None:
        """The next part of the message. What comes after it is dropped, as by gRPC's own server."""
        connection = self._connection
        assert connection is not None
        connection.core.consumed(self.stream_id, flow_bytes)
        if self.begun:
            return
        reader = self._reader
        if reader is None:
            size = len(data) - PREFIX_BYTES  # the way of nearly all messages: one piece, not packed
            if size >= 0 and not data[0] and int.from_bytes(data[1:5], "big") == size <= connection.max_message_bytes:
                self.begun = True
                self.message = data[PREFIX_BYTES:] if size <= _COPIED_BYTES else memoryview(data)[PREFIX_BYTES:]
                connection.begin(self)
                return
            reader = self._reader = MessageReader(connection.max_message_bytes)
        reader.feed(data)
        try:
            framed = reader.next()
        except GRPCError as error:
            self.fail(error.status, error.message or "")
            return
        if framed is None:
            if end_stream:
                self.request_ended()
            return
        self.begun = True
        self._reader = None
        self.message = framed.payload
        if framed.compressed:
            connection.unpack(self)
        else:
            connection.begin(self)

    def request_ended(self) -> None:
        """The client has said everything."""
        if not self.begun:
            self.fail(Status.INTERNAL, UNPARSABLE)

    def drained(self) -> None:
        """Nothing waits for that."""

    def cancel(self) -> None:
        """The client has reset the call, or is gone."""
        connection = self._connection
        if connection is not None:
            on_cancel = self.on_cancel
            self._end(connection)
            if on_cancel is not None:
                connection.dispatcher.cancel(on_cancel)

    def expire(self) -> None:
        """The deadline has passed."""
        connection = self._connection
        if connection is not None:
            on_cancel = self.on_cancel
            self.fail(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)
            if on_cancel is not None:
                connection.dispatcher.cancel(on_cancel)

    def hand_over(self) -> Entry | None:
        """The call is served otherwise from here on; gives its deadline."""
        self._connection = None
        deadline, self._deadline = self._deadline, None
        return deadline

    def _end(self, connection: CallHost) -> None:
        self._connection = None
        self._reader = None
        self.on_cancel = None
        connection.forget(self.stream_id, self._deadline)
        self._deadline = None
