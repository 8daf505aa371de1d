"""The server's side of an HTTP/2 connection, for gRPC, without I/O: requests in, answers out (see `endpoint`).

Rule 1: A stream is announced once, by `RequestReceived`. After it was answered nothing more is said about it.
Rule 2: Data that comes with `RequestReceived` is not charged to the windows: there is no more of it than a stream takes
        anyway.

Not checked, because gRPC's own server does not: that a request's ``content-length`` is the length of its data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum

from ...engine.tensor import Buffer
from . import frames
from .core import announcement
from .endpoint import KEEPALIVE_PING, Http2Endpoint
from .frames import (
    HEADERS,
    MAX_STREAM_ID,
    MAX_WINDOW_BYTES,
    AnswerBlocks,
    ConnectionFault,
    DataReceived,
    ErrorCode,
    H,
    Http2Event,
    RequestReceived,
    StreamFault,
    Terminated,
)
from .headers import Field, HeaderReader, check_fields
from .keepalive import Due
from .limits import Http2Limits
from .reader import FrameReader
from .streams import Http2Stream

PING_PAYLOAD = b"farewell"
"""Of the PING whose acknowledgement shows that the first GOAWAY was read."""


class Shutdown(Enum):
    """Leaving gracefully (RFC 9113 §6.8): clients hear of it before streams are refused.

    Rule 1: First GOAWAY with the highest possible id and a PING: no new streams, please; those on their way are served.
    Rule 2: When the client has surely read that, or nothing is open any more, or it does not answer: GOAWAY with the
            highest id that was used. Streams above it are refused, and the client knows that they may be tried
            elsewhere.

        SERVING ──rule 1──▶ WARNED ──rule 2──▶ CLOSING
    """

    SERVING = "serving"
    WARNED = "warned"
    CLOSING = "closing"


class Http2Server(Http2Endpoint[H]):
    """One connection.

    Args:
        parse_head: makes of a request's header list (lower-case names, pseudo-headers first) what it means to the
            owner. Called once for equal blocks, as long as they stand for the same; so the result must be immutable.

    Attributes:
        idle_after_goaway: everything that was to be finished is: write the output, then close.
    """

    peer = "client"

    def __init__(self, limits: Http2Limits, parse_head: Callable[[Sequence[Field]], H], now_s: float) -> None:
        preface = announcement(limits, (frames.MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams))
        super().__init__(limits, preface, FrameReader(limits), now_s)
        self._headers: HeaderReader[H] = HeaderReader(limits, parse_head)
        self._shutdown = Shutdown.SERVING
        self._shutdown_debug = ""
        self._last_stream_id = MAX_STREAM_ID  # streams above it are refused
        self._closing_due_s = math.inf  # the client may not answer
        self.idle_after_goaway = False

    # ---- answers ----

    def respond(self, stream_id: int, blocks: AnswerBlocks, parts: Sequence[Buffer], size: int) -> None:
        """A whole answer: headers, `size` bytes of data, trailers. The fast way for everything that is small."""
        stream = self._open.get(stream_id)
        if stream is not None and self._sender.respond(stream, blocks, parts, size):
            self._said_all(stream)

    # ---- the connection ----

    def go_away(self, now_s: float, debug: str = "") -> None:
        """Begins to leave gracefully: open streams are finished, soon new ones are refused (see `Shutdown`)."""
        if self._shutdown is Shutdown.SERVING and not self.terminated:
            limits = self._limits
            timeout_s = limits.goaway_ack_timeout_s if self._open else limits.idle_goaway_ack_timeout_s
            self._shutdown = Shutdown.WARNED
            self._winds_up = True
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

    def tick(self, now_s: float) -> list[Http2Event[H]]:
        """Does what time demands."""
        if self.terminated:
            return []
        keepalive = self._keepalive
        self._note_payload()
        for due in keepalive.due(now_s, len(self._open)):
            if due is Due.PING:
                self._queue(frames.ping(KEEPALIVE_PING))
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

    def _last_accepted(self) -> int:
        return min(self._streams.highest, self._last_stream_id)

    def _set_timer(self) -> None:
        self.next_timer_s = min(self._keepalive.next_timer_s, self._closing_due_s)

    def __repr__(self) -> str:
        state = "terminated" if self.terminated else self._shutdown.value
        return f"<Http2Server: {state}, {len(self._open)} open>"

    # ---- streams ----

    def _said_all(self, stream: Http2Stream) -> None:
        """A client that still sends is told to stop (streams, rule 3)."""
        if stream.ended:
            self._close(stream)
        else:
            self._cut(stream, ErrorCode.NO_ERROR)

    def _drops_data(self, stream: Http2Stream) -> bool:
        return stream.queue is not None and stream.queue.ending  # only the windows hold the answer back

    def _nothing_open(self) -> None:
        self._confirm_shutdown()
        self.idle_after_goaway = self._shutdown is Shutdown.CLOSING
        if self._leaving:
            self._end()

    def _confirm_shutdown(self) -> None:
        """Rule 2 of `Shutdown`."""
        if self._shutdown is Shutdown.WARNED:
            self._shutdown = Shutdown.CLOSING
            self.idle_after_goaway = not self._open
            self._closing_due_s = math.inf
            self._last_stream_id = self._streams.highest
            self._queue(frames.goaway(self._last_stream_id, ErrorCode.NO_ERROR, self._shutdown_debug))
            self._set_timer()

    def _ping_answered(self, payload: bytes) -> None:
        if payload == PING_PAYLOAD:
            self._confirm_shutdown()

    def _on_goaway(self, last_stream_id: int, code: ErrorCode, debug: bytes) -> None:
        if not self._open:
            self._end()

    # ---- frames (see `layouts.FrameSink`) ----

    def on_headers(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        streams, limits = self._streams, self._limits
        if stream_id <= streams.highest or not stream_id & 1:
            self._late_headers(stream_id, block, end_stream)
            return
        streams.highest = stream_id
        head = self._headers.heads.get(block)
        if head is None:
            try:
                head = self._headers.read(block)
            except StreamFault as fault:
                self._break(stream_id, fault.code)
                return
        if len(self._open) >= limits.max_concurrent_streams or stream_id > self._last_stream_id:
            self._break(stream_id, ErrorCode.REFUSED_STREAM)
            return
        sender = self._sender
        if len(sender.out) > limits.unread_pieces:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "answers are not being read")
        if not end_stream:
            self._unended += 1
        self._open[stream_id] = Http2Stream(stream_id, end_stream, limits.stream_window_bytes, sender.initial_window)
        self._events.append(RequestReceived(stream_id, head, end_stream))

    def on_call(self, stream_id: int, block: bytes, increment: int, piece: bytes) -> None:
        limits, sender, size = self._limits, self._sender, len(piece)
        head, send_window = self._headers.heads.get(block), sender.initial_window + increment
        if (
            head is None
            or stream_id <= self._streams.highest
            or not stream_id & 1
            or stream_id > self._last_stream_id
            or len(self._open) >= limits.max_concurrent_streams
            or len(sender.out) > limits.unread_pieces
            or send_window > MAX_WINDOW_BYTES
            or not size
            or size > self._connection_left
        ):
            super().on_call(stream_id, block, increment, piece)
            return
        self._streams.highest = stream_id
        self._connection_left -= size
        self._give_back(size)
        self._open[stream_id] = Http2Stream(stream_id, True, limits.stream_window_bytes - size, send_window)
        self._events.append(RequestReceived(stream_id, head, True, piece))

    def _late_headers(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        """Trailers, or something that should not be."""
        stream = self._open.get(stream_id)
        try:
            fields = self._headers.decode(block)
            if stream is None and (any(name[:1] == b":" for name, _ in fields) or not stream_id & 1):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} cannot be opened")
            if stream is None or stream.ended:
                self._misfit(stream_id, HEADERS)
                return
            check_fields(fields)
            if not end_stream:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "trailers do not end the stream")
        except StreamFault as fault:
            self._break(stream_id, fault.code)
            return
        stream.ended = True
        self._unended -= 1
        if stream.queue is None or not stream.queue.ending:
            self._events.append(DataReceived(stream_id, b"", True))
