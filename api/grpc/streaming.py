"""A call that is served by a task. Its handler has what it needs of grpclib's server stream: `recv_message`,
`send_message`, and iteration.

Rule 1: What the client sends waits as bytes until the handler asks for a message (`framing.MessageReader`). Bytes are
        reported as consumed when the handler asks for the message behind the one that they are part of. For a message
        that is larger than what has come of it, a *lease* takes its size of the server-wide budget, and what it unpacks
        to; from then on its bytes are consumed as they come. So of a call one stream window is in memory, and a message
        that has room.
Rule 2: A handler that waits for a message may have a *listener*. It takes in small messages that come in one piece, in
        the connection's turn, and the task sleeps on. The task is woken for all others, and for a message that the
        listener leaves to it.
Rule 3: A message is sent only when nothing of the earlier ones is held back, by the client's windows or by its socket.
        So a client that does not read costs one message a call, or a few small ones. The message of a method that has
        only one waits for the status: no client can use it before.
Rule 4: The task is cancelled when the client resets the call or vanishes, and when the deadline passes. In the last
        case the client has been answered before. Whatever the handler still says is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.stream import StreamIterator

from ...engine.errors import RefusalReason, TriremeError
from ...engine.tensor import Buffer
from ..http2.frames import ErrorCode
from . import blocks
from .codec import RawMessage
from .compression import IDENTITY, LARGE_BYTES, packed, unpack
from .deadlines import DEADLINE_EXCEEDED, TOO_SLOW, Entry
from .framing import PREFIX_BYTES, Framed, prefix
from .host import CallHost, Inbox, Method
from .wire import UNPARSABLE

if TYPE_CHECKING:
    from ...actors.budget import Lease
    from .call_head import CallHead, Metadata

_HEARD_BYTES = 16_384
"""The largest message that a listener is offered: a larger one may take so long that it is for a task."""

_PROMPT_MESSAGES = 16
"""Messages that a handler may take before others get a turn."""

_COPIES = 3
_PROMPT_BYTES = 1024
"""A larger message may have so many parts that reading it takes a thread."""

_YIELD_BYTES = 16_384
_MESSAGE_BYTES = 2048
"""A handler that sends without a pause yields after so many bytes, where a message counts for some more than it has."""


class StreamingCall(StreamIterator[Any]):
    """One call, seen from its handler, and from its connection.

    Args:
        inbox: what has come already, and was not taken.
        left: a message that was.
        deadline: the call's, if it has one already.

    Attributes:
        deadline_entry: None if the call has none.
        waiting_bytes: of a request that came without a lease, and waits for room.
        scope: of the task that serves the call.
        over: nothing more goes out.
        refused: why it was refused, if nothing of it was executed.
    """

    def __init__(
        self,
        connection: CallHost,
        stream_id: int,
        head: CallHead,
        method: Method,
        inbox: Inbox | None = None,
        left: Framed | None = None,
        deadline: Entry | None = None,
    ) -> None:
        self.method = method
        self.scope = trio.CancelScope()
        self.over = False
        self.refused: RefusalReason | None = None
        self.waiting_bytes = 0
        self._connection = connection
        self._stream_id = stream_id
        self.head = head
        self._encoding = connection.response_encoding(head) if method.compresses else IDENTITY
        # What comes.
        self._inbox = inbox or Inbox(connection, stream_id, method)
        self._left = left  # for `recv_message`
        self._prompt = 0
        self._too_slow = False
        self._waiting = False
        self._listener: Callable[[Buffer], bool] | None = None
        self._heard_bytes = min(_HEARD_BYTES, method.max_message_bytes)
        self._arrival = trio.lowlevel.ParkingLot()
        # What goes.
        self.headers_sent = False
        self._unyielded_bytes = 0
        self._drain = trio.lowlevel.ParkingLot()
        self.deadline_entry = deadline
        if deadline is not None:
            deadline.call = self

    def __repr__(self) -> str:
        return f"<StreamingCall {self.head.path}{': over' if self.over else ''}>"

    # ---- for the connection ----

    def receive(self, data: bytes | memoryview, end_stream: bool) -> None:
        listener, inbox = self._listener, self._inbox
        if listener is not None and self._waiting and not (inbox.held_bytes or end_stream or inbox.lease is not None):
            size = len(data) - PREFIX_BYTES
            if 0 <= size <= self._heard_bytes and data[:PREFIX_BYTES] == prefix(False, size):
                message = data[PREFIX_BYTES:]
                if listener(message):
                    self._connection.core.consumed(self._stream_id, len(data))
                else:
                    self._left = Framed(False, message)
                    inbox.held_bytes = len(data)
                    self._wake()
                return
        inbox.feed(data, end_stream)
        if self._waiting:
            if inbox.reader.is_collecting and not end_stream:
                if inbox.lease is not None:
                    inbox.release(inbox.held_bytes)  # what `recv_message` would do, without waking it for each piece
            else:
                self._wake()

    def _wake(self) -> None:
        self._waiting = False
        self._arrival.unpark()

    def drained(self) -> None:
        self._drain.unpark_all()

    def cancel(self) -> None:
        self.over = True
        connection = self._connection
        if self._stream_id in connection.stories:
            connection.stories[self._stream_id].cancel()
        connection.cancel_task(self.scope)

    def expire(self) -> None:
        if self.over:
            return
        connection = self._connection
        if self._stream_id in connection.stories:
            connection.stories[self._stream_id].cancel()
        if connection.core.pending(self._stream_id):
            self._reset(ErrorCode.CANCEL)  # trailers would wait behind what the client does not read
        else:
            self.end(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)
        self.scope.cancel()

    # ---- for the task ----

    def end(self, status: Status, message: str | None) -> None:
        """Ends the call. Without response headers before it, the answer is nothing but trailers."""
        if not self.over:
            self.over = True
            connection = self._connection
            if status is not Status.OK and self._stream_id in connection.stories:
                connection.stories[self._stream_id].fail(message or "")
            make = blocks.trailers if self.headers_sent else blocks.trailers_only
            connection.core.send_headers(self._stream_id, make(status, message, self.refused), True)
            connection.mark(1)

    def finish(self) -> None:
        """The task has ended. A call that it left unanswered is reset."""
        self._reset(ErrorCode.CANCEL)
        self._listener = None
        self.admitted()
        self._inbox.close()
        self._connection.forget(self._stream_id, self.deadline_entry)
        self.deadline_entry = None

    # ---- what the client says ----

    @property
    def metadata(self) -> Metadata:
        return self.head.metadata

    async def recv_message(self) -> Any:
        """The next request message; None when the client has sent all. The one before is done with.

        Raises:
            GRPCError: INTERNAL or RESOURCE_EXHAUSTED, what comes is no message, or a too large one; UNAVAILABLE, too
                much waits for room; DEADLINE_EXCEEDED, it comes too slowly.
            TriremeError: the codec cannot read it.
        """
        payload = await self._next_message()
        if payload is None:
            return None
        request_type = self.method.request_type
        surroundings = self._connection.surroundings
        decode = surroundings.codec.decode
        if len(payload) <= _PROMPT_BYTES or request_type is RawMessage:
            return decode(cast(bytes, payload), request_type)
        lease = self._inbox.lease
        if lease is not None:  # protobuf's reader has it, what that writes, and what is made of it
            with self.waiting_for_room():
                await lease.grow(_COPIES * len(payload))
        return await surroundings.offload(decode, cast(bytes, payload), request_type)

    async def _next_message(self) -> Buffer | None:
        """The next message, unpacked. Raises GRPCError: see `recv_message`."""
        framed, self._left = self._left, None
        if framed is None:
            inbox = self._inbox
            inbox.close_lease()
            inbox.release(max(0, inbox.held_bytes - inbox.reader.waiting_bytes))
            self._prompt += 1
            if self._prompt == _PROMPT_MESSAGES:
                self._prompt = 0
                await trio.lowlevel.checkpoint()  # a client with much to say lets others speak
            framed = await self._next_framed(inbox)
        if framed is None or not framed.compressed:
            return None if framed is None else framed.payload
        unpacking = self._inbox.unpacking(framed, self.head)
        if len(framed.payload) < LARGE_BYTES and unpacking.step_promptly():
            return unpacking.message()
        with self.waiting_for_room():
            return await unpack(unpacking, self._inbox.need_lease(), self._connection.surroundings.offload)

    async def _next_framed(self, inbox: Inbox) -> Framed | None:
        reader = inbox.reader
        while (framed := inbox.next()) is None:
            if reader.announced_bytes:
                await self._find_room(inbox, reader.announced_bytes)
                continue
            if inbox.lease is not None:
                inbox.release(inbox.held_bytes)
            if inbox.ended:
                if not self.method.client_streaming:
                    raise GRPCError(Status.INTERNAL, UNPARSABLE)
                if not reader.is_empty:
                    raise GRPCError(Status.INTERNAL, "The request ends in the middle of a message")
                return None
            await self._more()
            if self._left is not None:
                framed, self._left = self._left, None
                return framed
        return framed

    async def _find_room(self, inbox: Inbox, nbytes: int) -> None:
        cold, find_model = inbox.cold_model(self.head.identity), self._connection.surroundings.find_model
        if cold is not None and find_model is not None:
            with self.waiting_for_room(), suppress(TriremeError):  # what is wrong is said when the message is read
                await find_model(*cold)
        lease = inbox.need_lease()
        if not lease.grow_nowait(nbytes):
            with self.waiting_for_room():
                await lease.grow(nbytes)
        inbox.collect(self._give_up_message)

    def _give_up_message(self) -> None:
        self._too_slow = True
        self._wake()

    async def _more(self) -> None:
        self._prompt = 0
        self._waiting = True
        try:
            await self._arrival.park()
        finally:
            self._waiting = False
        if self._too_slow:
            raise GRPCError(Status.DEADLINE_EXCEEDED, TOO_SLOW)

    # ---- what is said to the client ----

    def _send_headers(self) -> None:
        if not self.headers_sent:
            self.headers_sent = True
            self._connection.core.send_headers(self._stream_id, blocks.HEADERS[self._encoding])

    async def send_message(self, message: Any) -> None:
        """Sends a response message; waits while the client does not take the earlier ones.

        Args:
            message: for the codec; or a list, the pieces of a message that is encoded already.
        """
        method, connection = self.method, self._connection
        codec = connection.surroundings.codec
        pieces = message if isinstance(message, list) else [codec.encode(message, method.reply_type)]
        if self._encoding == IDENTITY:
            pieces = [prefix(False, sum(map(len, pieces))), *pieces]
        else:
            pieces = await packed(pieces, self._encoding, connection.surroundings.offload)
        while connection.blocked or connection.core.pending(self._stream_id):
            if connection.blocked:
                await connection.until_unblocked()
            else:
                await self._drain.park()
        if self.over:
            return
        self._send_headers()
        connection.core.send_data(self._stream_id, pieces)
        if not method.server_streaming:
            return  # it goes out together with the status
        connection.mark(1)
        self._unyielded_bytes += _MESSAGE_BYTES + sum(map(len, pieces))
        if self._unyielded_bytes < _YIELD_BYTES:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._unyielded_bytes = 0
            await trio.lowlevel.checkpoint()  # a handler with much to say lets others speak

    def listen(self, listener: Callable[[Buffer], bool] | None) -> None:
        """Have small messages taken in as they come (rule 2), until None is given. `listener` says whether it has taken
        a message in; if not, `recv_message` gives it. It must not raise."""
        self._listener = listener

    @property
    def can_send_now(self) -> bool:
        """`send_now` keeps rule 3, and nothing has to be packed."""
        connection = self._connection
        return self._encoding == IDENTITY and not (connection.blocked or connection.core.pending(self._stream_id))

    def send_now(self, pieces: Sequence[Buffer]) -> None:
        """Sends a message, given as the pieces of its encoding, of a method with any number of responses without
        waiting; only while `can_send_now`."""
        if self.over:
            return
        if not self.headers_sent:
            self._send_headers()
        connection = self._connection
        connection.core.send_data(self._stream_id, [prefix(False, sum(map(len, pieces))), *pieces])
        connection.mark(1)

    def take_lease(self) -> Lease | None:
        """What the last message holds of the server-wide budget; the caller closes it."""
        lease, self._inbox.lease = self._inbox.lease, None
        return lease

    def admitted(self) -> None:
        """The request, which may have waited for room in memory (`waiting_bytes`), has it."""
        if self.waiting_bytes:
            self._connection.surroundings.waiting.leave(self.waiting_bytes)
            self.waiting_bytes = 0

    def waiting_for_room(self) -> AbstractContextManager[None]:
        """While the handler waits for room or for a thread, inside the block.

        Raises:
            GRPCError: UNAVAILABLE, too much waits already.
        """
        return self._connection.waiting_for_room(self._stream_id)

    def set_aside(self, nbytes: int) -> Callable[[], None]:
        """A message of so many bytes waits, without a lease, and those behind it do not wait for it.

        Returns:
            To be called when it does not wait any more.

        Raises:
            GRPCError: UNAVAILABLE, too much waits already.
        """
        waiting = self._connection.surroundings.waiting
        waiting.enter(nbytes)
        return partial(waiting.leave, nbytes)

    @property
    def address(self) -> str:
        """Of the client, as far as shares are concerned; empty if it has none."""
        return self._connection.address

    def give_up(self) -> None:
        """Resets the call, and cancels its handler: the client does not read."""
        self._reset(ErrorCode.ENHANCE_YOUR_CALM)
        self.scope.cancel()

    def _reset(self, code: ErrorCode) -> None:
        if not self.over:
            self.over = True
            self._connection.core.reset(self._stream_id, code)
            self._connection.mark(1)
