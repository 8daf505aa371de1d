"""One gRPC connection as its calls see it; `dispatch.GrpcConnection` opens them. The rest of it is any HTTP/2
connection."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from grpclib.const import Status
from grpclib.encoding.base import CodecBase, StatusDetailsCodecBase
from grpclib.exceptions import GRPCError

from ...actors.turn import Turn
from ...engine.tensor import Buffer
from ..http2.connection import Call, Http2Connection, Http2Group
from ..sockets.limits import Limits
from ..sockets.roster import Roster
from ..sockets.shares import shared_address
from ..sockets.transport import PlainTransport, TlsTransport
from . import compression
from .call_head import CallHead, parse_head
from .call_log import CallStory
from .compression import CompressionLevel, UnpackLimits
from .deadlines import Deadlines, Entry, Patience
from .framing import MessageReader
from .options import delay

if TYPE_CHECKING:
    from ...actors.budget import Lease
    from ...actors.offload import Offload


class WaitingRoom:
    """What waits for room in the server-wide budget, and is in memory all the same.

    A connection cannot stop one call's data without stopping all others', except by the call's window. So what a client
    may send before its message has room is in memory, and no budget covers it. It is little for each call; here it is
    added up, for all connections of the service, and what would be too much is refused.

    Args:
        limit_bytes: most of them.
    """

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

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

    def __repr__(self) -> str:
        return f"<WaitingRoom: {self.held_bytes} of {self.limit_bytes} bytes>"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the connections of a service share.

    Attributes:
        codec, details_codec: see `service.GrpcService`.
        lease: makes what a message takes of the server-wide budget; `client` is the address that it comes from.
        waiting: for those that wait for it.
        offload: where messages are packed, unpacked and read, if they are large.
        max_compression_ratio: see `compression.UnpackLimits`.
        limits: of how slowly messages may come.
        cancel_delay_s: how long it takes a call to hear that its client has cancelled it, for tests.
    """

    group: Http2Group
    deadlines: Deadlines
    codec: CodecBase
    details_codec: StatusDetailsCodecBase | None
    compression_level: CompressionLevel
    max_compression_ratio: int
    lease: Callable[..., Lease]
    waiting: WaitingRoom
    offload: Offload
    limits: Limits
    cancel_delay_s: float = 0.0


class Peer:
    """The other end of a connection, as grpclib's handlers see it."""

    __slots__ = ("_address", "_certificate")

    def __init__(self, address: tuple[str, int] | None, certificate: dict[str, Any] | None) -> None:
        self._address = address
        self._certificate = certificate

    def addr(self) -> tuple[str, int] | None:
        """(host, port) of the client."""
        return self._address

    def cert(self) -> dict[str, Any] | None:
        """The client's certificate, as `ssl.SSLSocket.getpeercert` tells it; None without TLS."""
        return self._certificate


class CallHost(Http2Connection[CallHead, Call]):
    """What a connection does for its calls.

    Attributes:
        address: of the client, as far as shares are concerned; empty if it has none.
        lease: see `Surroundings`.
        stories: what verbose logs tell of calls, by their streams; empty if they do not.
    """

    __slots__ = ("_peer", "address", "lease", "stories", "surroundings")

    def __init__(
        self,
        surroundings: Surroundings,
        transport: PlainTransport | TlsTransport,
        roster: Roster,
        client: tuple[str, int] | None,
    ) -> None:
        super().__init__(surroundings.group, transport, roster, client, parse_head)
        self.surroundings = surroundings
        self.address = shared_address(client[0]) if client else ""
        self.lease = partial(surroundings.lease, client=self.address)
        self.stories: dict[int, CallStory] = {}
        self._peer: Peer | None = None

    @abstractmethod
    def begin(self, call: Any) -> None:
        """The message of a `UnaryCall` is complete."""

    @abstractmethod
    def cancel_handler(self, on_cancel: Callable[[], None]) -> None:
        """A `UnaryCall` is over: tells who has taken it over. Does not raise."""

    @property
    def peer(self) -> Peer:
        if self._peer is None:
            stream = self._transport.stream if isinstance(self._transport, TlsTransport) else None
            self._peer = Peer(self._client, None if stream is None else stream.getpeercert())
        return self._peer

    @property
    def turn(self) -> Turn:
        return self._group.turn

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

    def watch(self, reader: MessageReader, give_up: Callable[[], None]) -> Patience:
        """`give_up` is called if the message that is being collected does not come on."""
        return Patience(self.surroundings.deadlines, self.surroundings.limits, reader, give_up)

    # ---- compression ----

    def unpack_limits(self, max_message_bytes: int) -> UnpackLimits:
        return UnpackLimits(max_message_bytes, self.surroundings.max_compression_ratio)

    def response_encoding(self, head: CallHead) -> str:
        """What the responses of a method that compresses are packed with."""
        return compression.choose(self.surroundings.compression_level, head.accepted_encodings)

    def pack(self, parts: Sequence[Buffer], encoding: str, send: Callable[[list[Buffer]], None]) -> None:
        """Packs a response message, and sends it with its prefix."""
        if sum(map(len, parts)) < compression.LARGE_BYTES:
            send(compression.packed_small(parts, encoding))
        else:
            self.start(self._pack_on_thread, parts, encoding, send)

    async def _pack_on_thread(
        self, parts: Sequence[Buffer], encoding: str, send: Callable[[list[Buffer]], None]
    ) -> None:
        send(await compression.packed(parts, encoding, self.surroundings.offload))

    # ---- the end of a call ----

    def forget(self, stream_id: int, deadline: Entry | None) -> None:
        """The call is over."""
        self.calls.pop(stream_id, None)
        if self.stories:
            story = self.stories.pop(stream_id, None)
            if story is not None:
                story.end()
        if deadline is not None:
            self.surroundings.deadlines.remove(deadline)

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

    def cancel_later(self, scope: trio.CancelScope) -> bool:
        """Cancels a call's task when the delay for tests is over. False: there is none."""
        delay_s = self.surroundings.cancel_delay_s
        if delay_s and self._nursery is not None:
            self.start(self._cancel_after, delay_s, scope)
            return True
        return False

    async def _cancel_after(self, delay_s: float, scope: trio.CancelScope) -> None:
        await delay(delay_s, "the notification of the cancellation")
        scope.cancel()
