"""What a handler talks to: grpclib's server stream, with the same methods, rules and errors, on trio.

Written after the documented behaviour of `grpclib.server.Stream`, so that services run on either.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from grpclib.const import Status
from grpclib.encoding.base import CodecBase, StatusDetailsCodecBase
from grpclib.exceptions import ProtocolError
from grpclib.metadata import Deadline, encode_metadata
from grpclib.stream import StreamIterator
from multidict import MultiDict

from ...engine.tensor import Buffer
from ..http2.errors import ErrorCode
from ..sockets.shares import shared_address
from . import blocks
from .codec import RawMessage
from .deadlines import CallDeadline
from .streaming import StreamingCall

if TYPE_CHECKING:
    from ...actors.lease import Lease
    from ...actors.offload import Offload

_COPIES = 3
_PROMPT_BYTES = 1024
"""A larger message may have so many parts that reading it takes a thread."""

MetadataLike = Mapping[str, str | bytes] | Collection[tuple[str, str | bytes]]


class Peer:
    """The other end of the connection."""

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


class Stream(StreamIterator[Any]):
    """One call, seen from its handler.

    Attributes:
        deadline: when the client will have lost interest; None if never.
        metadata: the client's custom metadata.
        user_agent: the client's, if it named one.
        peer: the client's address and certificate.
    """

    __slots__ = (
        "_call",
        "_cancelled",
        "_codec",
        "_details_codec",
        "_initial_metadata_sent",
        "_message_sent",
        "_offload",
        "_trailing_metadata_sent",
        "deadline",
        "metadata",
        "peer",
        "user_agent",
    )

    def __init__(
        self,
        call: StreamingCall,
        peer: Peer,
        codec: CodecBase,
        details_codec: StatusDetailsCodecBase | None,
        offload: Offload,
    ) -> None:
        self._call = call
        self._offload = offload
        self._codec = codec
        self._details_codec = details_codec
        self._initial_metadata_sent = False
        self._message_sent = False
        self._trailing_metadata_sent = False
        self._cancelled = False
        deadline_s = call.deadline_s
        self.deadline: Deadline | None = None if deadline_s is None else CallDeadline(deadline_s)
        self.metadata: MultiDict[str | bytes] = MultiDict(call.head.metadata)
        self.user_agent = call.head.user_agent
        self.peer = peer

    def __repr__(self) -> str:
        return f"<Stream of {self._call!r}>"

    @property
    def finished(self) -> bool:
        """The handler has ended the call itself."""
        return self._trailing_metadata_sent or self._cancelled

    @property
    def lacks_message(self) -> bool:
        """The method promises one response message, and there has been none."""
        return not self._call.method.server_streaming and not self._message_sent

    async def recv_message(self) -> Any:
        """The next request message; None when the client has sent all.

        Raises:
            GRPCError: what the client sends is no message, or a too large one.
            TriremeError: the codec cannot read it.
        """
        payload = await self._call.next_message()
        if payload is None:
            return None
        request_type = self._call.method.request_type
        if len(payload) <= _PROMPT_BYTES or request_type is RawMessage:
            return self._codec.decode(cast(bytes, payload), request_type)
        lease = self._call.lease
        if lease is not None:  # protobuf's reader has it, what that writes, and what is made of it
            with self.waiting_for_room():
                await lease.grow(_COPIES * len(payload))
        return await self._offload(self._codec.decode, cast(bytes, payload), request_type)

    def take_lease(self) -> Lease | None:
        """What the last message holds of the server-wide budget; the caller closes it. Not in grpclib."""
        return self._call.take_lease()

    def admitted(self) -> None:
        """The message, which may have waited for room in memory, has it. Not in grpclib."""
        self._call.admitted()

    def waiting_for_room(self) -> AbstractContextManager[None]:
        """While the handler waits for room, inside the block. Not in grpclib.

        Raises:
            GRPCError: UNAVAILABLE, too much waits already.
        """
        return self._call.connection.waiting_for_room(self._call)

    async def send_initial_metadata(self, *, metadata: MetadataLike | None = None) -> None:
        """Sends response headers. The first message, or a successful end, does so too.

        Raises:
            ProtocolError: they were sent already.
            ValueError, TypeError: a key or value cannot be sent.
        """
        if self._initial_metadata_sent:
            raise ProtocolError("Initial metadata was already sent")
        self._call.send_headers(_encode(metadata))
        self._initial_metadata_sent = True

    async def send_message(self, message: Any) -> None:
        """Sends a response message; waits while the client does not take the earlier ones.

        Args:
            message: for the codec; or a list, the pieces of a message that is encoded already.

        Raises:
            ProtocolError: the method promises one message, and it was sent already.
        """
        if self._message_sent and not self._call.method.server_streaming:
            raise ProtocolError("Message was already sent")
        encode = self._codec.encode
        pieces = message if isinstance(message, list) else [encode(message, self._call.method.reply_type)]
        self._initial_metadata_sent = self._message_sent = True
        await self._call.send_message(pieces)

    @property
    def can_send_now(self) -> bool:
        """`send_now` is possible: nothing that was sent before is held back, and nothing has to be packed."""
        return self._call.can_send_now

    def send_now(self, pieces: list[Buffer]) -> None:
        """Sends a response message, given as the pieces of its encoding, without waiting. Not in grpclib.

        Only while `can_send_now`, by a method with any number of responses.
        """
        self._initial_metadata_sent = True
        self._message_sent = True
        self._call.send_now(pieces)

    async def send_trailing_metadata(
        self,
        *,
        status: Status = Status.OK,
        status_message: str | None = None,
        status_details: Any = None,
        metadata: MetadataLike | None = None,
    ) -> None:
        """Ends the call. Happens at the end of the handler, if it did not do so.

        Raises:
            ProtocolError: it was ended already; or it is to succeed without the one message that it promises.
            ValueError, TypeError: a key or value cannot be sent.
        """
        if self._trailing_metadata_sent:
            raise ProtocolError("Trailing metadata was already sent")
        if status is Status.OK and self.lacks_message:
            raise ProtocolError("Unary response with OK status requires a single message to be sent")
        self.end(status, status_message, status_details, _encode(metadata))

    def end(self, status: Status, message: str | None, details: Any = None, metadata: blocks.Fields = ()) -> None:
        """Ends the call; for the dispatcher, whose handler may have broken every rule."""
        if details is not None and self._details_codec is not None:
            metadata = [blocks.details(self._details_codec.encode(status, message, details)), *metadata]
        self._call.end(status, message, metadata)
        self._trailing_metadata_sent = True

    @property
    def address(self) -> str:
        """Of the client, as far as shares are concerned; empty if it has none. Not in grpclib."""
        address = self.peer.addr()
        return "" if address is None else shared_address(address[0])

    def give_up(self) -> None:
        """Resets the call, and cancels its handler: the client does not read. Not in grpclib."""
        self._call.reset(ErrorCode.ENHANCE_YOUR_CALM)
        self._call.scope.cancel()

    async def cancel(self) -> None:
        """Resets the call: the client gets no status.

        Raises:
            ProtocolError: it was cancelled already.
        """
        if self._cancelled:
            raise ProtocolError("Stream was already cancelled")
        self._call.reset(ErrorCode.CANCEL)
        self._cancelled = True


def _encode(metadata: MetadataLike | None) -> list[tuple[bytes, bytes]]:
    if not metadata:
        return []
    pairs = encode_metadata(cast("Collection[tuple[str, str | bytes]]", MultiDict(metadata).items()))
    return [(key.encode("ascii"), value.encode("ascii")) for key, value in pairs]
