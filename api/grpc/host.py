"""One gRPC connection as its calls see it; `call.GrpcConnection` opens them. The rest of it is any HTTP/2
connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from grpclib.const import Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError

from ...engine.errors import RefusalReason
from ..http2.connection import Call, Http2Connection, Http2Group
from ..sockets.limits import shared_address
from ..sockets.roster import Roster
from ..sockets.transport import PlainTransport, TlsTransport
from . import compression
from .call_head import CallHead, parse_head
from .call_log import CallStory
from .compression import Unpacking
from .deadlines import Deadlines, Entry, Patience
from .framing import Framed, MessageReader
from .options import GrpcDelays, GrpcServiceOptions, delay

if TYPE_CHECKING:
    from ...actors.budget import Lease
    from ...actors.offload import Offload
    from ...engine.access.callers import Caller
    from ..access import Identity


Guard = Callable[[CallHead], None]
"""Looks at every call when it begins; raises `GRPCError` to refuse it."""

ModelOf = Callable[[bytes], tuple[str, int] | None]


@dataclass(slots=True, eq=False)
class WaitingRoom:
    """What waits for room in the server-wide budget, and is in memory all the same.

    A connection cannot stop one call's data without stopping all others', except by the call's window. So what a client
    may send before its message has room is in memory, and no budget covers it. It is little for each call; here it is
    added up, for all connections of the service, and what would be too much is refused.
    """

    limit_bytes: int
    held_bytes: int = 0

    def enter(self, nbytes: int) -> None:
        """A call begins to wait, which may hold so many bytes; `leave` is the end of it.

        Raises:
            GRPCError: UNAVAILABLE, there are too many.
        """
        if self.held_bytes + nbytes > self.limit_bytes:
            raise GRPCError(
                Status.UNAVAILABLE,
                f"the server has too many requests in flight, and {self.held_bytes} bytes of requests wait for room; "
                "try again later",
            )
        self.held_bytes += nbytes

    def leave(self, nbytes: int) -> None:
        self.held_bytes -= nbytes


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        function: grpclib's handler: takes a stream.
        begin: takes a `UnaryCall` over, or gives False: then `function` has to run; None if it always has to.
        model_of: tells from the beginning of a request message which model and version it is for; None if it does not
            know. It is None itself if requests are for no model.
        max_message_bytes: the largest request message, as sent and unpacked.
        compresses: whether its responses may be packed.
    """

    path: str
    function: Callable[[Any], Awaitable[None]]
    client_streaming: bool
    server_streaming: bool
    request_type: Any
    reply_type: Any
    begin: Callable[[Any], bool] | None
    model_of: ModelOf | None
    max_message_bytes: int
    compresses: bool


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the connections of a service share.

    Attributes:
        methods: by their paths.
        find_model: waits for a model of which `is_cold` says that it is loaded on demand, not there, and for who asks.
        lease: makes what a message takes of the server-wide budget; `client` is the address that it comes from.
        waiting: for those that wait for it.
        offload: where messages are packed, unpacked and read, if they are large.
        knows: who makes a call, if that is known. Other calls get a task to find out in, before their message is let
            come. None if it does not matter.
    """

    group: Http2Group
    deadlines: Deadlines
    methods: Mapping[str, Method]
    guards: Sequence[Guard]
    options: GrpcServiceOptions
    delays: GrpcDelays
    codec: CodecBase
    lease: Callable[..., Lease]
    waiting: WaitingRoom
    offload: Offload
    knows: Callable[[Identity], Caller | None] | None = None
    is_cold: Callable[[Identity, str, int], bool] | None = None
    find_model: Callable[[str, int], Awaitable[object]] | None = None


_REFUSALS = {
    Status.DEADLINE_EXCEEDED: RefusalReason.TOO_SLOW,
    Status.INTERNAL: RefusalReason.INVALID,
    Status.RESOURCE_EXHAUSTED: RefusalReason.TOO_LARGE,
    Status.UNAVAILABLE: RefusalReason.BUDGET,
    Status.UNIMPLEMENTED: RefusalReason.INVALID,
}
"""What a `GRPCError` means for the call whose message was being received."""


class CallHost(Http2Connection[CallHead, Call]):
    """What a connection does for its calls.

    Attributes:
        address: of the client, as far as shares are concerned; empty if it has none.
        memory: see `Readiness`.
        stories: what verbose logs tell of calls, by their streams; empty if they do not.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        transport: PlainTransport | TlsTransport,
        roster: Roster,
        client: tuple[str, int] | None,
    ) -> None:
        super().__init__(
            surroundings.group, transport, roster, client, lambda fields: parse_head(fields, transport.certificate)
        )
        self.surroundings = surroundings
        self.memory = transport.memory
        self.address = shared_address(client[0]) if client else ""
        self.lease = partial(surroundings.lease, client=self.address)
        self.stories: dict[int, CallStory] = {}

    # ---- room for what arrives ----

    @contextmanager
    def waiting_for_room(self, stream_id: int) -> Iterator[None]:
        """While a call waits for room or for a thread, inside the block.

        Raises:
            GRPCError: UNAVAILABLE, too much waits already.
        """
        window_bytes = self._group.limits.stream_window_bytes
        waiting = self.surroundings.waiting
        waiting.enter(window_bytes)
        self.core.hold(stream_id, True)
        if self.core.has_output:  # the connection's window
            self.mark(1)
        try:
            yield
        finally:
            waiting.leave(window_bytes)
            self.core.hold(stream_id, False)

    def count_status(self, error: GRPCError) -> RefusalReason | None:
        """`count_refusal`, of a call without a message, or without room for it. Returns why it was refused."""
        refused = _REFUSALS.get(error.status)
        self.count_refusal(refused)
        return refused

    def response_encoding(self, head: CallHead) -> str:
        """What the responses of a method that compresses are packed with."""
        return compression.choose(self.surroundings.options.compression_level, head.accepted_encodings)

    # ---- the end of a call ----

    def forget(self, stream_id: int, deadline: Entry | None) -> None:
        self.calls.pop(stream_id, None)
        story = self.stories.pop(stream_id, None)
        if story is not None:
            story.end()
        if deadline is not None:
            self.surroundings.deadlines.remove(deadline)

    def cancel_task(self, scope: trio.CancelScope) -> None:
        """Cancels a call's task; when the delay for tests is over, if there is one."""
        delay_s = self.surroundings.delays.notification_s
        if delay_s and self._nursery is not None:
            self.start(self._cancel_after, delay_s, scope)
        else:
            scope.cancel()

    async def _cancel_after(self, delay_s: float, scope: trio.CancelScope) -> None:
        await delay(delay_s, "the notification of the cancellation")
        scope.cancel()


class Inbox:
    """What has come of a call's requests and was not taken, and what messages hold of the server-wide budget.

    Attributes:
        reader: has what has come.
        held_bytes: not reported as consumed.
        ended: the client has said everything.
        lease: of the message that is being collected, or was taken last; None if it needs none, or it was taken over.
    """

    __slots__ = ("_connection", "_model_of", "_patience", "_stream_id", "ended", "held_bytes", "lease", "reader")

    def __init__(self, connection: CallHost, stream_id: int, method: Method) -> None:
        self._connection = connection
        self._model_of = method.model_of
        self._patience: Patience | None = None
        self._stream_id = stream_id
        self.ended = False
        self.held_bytes = 0
        self.lease: Lease | None = None
        self.reader = MessageReader(method.max_message_bytes, connection.memory)

    def feed(self, data: bytes | memoryview, end_stream: bool) -> None:
        self.reader.feed(data)
        if self._patience is not None and type(data) is not memoryview:  # came before there was a place for it
            self._land()
        self.held_bytes += len(data)
        if end_stream:
            self.ended = True

    def next(self) -> Framed | None:
        """The next message as it was sent; None if it is not complete.

        Raises:
            GRPCError: what comes is no message, or a too large one.
        """
        framed = self.reader.next()
        if framed is not None:
            self._stop_watching()
            if self.lease is not None:
                self.lease.arrived()
        return framed

    def need_lease(self) -> Lease:
        """What the message that has begun holds of the budget; of its model's share, if it says by now which that is.
        So it waits as long as the model has its share in flight, while its client sends no more."""
        if self.lease is None:
            self.lease = self._connection.lease(*(self._model() or ()))
        return self.lease

    def cold_model(self, identity: Identity) -> tuple[str, int] | None:
        """Which model the message that has begun has to wait for, before it takes room; None if that is not known."""
        is_cold = self._connection.surroundings.is_cold
        model = None if is_cold is None or self.lease is not None else self._model()
        return model if model is not None and is_cold is not None and is_cold(identity, *model) else None

    def _model(self) -> tuple[str, int] | None:
        model_of = self._model_of if self.reader.announced_bytes else None
        return None if model_of is None else model_of(self.reader.beginning)

    def collect(self, give_up: Callable[[], None]) -> None:
        """There is room for the message that the reader has announced. `give_up` is called if it does not come on.

        Raises:
            GRPCError: RESOURCE_EXHAUSTED, there is no memory.
        """
        nbytes = self.reader.announced_bytes
        try:
            self.reader.collect()
        except MemoryError:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"no memory for a message of {nbytes} bytes") from None
        self._land()
        surroundings = self._connection.surroundings
        self._patience = Patience(surroundings.deadlines, surroundings.options.limits, self.reader, give_up)
        self.need_lease().watch(self._patience.hurry)

    def _land(self) -> None:
        """Have the rest of the message put where it belongs."""
        landing = self.reader.landing
        if landing is not None:
            self._connection.core.land(self._stream_id, landing)

    def unpacking(self, framed: Framed, head: CallHead) -> Unpacking:
        """Raises GRPCError: the client has named no compression."""
        max_ratio = self._connection.surroundings.options.max_compression_ratio
        return Unpacking(framed.payload, head.encoding, self.reader.limit_bytes, max_ratio)

    def release(self, count: int) -> None:
        """So many bytes are used up: the client may send more."""
        if count:
            self.held_bytes -= count
            core = self._connection.core
            core.consumed(self._stream_id, count)
            if core.has_output:
                self._connection.mark(1)

    def close_lease(self) -> None:
        if self.lease is not None:
            if not self.lease.admitted:
                self.lease.close()
            self.lease = None

    def close(self) -> None:
        self._stop_watching()
        self.close_lease()
        self.release(self.held_bytes)

    def _stop_watching(self) -> None:
        if self._patience is not None:
            self._patience.stop()
            self._patience = None
