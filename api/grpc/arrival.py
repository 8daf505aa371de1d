"""The message of a unary call that did not come in one piece, or came packed: until it is complete and unpacked.

Rule 1: What the message takes is taken of the server-wide budget before more of it is let come (*lease*): its announced
        size, then what it unpacks to, step by step.
Rule 2: While the lease waits for room, the client's window stays as it is; what it lets through is kept, and counted in
        the service's waiting room. It does not count against the connection's window, so that messages which have room
        go on.
Rule 3: A message that has room must come on (`patience`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from .framing import MessageReader
from .patience import TOO_SLOW

if TYPE_CHECKING:
    from ...actors.lease import Lease
    from .call import UnaryCall
    from .host import CallHost
    from .patience import Patience

UNPARSABLE = "Unable to parse request"
"""What gRPC's server says of a unary call without a complete message."""


class Arrival:
    """What a `UnaryCall` delegates to.

    Args:
        call: whose message it is.
        connection: that it comes on.

    Attributes:
        lease: what the message holds of the server-wide budget; None if it needs none, or it was taken over.
        waiting: of the task in which the call waits, for room or for a thread; None if it does not.
    """

    __slots__ = ("_call", "_connection", "_ended", "_held_bytes", "_patience", "_reader", "lease", "waiting")

    def __init__(self, call: UnaryCall, connection: CallHost) -> None:
        self._call = call
        self._connection = connection
        self._reader = MessageReader(call.method.max_message_bytes)
        self._held_bytes = 0
        self._ended = False
        self._patience: Patience | None = None
        self.lease: Lease | None = None
        self.waiting: trio.CancelScope | None = None

    def __repr__(self) -> str:
        return f"<Arrival of {self._call!r}{', waiting' if self.waiting is not None else ''}>"

    def receive(self, data: bytes, flow_bytes: int, end_stream: bool) -> None:
        """The next part of the message. What comes after it is dropped, as by gRPC's own server."""
        if self._call.begun or self._call.over:
            self._connection.core.consumed(self._call.stream_id, flow_bytes)
            return
        self._reader.feed(data)
        self._held_bytes += flow_bytes
        self._ended = self._ended or end_stream
        if self.waiting is None:
            self._advance()

    def request_ended(self) -> None:
        """The client has said everything."""
        self._ended = True
        if self.waiting is None and not self._call.begun:
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
        if framed is None and self.lease is None and not self._ended:
            return  # what is too small for a lease is consumed as a whole: until then the connection counts it
        held, self._held_bytes = self._held_bytes, 0
        connection.core.consumed(call.stream_id, held)
        if framed is None:
            if self._ended:
                call.fail(Status.INTERNAL, UNPARSABLE)
            return
        self._stop_watching()
        if self.lease is not None:
            self.lease.arrived()
        call.begun = True
        call.message = framed.payload
        if framed.compressed:
            connection.unpack(call, self)
        else:
            connection.begin(call)

    def _has_room(self, nbytes: int) -> bool:
        """Whether the message may come. If not, `go_on` is called when it may, or the call fails."""
        lease = self.lease
        if lease is None:
            lease = self.lease = self._connection.lease()
        if lease.nbytes < nbytes and not lease.grow_nowait(nbytes):
            self._connection.wait_for_room(self._call, self, lease, nbytes)
            return False
        try:
            self._reader.collect()
        except MemoryError:
            self._call.fail(Status.RESOURCE_EXHAUSTED, f"no memory for a message of {nbytes} bytes")
            return False
        self._patience = self._connection.watch(self._reader, self._too_slow)
        lease.watch(self._patience.hurry)
        return True

    def go_on(self) -> None:
        """There is room for the message."""
        if not self._call.over:
            self._advance()

    def _too_slow(self) -> None:
        self._call.fail(Status.DEADLINE_EXCEEDED, TOO_SLOW)

    def take_lease(self) -> Lease | None:
        """The lease; the caller closes it."""
        lease, self.lease = self.lease, None
        return lease

    def end(self) -> None:
        """The call is over."""
        self._stop_watching()
        if self.waiting is not None:
            self.waiting.cancel()  # only the task that grows a lease may close it then
        elif self.lease is not None and not self.lease.admitted:
            self.lease.close()

    def _stop_watching(self) -> None:
        if self._patience is not None:
            self._patience.stop()
            self._patience = None
