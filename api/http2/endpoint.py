"""One side of an HTTP/2 connection, without I/O: bytes in, events out; what the owner says in, bytes out.

Rule 1: Nothing that the peer does raises. An offence of a stream queues RST_STREAM; an offence of the connection
        queues GOAWAY, and the connection is `terminated`.
Rule 2: After the `StreamReset` of a stream, or after the owner has reset it, nothing more is said about it. After
        `Terminated` nothing is said at all.
Rule 3: Received data that the owner does not report as `consumed` stays charged to the windows, so a peer cannot send
        faster than it is read. What a stream had not reported when it closed is given back then.
Rule 4: What is kept for a peer is bounded by `Http2Limits`, and by what the owner queues for it.

This is the owner's half of what clients and servers have in common; `core` is the peer's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from ...engine.tensor import Buffer
from . import frames
from .core import Http2Core
from .frames import (
    MAX_WINDOW_BYTES,
    ConnectionFault,
    ErrorCode,
    Farewell,
    H,
    Http2Event,
    Terminated,
)

KEEPALIVE_PING = b"Trireme?"
_STREAM_BYTES = 1024
_LEAST_LANDING_BYTES = 16_384
_MOST_LANDING_BYTES = 1 << 18
"""Of one read, after which others have their turn."""


class Http2Endpoint(Http2Core[H]):
    """One connection, seen from either side.

    Attributes:
        terminated: nothing more will be understood: write what `take_output` gives, then close.
        has_unread: a part of what was received waits for the next call of `receive`.
        lands: there has been data that was to land.
        next_timer_s: when to call `tick`; math.inf for never. Receiving never makes it earlier.
    """

    @abstractmethod
    def _last_accepted(self) -> int:
        """The highest stream of the peer's that was taken on."""

    # ---- bytes ----

    def receive(self, data: bytes | memoryview, now_s: float) -> list[Http2Event[H]]:
        """Takes in what the peer has sent, and says what it means. `data` is not referred to afterwards.

        If `has_unread`, there was more in it than is understood at once: call again, with nothing if nothing more has
        come, after others have had their turn.
        """
        if self.terminated:
            return []
        self._now_s = now_s
        self._keepalive.heard_s = now_s
        events = self._events = []
        if self.has_unread:
            data = self._unread + data
            self._unread = b""
            self.has_unread = False
        try:
            taken = self._reader.feed(data, self)
            if taken < len(data):
                self._unread = bytes(data[taken:])
                self.has_unread = True
        except (ConnectionFault, Farewell) as reason:
            self._ended_by(reason)
        return events

    def _ended_by(self, reason: ConnectionFault | Farewell) -> None:
        """The peer has broken the protocol, or has said goodbye."""
        if isinstance(reason, ConnectionFault):
            self.abort(reason.code, reason.debug)
            self._events.append(Terminated(reason.code, reason.debug))
        else:
            self._end()
            self._events.append(Terminated(ErrorCode.NO_ERROR, f"the {self.peer} has said goodbye"))

    def land(self, stream_id: int, place: memoryview) -> None:
        """Have the next data of a stream put into `place`, until that is full, and let the peer send as much at once.
        To be called when there is room for it in the budget."""
        stream = self._open.get(stream_id)
        if stream is None or stream.ended or not place:
            return
        stream.landing = place
        self.lands = True
        grant = min(len(place), MAX_WINDOW_BYTES - stream.receive_left) - stream.receive_left
        if grant > 0:
            stream.receive_left += grant
            stream.granted += grant
            self._queue(frames.window_update(stream_id, grant))
            self._sender.sent_payload = True

    def landing(self) -> memoryview | None:
        """Where to receive what comes next, if all of it is data that is to land; None for anywhere. To be asked only
        once something `lands`."""
        stream_id, left = self._reader.data_to_come
        if left < _LEAST_LANDING_BYTES or self.has_unread or self.terminated:
            return None
        stream = self._open.get(stream_id)
        if stream is None or stream.ended or stream.landing is None or len(stream.landing) < _LEAST_LANDING_BYTES:
            return None
        return stream.landing[: min(left, _MOST_LANDING_BYTES)]

    def landed(self, piece: memoryview, now_s: float) -> list[Http2Event[H]]:
        """Takes in what was received at the beginning of `landing`; as `receive`."""
        self._now_s = now_s
        self._keepalive.heard_s = now_s
        events = self._events = []
        try:
            self._reader.feed_data(piece, self)
        except (ConnectionFault, Farewell) as reason:
            self._ended_by(reason)
        return events

    @property
    def has_output(self) -> bool:
        """Whether `take_output` would give anything."""
        return bool(self._sender.out)

    def held_bytes(self) -> tuple[int, int]:
        """About how much memory is taken by what is *unfinished*, and by what is *unread*.

        Unfinished is what is not complete, or has not been consumed: parts of frames and header blocks, data, and the
        streams on which the peer has not said everything; without what `hold` has let in. Unread is what the peer has
        not taken, as far as this has not given it away.
        """
        sender = self._sender
        unread = sender.pending_bytes + sender.begun_bytes + sender.out_bytes
        if self.terminated:
            return 0, unread
        unconsumed = self._window_bytes - self._connection_left - self._connection_returned
        return self._reader.held_bytes + unconsumed + _STREAM_BYTES * self._unended, unread

    @property
    def pending_bytes(self) -> int:
        """Bytes of data that the peer's windows hold back, on all streams."""
        return self._sender.pending_bytes

    def pending_streams(self) -> list[int]:
        """The streams on which the peer's windows hold something back."""
        return [stream.id for stream in self._open.values() if stream.queue is not None and stream.queue.pending]

    def take_output(self) -> list[Buffer]:
        """All that may be written now, in order. Call it when what it gave before has been written, not sooner: that is
        how a peer that does not read is noticed."""
        return self._sender.take()

    # ---- what goes out: all ignore streams that are not open, because the peer may have gone at any time ----

    def send_headers(self, stream_id: int, block: bytes, end_stream: bool = False) -> None:
        """Queues headers, or with `end_stream` trailers. The block is from `headers.encode_block`."""
        stream = self._open.get(stream_id)
        if stream is not None and self._sender.headers(stream, block, end_stream=end_stream):
            self._said_all(stream)

    def send_data(self, stream_id: int, parts: Sequence[Buffer], end_stream: bool = False) -> None:
        """Queues data, which goes out as the windows allow. Views must be of single bytes; nothing is copied."""
        stream = self._open.get(stream_id)
        if stream is not None and self._sender.data(stream, parts, end_stream=end_stream):
            self._said_all(stream)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Gives the stream up by RST_STREAM; what it has queued is dropped."""
        stream = self._open.get(stream_id)
        if stream is not None:
            self._cut(stream, code)

    def pending(self, stream_id: int) -> int:
        """Bytes of data that are queued and held back by the peer's windows."""
        if not self._sender.pending_bytes:
            return 0
        stream = self._open.get(stream_id)
        return stream.queue.pending if stream is not None and stream.queue is not None else 0

    def consumed(self, stream_id: int, nbytes: int) -> None:
        """The owner has used up so many received bytes: the peer may send more."""
        stream = self._open.get(stream_id)
        if stream is None:
            return  # what it had not reported was given back when it closed
        if nbytes > stream.unconsumed:
            nbytes = stream.unconsumed
        stream.unconsumed -= nbytes
        if stream.ended and not stream.lent:  # nothing follows for its own window to let in
            self._give_back(nbytes)
        else:
            self._credit(stream, nbytes)

    def hold(self, stream_id: int, held: bool) -> None:
        """While a stream is held, what it has not consumed counts against its own window, and not against the
        connection's: streams that wait for something must not keep the others from going on."""
        stream = self._open.get(stream_id)
        if stream is not None:
            stream.lends = held
            if held and stream.unconsumed > stream.lent:
                self._give_back(stream.unconsumed - stream.lent)
                stream.lent = stream.unconsumed

    def abort(self, code: ErrorCode, debug: str = "") -> None:
        """GOAWAY at once. Open streams are over, and what they had queued is dropped."""
        if not self.terminated:
            self._queue(frames.goaway(self._last_accepted(), code, debug))
            self._end()
