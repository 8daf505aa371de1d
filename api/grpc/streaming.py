"""A call that is served by a task: any number of messages both ways.

Rule 1: What the client sends waits as bytes until the handler asks for a message (`framing.MessageReader`). Bytes are
        reported as consumed when the handler asks for the message behind the one that they are part of. For a message
        that is larger than what has come of it, a *lease* takes its size of the server-wide budget, and what it unpacks
        to; from then on its bytes are consumed as they come. So of a call one stream window is in memory, and a message
        that has room.
Rule 2: A message is sent only when nothing of the earlier ones is held back, by the client's windows or by its socket.
        So a client that does not read costs one message a call, or a few small ones. The message of a method that has
        only one waits for the status: no client can use it before.
Rule 3: The task is cancelled when the client resets the call or vanishes, and when the deadline passes. In the last
        case the client has been answered before. Whatever the handler still says is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...engine.tensor import Buffer
from ..http2.errors import ErrorCode
from . import blocks
from .call import DEADLINE_EXCEEDED
from .compression import IDENTITY, LARGE_BYTES, Unpacking, packed, unpack
from .framing import MessageReader, prefix
from .patience import TOO_SLOW, Patience

if TYPE_CHECKING:
    from ...actors.lease import Lease
    from .call_head import CallHead
    from .deadlines import Entry
    from .host import CallHost
    from .methods import Method


_PROMPT_MESSAGES = 16
"""Messages that a handler may take before others get a turn."""

_YIELD_BYTES = 16_384
_MESSAGE_BYTES = 2048
"""A handler that sends without a pause yields after so many bytes, where a message counts for some more than it has."""


class StreamingCall:
    """What a handler's `Stream` stands on.

    Args:
        request: the whole request, if it has only one message and that has come already.
        lease: what that holds of the server-wide budget.

    Attributes:
        lease: what the last message that was asked for holds of the server-wide budget; None if it came without, or it
            was taken over.
        waiting_bytes: of a request that came without a lease, and waits for room.
        scope: of the task that serves the call.
        over: nothing more goes out.
        headers_sent: response headers have gone out.
        encoding: what response messages are packed with.
    """

    __slots__ = (
        "_arrival",
        "_deadline",
        "_drain",
        "_ended",
        "_held_bytes",
        "_patience",
        "_prompt",
        "_reader",
        "_request",
        "_too_slow",
        "_unyielded_bytes",
        "_waiting",
        "connection",
        "encoding",
        "head",
        "headers_sent",
        "lease",
        "method",
        "over",
        "scope",
        "stream_id",
        "waiting_bytes",
    )

    def __init__(
        self,
        connection: CallHost,
        stream_id: int,
        head: CallHead,
        method: Method,
        request: Buffer | None = None,
        deadline: Entry | None = None,
        lease: Lease | None = None,
    ) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.head = head
        self.method = method
        self.encoding = connection.response_encoding(method, head)
        self.scope = trio.CancelScope()
        self.over = False
        self.headers_sent = False
        self._request = request
        self._ended = request is not None
        self._reader = MessageReader(method.max_message_bytes)
        self._held_bytes = 0
        self._prompt = 0
        self._patience: Patience | None = None
        self._too_slow = False
        self.lease = lease
        self.waiting_bytes = 0
        self._unyielded_bytes = 0
        self._waiting = False
        self._arrival = trio.lowlevel.ParkingLot()
        self._drain = trio.lowlevel.ParkingLot()
        self._deadline = deadline
        if deadline is not None:
            deadline.call = self

    def __repr__(self) -> str:
        return f"<StreamingCall {self.head.path}{': over' if self.over else ''}>"

    @property
    def deadline_s(self) -> float | None:
        """On trio's clock."""
        return None if self._deadline is None else self._deadline.deadline_s

    # ---- for the connection ----

    def set_deadline(self, deadline: Entry) -> None:
        self._deadline = deadline

    def receive(self, data: bytes, flow_bytes: int, end_stream: bool) -> None:
        """The next part of the request."""
        self._reader.feed(data)
        self._held_bytes += flow_bytes
        if end_stream:
            self._ended = True
        if self._waiting:
            if self._reader.is_collecting and not end_stream:
                if self.lease is not None:
                    self._release(self._held_bytes)  # what `next_message` would do, without waking it for each piece
            else:
                self._arrival.unpark()

    def request_ended(self) -> None:
        """The client has said everything."""
        self._ended = True
        self._arrival.unpark()

    def drained(self) -> None:
        """The client's windows have let everything through."""
        self._drain.unpark_all()

    def cancel(self) -> None:
        """The client has reset the call, or is gone."""
        self.over = True
        if self.connection.stories:
            self.connection.tell_cancelled(self.stream_id)
        if not self.connection.cancel_later(self.scope):
            self.scope.cancel()

    def expire(self) -> None:
        """The deadline has passed."""
        if not self.over:
            if self.connection.stories:
                self.connection.tell_cancelled(self.stream_id)
            if self.connection.core.pending(self.stream_id):
                self.reset(ErrorCode.CANCEL)  # trailers would wait behind what the client does not read
            else:
                self.end(Status.DEADLINE_EXCEEDED, DEADLINE_EXCEEDED)
            self.scope.cancel()

    def finish(self) -> None:
        """The task has ended. A call that it left unanswered is reset."""
        if not self.over:
            self.reset(ErrorCode.CANCEL)
        self._stop_watching()
        self._close_lease()
        self.admitted()
        self._release(self._held_bytes)
        self.connection.forget(self.stream_id, self._deadline)
        self._deadline = None

    # ---- for the handler's stream ----

    async def next_message(self) -> Buffer | None:
        """The next request message, unpacked; None when there will be none. The one before is done with.

        Raises:
            GRPCError: INTERNAL or RESOURCE_EXHAUSTED, what comes is no message, or a too large one; UNAVAILABLE, too
                much waits for room; DEADLINE_EXCEEDED, it comes too slowly.
        """
        if self._request is not None:
            request, self._request = self._request, None
            return request
        reader = self._reader
        self._close_lease()
        self._release(max(0, self._held_bytes - reader.waiting_bytes))
        self._prompt += 1
        if self._prompt == _PROMPT_MESSAGES:
            self._prompt = 0
            await trio.lowlevel.checkpoint()  # a client with much to say lets others speak
        while (framed := reader.next()) is None:
            if reader.announced_bytes:
                await self._find_room(reader.announced_bytes)
                continue
            if self.lease is not None:
                self._release(self._held_bytes)
            if self._ended:
                if not reader.is_empty:
                    raise GRPCError(Status.INTERNAL, "The request ends in the middle of a message")
                return None
            await self._more()
        self._stop_watching()
        if self.lease is not None:
            self.lease.arrived()
        if framed.compressed:
            return await self._unpack(framed.payload)
        return framed.payload

    async def _find_room(self, nbytes: int) -> None:
        """Waits until the message that has begun may come."""
        lease = self.lease = self.connection.lease()
        if not lease.grow_nowait(nbytes):
            with self.connection.waiting_for_room(self):
                await lease.grow(nbytes)
        try:
            self._reader.collect()
        except MemoryError:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"no memory for a message of {nbytes} bytes") from None
        self._patience = self.connection.watch(self._reader, self._give_up)
        lease.watch(self._patience.hurry)

    def _give_up(self) -> None:
        """The message that has begun does not come on."""
        self._too_slow = True
        self._arrival.unpark()

    async def _more(self) -> None:
        """Waits until more has come."""
        self._prompt = 0
        self._waiting = True
        try:
            await self._arrival.park()
        finally:
            self._waiting = False
        if self._too_slow:
            raise GRPCError(Status.DEADLINE_EXCEEDED, TOO_SLOW)

    async def _unpack(self, payload: bytes | memoryview) -> Buffer:
        connection = self.connection
        unpacking = Unpacking(payload, self.head.encoding, connection.unpack_limits(self.method))
        if len(payload) < LARGE_BYTES and unpacking.step_promptly():
            return unpacking.message()
        if self.lease is None:
            self.lease = connection.lease()
        with connection.waiting_for_room(self):
            return await unpack(unpacking, self.lease, connection.offload)

    def take_lease(self) -> Lease | None:
        """What the last message holds of the server-wide budget; the caller closes it."""
        lease, self.lease = self.lease, None
        return lease

    def _close_lease(self) -> None:
        if self.lease is not None:
            self.lease.close()
            self.lease = None

    def admitted(self) -> None:
        """The request that waited for room has it."""
        if self.waiting_bytes:
            self.connection.no_longer_waiting(self.waiting_bytes)
            self.waiting_bytes = 0

    def _stop_watching(self) -> None:
        if self._patience is not None:
            self._patience.stop()
            self._patience = None

    def _release(self, count: int) -> None:
        if count:
            self._held_bytes -= count
            core = self.connection.core
            core.consumed(self.stream_id, count)
            if core.has_output:
                self.connection.mark(1)

    def send_headers(self, metadata: blocks.Fields = ()) -> None:
        """Response headers. `send_message` sends them if need be."""
        self._queue_headers(metadata)
        self.connection.mark(1)

    def _queue_headers(self, metadata: blocks.Fields) -> None:
        self.headers_sent = True
        if not self.over:
            self.connection.core.send_headers(self.stream_id, blocks.headers(self.encoding, metadata))

    @property
    def can_send_now(self) -> bool:
        """`send_now` keeps rule 2, and nothing has to be packed."""
        connection = self.connection
        return self.encoding == IDENTITY and not connection.blocked and not connection.core.pending(self.stream_id)

    def send_now(self, pieces: Sequence[Buffer]) -> None:
        """Sends a message of a method with any number of responses without waiting; only while `can_send_now`."""
        if self.over:
            return
        if not self.headers_sent:
            self._queue_headers(())
        size = 0
        for piece in pieces:
            size += len(piece)
        self.connection.core.send_data(self.stream_id, [prefix(size), *pieces])
        self.connection.mark(1)

    async def send_message(self, pieces: Sequence[Buffer]) -> None:
        """Sends the message that the pieces are when put together, when everything before it has gone out."""
        size = 0
        for piece in pieces:
            size += len(piece)
        if self.encoding == IDENTITY:
            parts = [prefix(size), *pieces]
        else:
            parts = await packed(pieces, self.encoding, self.connection.offload)
        connection = self.connection
        while connection.blocked or connection.core.pending(self.stream_id):
            if connection.blocked:
                await connection.until_unblocked()
            else:
                await self._drain.park()
        if not self.headers_sent:
            self._queue_headers(())
        if self.over:
            return
        connection.core.send_data(self.stream_id, parts)
        if not self.method.server_streaming:
            return  # it goes out together with the status
        connection.mark(1)
        self._unyielded_bytes += _MESSAGE_BYTES + size
        if self._unyielded_bytes < _YIELD_BYTES:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._unyielded_bytes = 0
            await trio.lowlevel.checkpoint()  # a handler with much to say lets others speak

    def end(self, status: Status, message: str | None = None, metadata: blocks.Fields = ()) -> None:
        """Ends the call. Without response headers before it, the answer is nothing but trailers."""
        if not self.over:
            self.over = True
            if self.connection.stories and status is not Status.OK:
                self.connection.tell_failed(self.stream_id, message or "")
            make = blocks.trailers if self.headers_sent else blocks.trailers_only
            self.connection.core.send_headers(self.stream_id, make(status, message, metadata), True)
            self.connection.mark(1)

    def reset(self, code: ErrorCode) -> None:
        """Ends the call without a status."""
        if not self.over:
            self.over = True
            self.connection.core.reset(self.stream_id, code)
            self.connection.mark(1)
