"""A call with one request message, answered by a function: no task, no coroutine, nothing but this object.

States: collecting the message, begun, over. A call is over when it has been answered, cancelled by its client, or out
of time; from then on `answer` and `fail` do nothing, so the handler need not know.

A call that is over holds nothing and is not referred to: what is left of it goes without the garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from grpclib.const import Status

from ...engine.tensor import Buffer
from . import blocks
from .arrival import UNPARSABLE, Arrival
from .compression import IDENTITY
from .framing import PREFIX_BYTES, prefix

if TYPE_CHECKING:
    from ...actors.lease import Lease
    from .call_head import CallHead
    from .deadlines import Entry
    from .host import CallHost
    from .methods import Method

DEADLINE_EXCEEDED = "Deadline Exceeded"

_COPIED_BYTES = 4096


class UnaryCall:
    """One request message, and one answer at any later time on the event loop.

    Attributes:
        head: the request's headers.
        message: the request message, unpacked; empty until it has come.
        on_cancel: set by who takes the call over; called once if the client resets the call, vanishes, or its deadline
            passes.
    """

    __slots__ = ("_arrival", "_connection", "_deadline", "begun", "head", "message", "method", "on_cancel", "stream_id")

    def __init__(self, connection: CallHost, stream_id: int, head: CallHead, method: Method) -> None:
        self._connection: CallHost | None = connection
        self._deadline: Entry | None = None
        self._arrival: Arrival | None = None
        self.begun = False
        self.stream_id = stream_id
        self.head = head
        self.method = method
        self.message: Buffer = b""
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
            connection.pack(parts, encoding, partial(self.answer_framed, encoding=encoding))

    def fail(self, status: Status, message: str) -> None:
        """Answers with an error."""
        connection = self._connection
        if connection is not None:
            if connection.stories:
                connection.tell_failed(self.stream_id, message)
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
        arrival = self._arrival
        if arrival is None:
            size = len(data) - PREFIX_BYTES  # the way of nearly all messages: one piece, not packed
            if self.begun:
                connection.core.consumed(self.stream_id, flow_bytes)
                return
            if size >= 0 and not data[0] and int.from_bytes(data[1:5], "big") == size <= self.method.max_message_bytes:
                connection.core.consumed(self.stream_id, flow_bytes)
                self.begun = True
                self.message = data[PREFIX_BYTES:] if size <= _COPIED_BYTES else memoryview(data)[PREFIX_BYTES:]
                connection.begin(self)
                return
            arrival = self._arrival = Arrival(self, connection)
        arrival.receive(data, flow_bytes, end_stream)

    def request_ended(self) -> None:
        """The client has said everything."""
        if self._arrival is not None:
            self._arrival.request_ended()
        elif not self.begun:
            self.fail(Status.INTERNAL, UNPARSABLE)

    def drained(self) -> None:
        """Nothing waits for that."""

    def cancel(self) -> None:
        """The client has reset the call, or is gone."""
        connection = self._connection
        if connection is not None:
            on_cancel = self.on_cancel
            if connection.stories:
                connection.tell_cancelled(self.stream_id)
            self._end(connection)
            if on_cancel is not None:
                connection.dispatcher.cancel(on_cancel)

    def expire(self) -> None:
        """The deadline has passed."""
        connection = self._connection
        if connection is not None:
            on_cancel = self.on_cancel
            if connection.stories:
                connection.tell_cancelled(self.stream_id)
            self.fail(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)
            if on_cancel is not None:
                connection.dispatcher.cancel(on_cancel)

    def hand_over(self) -> tuple[Entry | None, Lease | None]:
        """The call is served otherwise from here on; gives its deadline and its lease."""
        self._connection = None
        deadline, self._deadline = self._deadline, None
        lease = self.take_lease()
        self._arrival = None
        return deadline, lease

    @property
    def lease(self) -> Lease | None:
        """What the message holds of the server-wide budget; None if it came without a lease."""
        return None if self._arrival is None else self._arrival.lease

    def take_lease(self) -> Lease | None:
        """`lease`; the caller closes it."""
        return None if self._arrival is None else self._arrival.take_lease()

    def _end(self, connection: CallHost) -> None:
        self._connection = None
        self.on_cancel = None
        if self._arrival is not None:
            self._arrival.end()
            self._arrival = None
        connection.forget(self.stream_id, self._deadline)
        self._deadline = None
