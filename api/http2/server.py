"""The server's side of an HTTP/2 connection, for gRPC, without I/O: bytes in, events out; answers in, bytes out.

Rule 1: Nothing that a client does raises. An offence of a stream queues RST_STREAM; an offence of the connection
        queues GOAWAY, and the connection is `terminated`.
Rule 2: A stream is announced once, by `RequestReceived`. After its `StreamReset`, or after it was answered or reset,
        nothing more is said about it. After `Terminated` nothing is said at all.
Rule 3: Received data that the owner does not report as `consumed` stays charged to the windows, so a client cannot
        send faster than it is served. What a stream had not reported when it closed is given back then. Data that comes
        with `RequestReceived` is not charged: there is no more of it than a stream takes anyway.
Rule 4: What is kept for a client is bounded by `Http2Limits`, and by what the owner queues for it.

This is the owner's half; `incoming` is the client's. Not checked, because gRPC's own server does not: that a request's
``content-length`` is the length of its data.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.tensor import Buffer
from . import frames
from .frames import (
    MAX_STREAM_ID,
    MAX_WINDOW_BYTES,
    AnswerBlocks,
    ConnectionFault,
    ErrorCode,
    Farewell,
    H,
    Http2Event,
    Terminated,
)
from .incoming import PING_PAYLOAD, Incoming, Shutdown
from .keepalive import Due

_KEEPALIVE_PING = b"Trireme?"
_STREAM_BYTES = 1024
_LEAST_LANDING_BYTES = 16_384
_MOST_LANDING_BYTES = 1 << 18
"""Of one read, after which others have their turn."""


class Http2Server(Incoming[H]):
    """One connection.

    Args:
        parse_head: makes of a request's header list (lower-case names, pseudo-headers first) what it means to the
            owner. Called once for equal blocks, as long as they stand for the same; so the result must be immutable.

    Attributes:
        terminated: nothing more will be understood: write what `take_output` gives, then close.
        has_unread: a part of what was received waits for the next call of `receive`.
        lands: there has been data that was to land.
        idle_after_goaway: everything that was to be finished is: write the output, then close.
        next_timer_s: when to call `tick`; math.inf for never. Receiving never makes it earlier.
    """

    # ---- bytes ----

    def receive(self, data: bytes | memoryview, now_s: float) -> list[Http2Event[H]]:
        """Takes in what the client has sent, and says what it means. `data` is not referred to afterwards.

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
        """The client has broken the protocol, or has said goodbye."""
        if isinstance(reason, ConnectionFault):
            self.abort(reason.code, reason.debug)
            self._events.append(Terminated(reason.code, reason.debug))
        else:
            self._end()
            self._events.append(Terminated(ErrorCode.NO_ERROR, "the client has said goodbye"))

    def land(self, stream_id: int, place: memoryview) -> None:
        """Have the next data of a stream put into `place`, until that is full, and let the client send as much at once.
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
        streams of requests that are not complete; without what `hold` has let in. Unread are answers that the client
        has not taken, as far as this has not given them away.
        """
        sender = self._sender
        unread = sender.pending_bytes + sender.begun_bytes + sender.out_bytes
        if self.terminated:
            return 0, unread
        unconsumed = self._window_bytes - self._connection_left - self._connection_returned
        return self._reader.held_bytes + unconsumed + _STREAM_BYTES * self._unended, unread

    @property
    def pending_bytes(self) -> int:
        """Bytes of data that the client's windows hold back, on all streams."""
        return self._sender.pending_bytes

    def pending_streams(self) -> list[int]:
        """The streams on which the client's windows hold something back."""
        return [stream.id for stream in self._open.values() if stream.queue is not None and stream.queue.pending]

    def take_output(self) -> list[Buffer]:
        """All that may be written now, in order. Call it when what it gave before has been written, not sooner: that is
        how a client that does not read is noticed."""
        return self._sender.take()

    # ---- answers: all ignore streams that are not open, because the client may have gone at any time ----

    def send_headers(self, stream_id: int, block: bytes, end_stream: bool = False) -> None:
        """Queues headers, or with `end_stream` trailers. The block is from `headers.encode_block`."""
        stream = self._open.get(stream_id)
        if stream is not None and self._sender.headers(stream, block, end_stream=end_stream):
            self._answered(stream)

    def send_data(self, stream_id: int, parts: Sequence[Buffer], end_stream: bool = False) -> None:
        """Queues data, which goes out as the windows allow. Views must be of single bytes; nothing is copied."""
        stream = self._open.get(stream_id)
        if stream is not None and self._sender.data(stream, parts, end_stream=end_stream):
            self._answered(stream)

    def respond(self, stream_id: int, blocks: AnswerBlocks, parts: Sequence[Buffer], size: int) -> None:
        """A whole answer: headers, `size` bytes of data, trailers. The fast way for everything that is small."""
        stream = self._open.get(stream_id)
        if stream is not None and self._sender.respond(stream, blocks, parts, size):
            self._answered(stream)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Gives the stream up by RST_STREAM; what it has queued is dropped."""
        stream = self._open.get(stream_id)
        if stream is not None:
            self._cut(stream, code)

    def pending(self, stream_id: int) -> int:
        """Bytes of data that are queued and held back by the client's windows."""
        if not self._sender.pending_bytes:
            return 0
        stream = self._open.get(stream_id)
        return stream.queue.pending if stream is not None and stream.queue is not None else 0

    def consumed(self, stream_id: int, nbytes: int) -> None:
        """The owner has used up so many received bytes: the client may send more."""
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

    # ---- the connection ----

    def go_away(self, now_s: float, debug: str = "") -> None:
        """Begins to leave gracefully: open streams are finished, soon new ones are refused (see `Shutdown`)."""
        if self._shutdown is Shutdown.SERVING and not self.terminated:
            limits = self._limits
            timeout_s = limits.goaway_ack_timeout_s if self._open else limits.idle_goaway_ack_timeout_s
            self._shutdown = Shutdown.WARNED
            self._shutdown_debug = debug
            self._closing_due_s = now_s + timeout_s
            self._queue(frames.goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR, debug))
            self._queue(frames.ping(PING_PAYLOAD))
            self._set_timer()

    @property
    def was_asked(self) -> bool:
        """A stream was opened, if only to be refused."""
        return self._streams.highest > 0

    @property
    def going_away(self) -> bool:
        """`go_away` has been called, or the connection's age has called it."""
        return self._shutdown is not Shutdown.SERVING

    def abort(self, code: ErrorCode, debug: str = "") -> None:
        """GOAWAY at once. Open streams are over, and what they had queued is dropped."""
        if not self.terminated:
            last_stream_id = min(self._streams.highest, self._last_stream_id)
            self._queue(frames.goaway(last_stream_id, code, debug))
            self._end()

    def tick(self, now_s: float) -> list[Http2Event[H]]:
        """Does what time demands."""
        if self.terminated:
            return []
        keepalive = self._keepalive
        self._note_payload()
        for due in keepalive.due(now_s, len(self._open)):
            if due is Due.PING:
                self._queue(frames.ping(_KEEPALIVE_PING))
            elif due is Due.OLD:
                self.go_away(now_s, "max_age")
            else:
                debug = "max_age" if due is Due.OVERDUE else "keepalive_timeout"
                self.abort(ErrorCode.NO_ERROR, debug)
                return [Terminated(ErrorCode.NO_ERROR, debug)]
        if now_s >= self._closing_due_s:
            self._confirm_shutdown()
        self._set_timer()
        return []

    def __repr__(self) -> str:
        state = "terminated" if self.terminated else self._shutdown.value
        return f"<Http2Server: {state}, {len(self._open)} open>"
