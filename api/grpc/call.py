"""A call with one request message, answered by a function: no task, no coroutine, nothing but this object.

States: collecting the message, begun, over. A call is over when it has been answered, cancelled by its client, or out
of time; from then on `answer` and `fail` do nothing, so the handler need not know.

A call that is over holds nothing and is not referred to: what is left of it goes without the garbage collector.

A message that does not come in one piece, or comes packed, goes into an `Inbox` until it is complete:

Rule 1: What the message takes is taken of the server-wide budget before more of it is let come (*lease*): its announced
        size, then what it unpacks to, step by step.
Rule 2: A message that has room must come on (`deadlines.Patience`).
Rule 3: If there is no room, or it takes a thread to unpack the message, the call gets a task to wait in (streaming.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...engine.tensor import Buffer
from . import blocks
from .compression import IDENTITY, LARGE_BYTES
from .deadlines import TOO_SLOW, Entry
from .framing import PREFIX_BYTES, prefix
from .host import CallHost, Inbox, Method
from .wire import UNPARSABLE

if TYPE_CHECKING:
    from ...actors.budget import Lease
    from .call_head import CallHead

DEADLINE_EXCEEDED = "Deadline Exceeded"
_COPIED_BYTES = 4096


class UnaryCall:
    """One request message, and one answer at any later time on the event loop.

    Attributes:
        head: the request's headers.
        lease: what the message holds of the server-wide budget; None if it came without.
        message: the request message, unpacked; empty until it has come.
        deadline_entry: None if the call has no deadline, or is over.
        on_cancel: set by who takes the call over; called once if the client resets the call, vanishes, or its deadline
            passes.
    """

    __slots__ = (
        "_connection",
        "_inbox",
        "begun",
        "deadline_entry",
        "head",
        "lease",
        "message",
        "method",
        "on_cancel",
        "stream_id",
    )

    def __init__(self, connection: CallHost, stream_id: int, head: CallHead, method: Method) -> None:
        self._connection: CallHost | None = connection
        self._inbox: Inbox | None = None
        self.begun = False
        self.deadline_entry: Entry | None = None
        self.stream_id = stream_id
        self.head = head
        self.lease: Lease | None = None
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
        if self.method.compresses and (encoding := connection.response_encoding(self.head)) != IDENTITY:
            connection.pack(parts, encoding, partial(self._answer, encoding=encoding))
        else:
            self._answer([prefix(False, sum(map(len, parts))), *parts])

    def fail(self, status: Status, message: str) -> None:
        """Answers with an error."""
        connection = self._connection
        if connection is not None:
            if self.stream_id in connection.stories:
                connection.stories[self.stream_id].fail(message)
            self._end(connection)
            connection.core.send_headers(self.stream_id, blocks.trailers_only(status, message), True)
            connection.mark(0)

    # ---- for the connection ----

    @property
    def over(self) -> bool:
        """`answer` and `fail` do nothing any more."""
        return self._connection is None

    def _answer(self, framed: Sequence[Buffer], encoding: str = IDENTITY) -> None:
        """Answers with a message that has its prefix; `encoding` is what the headers say."""
        connection = self._connection
        if connection is not None:
            self._end(connection)
            connection.core.respond(self.stream_id, blocks.HEADERS[encoding], framed, blocks.OK_TRAILERS)
            connection.mark(0)

    def receive(self, data: bytes, flow_bytes: int, end_stream: bool) -> None:
        """The next part of the message. What comes after it is dropped, as by gRPC's own server."""
        connection = self._connection
        assert connection is not None
        if self.begun:
            connection.core.consumed(self.stream_id, flow_bytes)
            return
        inbox = self._inbox
        if inbox is None:
            size = len(data) - PREFIX_BYTES  # the way of nearly all messages: one piece, not packed
            if size >= 0 and not data[0] and int.from_bytes(data[1:5], "big") == size <= self.method.max_message_bytes:
                connection.core.consumed(self.stream_id, flow_bytes)
                self.begun = True
                self.message = data[PREFIX_BYTES:] if size <= _COPIED_BYTES else memoryview(data)[PREFIX_BYTES:]
                connection.begin(self)
                return
            inbox = self._inbox = Inbox(connection, self.stream_id, self.method.max_message_bytes)
        inbox.feed(data, flow_bytes, end_stream)
        try:
            self._collect(connection, inbox)
        except GRPCError as error:
            self.fail(error.status, error.message or "")

    def _collect(self, connection: CallHost, inbox: Inbox) -> None:
        """Goes on as far as what has come, and the room that there is, allow. Raises GRPCError."""
        framed = inbox.next()
        nbytes = inbox.reader.announced_bytes
        if framed is None and nbytes:
            if not inbox.need_lease().grow_nowait(nbytes):
                connection.serve_as_task(self)
                return
            inbox.collect(self._too_slow)
        if framed is None and inbox.lease is None and not inbox.ended:
            return  # what is too small for a lease is consumed as a whole: until then the connection counts it
        inbox.release(inbox.held_bytes)
        if framed is None:
            if inbox.ended:
                self.fail(Status.INTERNAL, UNPARSABLE)
            return
        self.message = framed.payload
        if framed.compressed:
            unpacking = inbox.unpacking(framed, self.head)
            if len(framed.payload) >= LARGE_BYTES or not unpacking.step_promptly():
                connection.serve_as_task(self, framed)
                return
            self.message = unpacking.message()
        self.begun = True
        self.lease = inbox.lease
        connection.begin(self)

    def _too_slow(self) -> None:
        self.fail(Status.DEADLINE_EXCEEDED, TOO_SLOW)

    def request_ended(self) -> None:
        """The client has said everything."""
        if not self.begun:
            self.fail(Status.INTERNAL, UNPARSABLE)

    def drained(self) -> None:
        """Nothing waits for that."""

    def cancel(self) -> None:
        """The client has reset the call, or is gone."""
        self._cut_off(expired=False)

    def expire(self) -> None:
        """The deadline has passed."""
        self._cut_off(expired=True)

    def _cut_off(self, *, expired: bool) -> None:
        """Ends the call without its handler, which is told."""
        connection = self._connection
        if connection is None:
            return
        on_cancel = self.on_cancel
        if self.stream_id in connection.stories:
            connection.stories[self.stream_id].cancel()
        if expired:
            self.fail(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)
        else:
            self._end(connection)
        if on_cancel is not None:
            connection.cancel_handler(on_cancel)

    def hand_over(self) -> tuple[Entry | None, Inbox | None]:
        """The call is served otherwise from here on; gives its deadline, and its message if that did not come in one
        piece."""
        self._connection = None
        inbox, self._inbox = self._inbox, None
        deadline, self.deadline_entry = self.deadline_entry, None
        return deadline, inbox

    def _end(self, connection: CallHost) -> None:
        self._connection = None
        self.on_cancel = None
        if self._inbox is not None:
            self._inbox.close()
            self._inbox = None
        if self.deadline_entry is None and not connection.stories:
            connection.calls.pop(self.stream_id, None)
        else:
            connection.forget(self.stream_id, self.deadline_entry)
            self.deadline_entry = None
