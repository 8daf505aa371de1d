"""A call with one request message, answered by a function: no task, no coroutine, nothing but this object.

States: collecting the message, begun, over. A call is over when it has been answered, cancelled by its client, or out
of time; from then on `answer` and `fail` do nothing, so the handler need not know.

A call that is over holds nothing and is not referred to: what is left of it goes without the garbage collector.

A message that does not come in one piece, or comes packed, is the business of an `Arrival` until it is complete and
unpacked:

Rule 1: What the message takes is taken of the server-wide budget before more of it is let come (*lease*): its announced
        size, then what it unpacks to, step by step.
Rule 2: While the lease waits for room, the client's window stays as it is; what it lets through is kept, and counted in
        the service's waiting room. It does not count against the connection's window, so that messages which have room
        go on.
Rule 3: A message that has room must come on (`deadlines.Patience`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...engine.tensor import Buffer
from . import blocks
from .compression import IDENTITY, LARGE_BYTES, Unpacking, unpack
from .deadlines import TOO_SLOW, Entry, Patience
from .framing import PREFIX_BYTES, MessageReader, prefix
from .wire import UNPARSABLE

if TYPE_CHECKING:
    from ...actors.budget import Lease
    from .call_head import CallHead
    from .host import CallHost

DEADLINE_EXCEEDED = "Deadline Exceeded"
_COPIED_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        path: ``/package.Service/Method``.
        function: grpclib's handler: takes a stream.
        client_streaming, server_streaming: whether either side may send any number of messages.
        request_type, reply_type: for the codec.
        begin: takes a `UnaryCall` over, or gives False: then `function` has to run; None if it always has to.
        max_message_bytes: the largest request message, as sent and unpacked.
        compresses: whether its responses may be packed.
    """

    path: str
    function: Callable[[Any], Awaitable[None]]
    client_streaming: bool
    server_streaming: bool
    request_type: Any
    reply_type: Any
    begin: Callable[[UnaryCall], bool] | None
    max_message_bytes: int
    compresses: bool


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
        "_arrival",
        "_connection",
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
        self._arrival: Arrival | None = None
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
        if connection.stories:
            connection.tell_cancelled(self.stream_id)
        if expired:
            self.fail(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)
        else:
            self._end(connection)
        if on_cancel is not None:
            connection.cancel_handler(on_cancel)

    def hand_over(self) -> tuple[Entry | None, Lease | None]:
        """The call is served otherwise from here on; gives its deadline and its lease."""
        self._connection = None
        self._arrival = None
        deadline, self.deadline_entry = self.deadline_entry, None
        return deadline, self.lease

    def _end(self, connection: CallHost) -> None:
        self._connection = None
        self.on_cancel = None
        if self._arrival is not None:
            self._arrival.end()
            self._arrival = None
        if self.deadline_entry is None and not connection.stories:
            connection.calls.pop(self.stream_id, None)
        else:
            connection.forget(self.stream_id, self.deadline_entry)
            self.deadline_entry = None


class Arrival:
    """What a `UnaryCall` delegates to."""

    __slots__ = ("_call", "_connection", "_ended", "_held_bytes", "_patience", "_reader", "_waiting")

    def __init__(self, call: UnaryCall, connection: CallHost) -> None:
        self._call = call
        self._connection = connection
        self._reader = MessageReader(call.method.max_message_bytes)
        self._held_bytes = 0
        self._ended = False
        self._patience: Patience | None = None
        self._waiting: trio.CancelScope | None = None  # of the task in which the call waits, for room or for a thread

    def __repr__(self) -> str:
        return f"<Arrival of {self._call!r}{', waiting' if self._waiting is not None else ''}>"

    def receive(self, data: bytes, flow_bytes: int, end_stream: bool) -> None:
        """See `UnaryCall.receive`."""
        if self._call.begun:
            self._connection.core.consumed(self._call.stream_id, flow_bytes)
            return
        self._reader.feed(data)
        self._held_bytes += flow_bytes
        self._ended = self._ended or end_stream
        if self._waiting is None:
            self._advance()

    def request_ended(self) -> None:
        """The client has said everything."""
        self._ended = True
        if self._waiting is None and not self._call.begun:
            self._call.fail(Status.INTERNAL, UNPARSABLE)

    def _advance(self) -> None:
        """Goes on as far as what has come, and the room that there is, allow."""
        call, connection, reader = self._call, self._connection, self._reader
        try:
            framed = reader.next()
        except GRPCError as error:
            call.fail(error.status, error.message or "")
            return
        if framed is None and reader.announced_bytes and not self._has_room(reader.announced_bytes):
            return
        if framed is None and call.lease is None and not self._ended:
            return  # what is too small for a lease is consumed as a whole: until then the connection counts it
        held, self._held_bytes = self._held_bytes, 0
        connection.core.consumed(call.stream_id, held)
        if framed is None:
            if self._ended:
                call.fail(Status.INTERNAL, UNPARSABLE)
            return
        self._stop_watching()
        if call.lease is not None:
            call.lease.arrived()
        call.begun = True
        call.message = framed.payload
        if framed.compressed:
            self._unpack()
        else:
            connection.begin(call)

    def _has_room(self, nbytes: int) -> bool:
        """Whether the message may come. If not, the call goes on when it may, or fails."""
        call, connection = self._call, self._connection
        lease = call.lease
        if lease is None:
            lease = call.lease = connection.lease()
        if lease.nbytes < nbytes and not lease.grow_nowait(nbytes):
            self._in_task(lease, partial(self._grow, lease, nbytes), self._advance)
            return False
        try:
            self._reader.collect()
        except MemoryError:
            call.fail(Status.RESOURCE_EXHAUSTED, f"no memory for a message of {nbytes} bytes")
            return False
        self._patience = connection.watch(self._reader, self._too_slow)
        lease.watch(self._patience.hurry)
        return True

    def _unpack(self) -> None:
        """The message is complete, and packed."""
        call, connection = self._call, self._connection
        try:
            limits = connection.unpack_limits(call.method.max_message_bytes)
            unpacking = Unpacking(call.message, call.head.encoding, limits)
            prompt = len(call.message) < LARGE_BYTES and unpacking.step_promptly()
        except GRPCError as error:
            call.fail(error.status, error.message or "")
            return
        if prompt:
            call.message = unpacking.message()
            connection.begin(call)
            return
        lease = call.lease = call.lease or connection.lease()
        self._in_task(lease, partial(self._unpack_rest, unpacking, lease), partial(connection.begin, call))

    # ---- what waits ----

    def _in_task(self, lease: Lease, work: Callable[[], Awaitable[None]], go_on: Callable[[], None]) -> None:
        """Has `work` done in a task, then calls `go_on`, if the call is not over by then."""
        self._waiting = trio.CancelScope()
        self._connection.start(self._run, self._waiting, lease, work, go_on)

    async def _run(
        self, scope: trio.CancelScope, lease: Lease, work: Callable[[], Awaitable[None]], go_on: Callable[[], None]
    ) -> None:
        call, connection = self._call, self._connection
        try:
            with scope:
                await work()
        except GRPCError as error:
            self._waiting = None
            call.fail(error.status, error.message or "")
        finally:
            self._waiting = None
            if call.over:
                lease.close()
        if not call.over:
            with connection.turn:
                go_on()
            connection.mark(0)

    async def _grow(self, lease: Lease, nbytes: int) -> None:
        with self._connection.waiting_for_room(self._call.stream_id):
            await lease.grow(nbytes)

    async def _unpack_rest(self, unpacking: Unpacking, lease: Lease) -> None:
        self._call.message = await unpack(unpacking, lease, self._connection.surroundings.offload)

    def _too_slow(self) -> None:
        self._call.fail(Status.DEADLINE_EXCEEDED, TOO_SLOW)

    def end(self) -> None:
        """The call is over."""
        self._stop_watching()
        if self._waiting is not None:
            self._waiting.cancel()  # only the task that grows a lease may close it then
        elif self._call.lease is not None and not self._call.lease.admitted:
            self._call.lease.close()

    def _stop_watching(self) -> None:
        if self._patience is not None:
            self._patience.stop()
            self._patience = None
