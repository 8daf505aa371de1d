"""One gRPC connection: its calls, and what they need of the connection. The rest of it is any HTTP/2 connection.

A call with one request message whose method is `immediate` has no task. It begins when its message is complete, in the
connection's task, and is answered from wherever its answer comes (call.py). Every other call has a task (streaming.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...engine.tensor import Buffer
from ..http2.connection import Http2Connection
from ..http2.events import RequestReceived
from ..http2.group import Http2Group
from ..sockets.limits import Limits
from ..sockets.roster import Roster
from ..sockets.shares import shared_address
from ..sockets.transport import PlainTransport, TlsTransport
from . import blocks, call_log, compression
from .call import DEADLINE_EXCEEDED, UnaryCall
from .call_head import CallHead, Refusal, parse_head
from .call_log import CallStory
from .compression import IDENTITY, CompressionLevel, Unpacking, UnpackLimits
from .deadlines import Deadlines, Entry
from .delays import delay
from .dispatch import Dispatcher
from .framing import MessageReader
from .methods import Method
from .patience import Patience
from .stream import Peer
from .streaming import StreamingCall
from .waiting import WaitingRoom

if TYPE_CHECKING:
    from ...actors.lease import Lease
    from ...actors.offload import Offload
    from .arrival import Arrival

_UNKNOWN_METHOD = blocks.trailers_only(Status.UNIMPLEMENTED)
_TOO_LATE = blocks.trailers_only(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)


class MakeLease(Protocol):
    """Makes what a message takes of the server-wide budget."""

    def __call__(self, *, client: str = "") -> Lease:
        """For a message that arrives from the address `client`."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the connections of a service share.

    Attributes:
        lease: makes what a message takes of the server-wide budget.
        waiting: for those that wait for it.
        offload: where messages are packed and unpacked.
        max_compression_ratio: see `compression.UnpackLimits`.
        limits: of how slowly messages may come.
        cancel_delay_s: how long it takes a call to hear that its client has cancelled it, for tests.
    """

    group: Http2Group
    dispatcher: Dispatcher
    deadlines: Deadlines
    compression_level: CompressionLevel
    max_compression_ratio: int
    lease: MakeLease
    waiting: WaitingRoom
    offload: Offload
    limits: Limits
    cancel_delay_s: float = 0.0


class CallHost(Http2Connection[CallHead, UnaryCall | StreamingCall]):
    """One gRPC connection.

    Attributes:
        dispatcher, lease, offload: for the calls.
        stories: what verbose logs tell of calls, by their streams; empty if they do not.
    """

    __slots__ = ("_deadlines", "_level", "_peer", "_surroundings", "dispatcher", "lease", "offload", "stories")

    def __init__(
        self,
        surroundings: Surroundings,
        transport: PlainTransport | TlsTransport,
        roster: Roster,
        client: tuple[str, int] | None,
    ) -> None:
        self.dispatcher = surroundings.dispatcher
        super().__init__(surroundings.group, transport, roster, client, parse_head)
        self._deadlines = surroundings.deadlines
        self._level = surroundings.compression_level
        self._peer: Peer | None = None
        self._surroundings = surroundings
        self.lease = partial(surroundings.lease, client=shared_address(client[0]) if client else "")
        self.offload = surroundings.offload
        self.stories: dict[int, CallStory] = {}

    # ---- what the client does ----

    def _open(self, event: RequestReceived[CallHead]) -> None:
        """A call begins; or is refused, if its head says enough for that."""
        head = event.head
        stream_id = event.stream_id
        if head.refusal is not None:
            self._refuse(stream_id, head.refusal)
            return
        if call_log.enabled():
            self.stories[stream_id] = CallStory(head.path)
        method = self.dispatcher.methods.get(head.path)
        if method is None:
            self.core.send_headers(stream_id, _UNKNOWN_METHOD, True)
            self.forget(stream_id, None)
            return
        error = self.dispatcher.refusal(head)
        if error is not None:
            self.core.send_headers(stream_id, blocks.trailers_only(error.status, error.message), True)
            self.forget(stream_id, None)
            return
        self._roster.requests += 1
        timeout_s = head.timeout_s
        if timeout_s is not None and timeout_s <= 0:
            self.core.send_headers(stream_id, _TOO_LATE, True)
            self.forget(stream_id, None)
            return
        call: UnaryCall | StreamingCall
        if method.client_streaming:
            call = StreamingCall(self, stream_id, head, method)
        else:
            call = UnaryCall(self, stream_id, head, method)
        self.calls[stream_id] = call
        if timeout_s is not None:
            call.set_deadline(self._deadlines.add(trio.current_time() + timeout_s, call))
        if isinstance(call, StreamingCall):
            self._serve_call(call)
        if event.end_stream:
            call.request_ended()

    def _refuse(self, stream_id: int, refusal: Refusal) -> None:
        if refusal.status is Status.UNIMPLEMENTED:
            block = blocks.unknown_encoding(refusal.status, refusal.message)
        else:
            block = blocks.trailers_only(refusal.status, refusal.message, http_status=refusal.http_status)
        self.core.send_headers(stream_id, block, True)

    # ---- for the calls ----

    def begin(self, call: UnaryCall) -> None:
        """The call's message is complete."""
        if not self.dispatcher.begin(call):
            self._serve_as_task(call)

    def _serve_as_task(self, call: UnaryCall) -> None:
        """The call's method needs a task; or has nothing against none, and the call has to wait for room."""
        waits = call.method.begin is not None
        waiting_bytes = len(call.message) if waits else 0
        try:
            self._surroundings.waiting.enter(waiting_bytes)
        except GRPCError as error:
            call.fail(error.status, error.message or "")
            return
        deadline, lease = call.hand_over()
        served = StreamingCall(self, call.stream_id, call.head, call.method, call.message, deadline, lease)
        served.waiting_bytes = waiting_bytes
        self.calls[call.stream_id] = served
        self._serve_call(served)

    # ---- room for what arrives ----

    def wait_for_room(self, call: UnaryCall, arrival: Arrival, lease: Lease, nbytes: int) -> None:
        """`arrival.go_on` is called as soon as the lease has grown; or the call fails, if too much waits already."""
        window_bytes = self._group.limits.stream_window_bytes
        try:
            self._surroundings.waiting.enter(window_bytes)
        except GRPCError as error:
            call.fail(error.status, error.message or "")
            return
        arrival.waiting = trio.CancelScope()
        self.core.hold(call.stream_id, True)
        self._start(self._wait_for_room, call, arrival, arrival.waiting, lease, nbytes, window_bytes)

    async def _wait_for_room(
        self,
        call: UnaryCall,
        arrival: Arrival,
        scope: trio.CancelScope,
        lease: Lease,
        nbytes: int,
        window_bytes: int,
    ) -> None:
        try:
            with scope:
                await lease.grow(nbytes)
        finally:
            self._surroundings.waiting.leave(window_bytes)
            self.core.hold(call.stream_id, False)
            arrival.waiting = None
            if call.over:
                lease.close()
        with self._group.turn:
            arrival.go_on()
        self.mark(0)

    @contextmanager
    def waiting_for_room(self, call: StreamingCall) -> Iterator[None]:
        """While the task of the call waits for room, inside the block.

        Raises:
            GRPCError: UNAVAILABLE, too much waits already.
        """
        window_bytes = self._group.limits.stream_window_bytes
        waiting = self._surroundings.waiting
        waiting.enter(window_bytes)
        self.core.hold(call.stream_id, True)
        if self.core.has_output:  # the connection's window
            self.mark(1)
        try:
            yield
        finally:
            waiting.leave(window_bytes)
            self.core.hold(call.stream_id, False)

    def no_longer_waiting(self, nbytes: int) -> None:
        """A call that was handed over with so many bytes to wait has what it waited for, or has ended."""
        self._surroundings.waiting.leave(nbytes)

    def watch(self, reader: MessageReader, give_up: Callable[[], None]) -> Patience:
        """`give_up` is called if the message that is being collected does not come on."""
        return Patience(self._deadlines, self._surroundings.limits, reader, give_up)

    # ---- compression ----

    def unpack_limits(self, method: Method) -> UnpackLimits:
        """What a message of the method may unpack to."""
        return UnpackLimits(method.max_message_bytes, self._surroundings.max_compression_ratio)

    def unpack(self, call: UnaryCall, arrival: Arrival) -> None:
        """The call's message is complete, and packed."""
        try:
            unpacking = Unpacking(call.message, call.head.encoding, self.unpack_limits(call.method))
            prompt = len(call.message) < compression.LARGE_BYTES and unpacking.step_promptly()
        except GRPCError as error:
            call.fail(error.status, error.message or "")
            return
        if prompt:
            call.message = unpacking.message()
            self.begin(call)
            return
        lease = arrival.lease = arrival.lease or self.lease()
        arrival.waiting = trio.CancelScope()
        self._start(self._unpack_on_thread, call, arrival, arrival.waiting, unpacking, lease)

    async def _unpack_on_thread(
        self, call: UnaryCall, arrival: Arrival, scope: trio.CancelScope, unpacking: Unpacking, lease: Lease
    ) -> None:
        try:
            with scope:
                call.message = await compression.unpack(unpacking, lease, self.offload)
        except GRPCError as error:
            arrival.waiting = None
            call.fail(error.status, error.message or "")
            return
        finally:
            arrival.waiting = None
            if call.over:
                lease.close()
        if not call.over:
            with self._group.turn:
                self.begin(call)

    def response_encoding(self, method: Method, head: CallHead) -> str:
        """What the method's responses are packed with."""
        if self._level is CompressionLevel.NONE or not method.compresses:
            return IDENTITY
        return compression.choose(self._level, head.accepted_encodings)

    def pack(self, parts: Sequence[Buffer], encoding: str, send: Callable[[list[Buffer]], None]) -> None:
        """Packs a response message, and sends it with its prefix."""
        if sum(map(len, parts)) < compression.LARGE_BYTES:
            send(compression.packed_small(parts, encoding))
        else:
            self._start(self._pack_on_thread, parts, encoding, send)

    async def _pack_on_thread(
        self, parts: Sequence[Buffer], encoding: str, send: Callable[[list[Buffer]], None]
    ) -> None:
        send(await compression.packed(parts, encoding, self.offload))

    def forget(self, stream_id: int, deadline: Entry | None) -> None:
        """The call is over."""
        self.calls.pop(stream_id, None)
        if self.stories:
            story = self.stories.pop(stream_id, None)
            if story is not None:
                story.end()
        if deadline is not None:
            self._deadlines.remove(deadline)

    def tell_cancelled(self, stream_id: int) -> None:
        """A call is over without its answer, for the client's sake."""
        story = self.stories.get(stream_id)
        if story is not None:
            story.cancel()

    def tell_failed(self, stream_id: int, message: str) -> None:
        """A call is answered with an error."""
        story = self.stories.get(stream_id)
        if story is not None:
            story.fail(message)

    # ---- tasks ----

    def cancel_later(self, scope: trio.CancelScope) -> bool:
        """Cancels a call's task when the delay for tests is over. False: there is none."""
        delay_s = self._surroundings.cancel_delay_s
        if delay_s and self._nursery is not None:
            self._start(self._cancel_after, delay_s, scope)
            return True
        return False

    async def _cancel_after(self, delay_s: float, scope: trio.CancelScope) -> None:
        await delay(delay_s, "the notification of the cancellation")
        scope.cancel()

    def _serve_call(self, call: StreamingCall) -> None:
        if self._peer is None:
            self._peer = self._make_peer()
        self._start(self.dispatcher.run, call, self._peer)

    def _make_peer(self) -> Peer:
        """The client, as handlers see it."""
        transport = self._transport
        return Peer(self._client, transport.stream.getpeercert() if isinstance(transport, TlsTransport) else None)
