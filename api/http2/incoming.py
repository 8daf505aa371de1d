"""What a client's frames do to a connection: the inner half of `Http2Server`.

It connects the state machines, which are in `reader` (frames), `streams` (streams, and what goes out) and
`keepalive` (time). Faults are raised and end in `Http2Server.receive`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Generic

from . import frames
from .frames import (
    DATA,
    HEADERS,
    MAX_STREAM_ID,
    MAX_WINDOW_BYTES,
    RST_STREAM,
    WINDOW_UPDATE,
    ConnectionFault,
    DataReceived,
    ErrorCode,
    Farewell,
    H,
    Http2Event,
    RequestReceived,
    StreamDrained,
    StreamFault,
    StreamReset,
)
from .headers import TABLE_SIZE_ZERO, Field, HeaderReader, check_fields
from .keepalive import Keepalive
from .limits import Budget, Http2Limits
from .reader import SHAPES, FrameReader
from .streams import Http2Stream, Sender, State, Streams

_TINY_DATA_BYTES = 64
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


_SERVING = Shutdown.SERVING  # a member of an enumeration takes longer to look up


class Incoming(Generic[H]):
    """The state of a connection, and the frames that change it. Arguments and attributes as for `Http2Server`."""

    def __init__(self, limits: Http2Limits, parse_head: Callable[[Sequence[Field]], H], now_s: float) -> None:
        self._limits = limits
        self._now_s = now_s
        self._reader = FrameReader(limits)
        self._headers: HeaderReader[H] = HeaderReader(limits, parse_head)
        tiny_frames = Budget(limits.tiny_frames, "windows are too small", now_s)
        self._sender = Sender(server_preface(limits), limits.control_backlog_bytes, tiny_frames)
        self._streams = Streams(limits.remembered_resets)
        self._open = self._streams.open
        self._keepalive = Keepalive(limits.keepalive, now_s)
        self._shutdown = Shutdown.SERVING
        self._shutdown_debug = ""
        self._last_stream_id = MAX_STREAM_ID  # streams above it are refused
        self._closing_due_s = math.inf  # the client may not answer
        self._resets = Budget(limits.resets, "too many resets", now_s)
        self._pings = Budget(limits.pings, "too_many_pings", now_s)
        self._settings = Budget(limits.settings, "too many SETTINGS", now_s)
        self._empty_frames = Budget(limits.empty_frames, "too many empty DATA frames", now_s)
        self._meaningless = Budget(limits.meaningless_frames, "too many frames without a meaning", now_s)
        self._tiny_data = Budget(limits.tiny_data, "too many tiny DATA frames", now_s)
        self._window_bytes = limits.connection_window_bytes
        self._half_window = limits.connection_window_bytes // 2
        self._half_stream_window = limits.stream_window_bytes // 2
        self._connection_left = limits.connection_window_bytes
        self._connection_returned = 0
        self._events: list[Http2Event[H]] = []
        self._unread = b""
        self.has_unread = self.lands = False
        self._unended = 0  # open streams whose requests are not complete
        self._leaving = False  # the client has sent GOAWAY
        self._table_lowered = False
        self.terminated = False
        self.idle_after_goaway = False
        self.next_timer_s = self._keepalive.next_timer_s

    # ---- streams come and go ----

    def _queue(self, frame: bytes) -> None:
        self._sender.out.append(frame)

    def _close(self, stream: Http2Stream) -> None:
        del self._open[stream.id]
        if not stream.ended:
            self._unended -= 1
        if stream.queue is not None:
            self._sender.forget(stream)
        if stream.unconsumed > stream.lent:
            self._give_back(stream.unconsumed - stream.lent)
        if not self._open and (self._leaving or self._shutdown is not _SERVING):
            self._nothing_open()

    def _answered(self, stream: Http2Stream) -> None:
        """Everything has been said. A client that still sends is told to stop (streams, rule 3)."""
        if stream.ended:
            self._close(stream)
        else:
            self._cut(stream, ErrorCode.NO_ERROR)

    def _cut(self, stream: Http2Stream, code: ErrorCode) -> None:
        self._queue(frames.rst_stream(stream.id, code))
        self._streams.remember_cut(stream.id)
        self._close(stream)

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

    def _break(self, stream_id: int, code: ErrorCode) -> None:
        """The client has broken a rule on a stream, perhaps one that is not open."""
        self._resets.spend(self._now_s)
        self._sender.control(frames.rst_stream(stream_id, code))
        self._streams.remember_cut(stream_id)
        stream = self._open.get(stream_id)
        if stream is not None:
            self._events.append(StreamReset(stream_id, code))
            self._close(stream)
            if self.terminated:
                raise Farewell

    def _misfit(self, stream_id: int, kind: int) -> None:
        """A frame has come that does not fit its stream's state (streams, rule 6)."""
        state = self._streams.state(stream_id)
        if state is State.IDLE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{SHAPES[kind][0]} on idle stream {stream_id}")
        if state is not State.CUT and kind in (DATA, HEADERS):
            self._break(stream_id, ErrorCode.STREAM_CLOSED)

    # ---- windows of what is received ----

    def _give_back(self, nbytes: int) -> None:
        """The client may send so many bytes more on the connection; it is told in large numbers only."""
        self._connection_returned += nbytes
        if self._connection_returned >= self._half_window:
            self._queue(frames.window_update(0, self._connection_returned))
            self._connection_left += self._connection_returned
            self._connection_returned = 0
            self._sender.sent_payload = True

    def _credit(self, stream: Http2Stream, nbytes: int) -> None:
        """The same, for the connection and an open stream."""
        owed = nbytes
        if stream.lent:
            lent = min(nbytes, stream.lent)
            stream.lent -= lent
            owed -= lent
        self._give_back(owed)
        if stream.granted:
            granted = min(nbytes, stream.granted)
            stream.granted -= granted
            nbytes -= granted
        stream.returned += nbytes
        if stream.returned >= self._half_stream_window and not stream.ended:
            self._queue(frames.window_update(stream.id, stream.returned))
            stream.receive_left += stream.returned
            stream.returned = 0
            self._sender.sent_payload = True

    def _set_timer(self) -> None:
        self.next_timer_s = min(self._keepalive.next_timer_s, self._closing_due_s)

    def _note_payload(self) -> None:
        if self._sender.sent_payload:
            self._sender.sent_payload = False
            self._keepalive.payload_sent()

    def _end(self) -> None:
        self.terminated = True
        self.has_unread = False
        self.next_timer_s = math.inf
        self._open.clear()
        self._unended = 0
        self._sender.forget_all()

    # ---- frames (see `reader.FrameSink`) ----

    def on_data(self, stream_id: int, piece: bytes | memoryview, charge: int, left: int, end_stream: bool) -> None:
        asked = charge + left
        if asked > self._connection_left:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "data exceeds the connection's window")
        self._connection_left -= charge
        size = len(piece)
        if size < _TINY_DATA_BYTES and not (end_stream or left):
            (self._tiny_data if size else self._empty_frames).spend(self._now_s)
        stream = self._open.get(stream_id)
        if stream is None or stream.ended:
            self._give_back(charge)
            self._misfit(stream_id, DATA)
            return
        if asked > stream.receive_left:
            self._give_back(charge)
            self._break(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
            return
        stream.receive_left -= charge
        if end_stream:
            stream.ended = True
            self._unended -= 1
        if stream.queue is not None and stream.queue.ending:  # answered; only the windows hold the answer back
            self._credit(stream, charge)
            return
        if charge > size:  # padding is consumed at once
            self._credit(stream, charge - size)
        if not (size or end_stream):
            return
        stream.unconsumed += size
        if stream.lends:
            stream.lent += size
            self._give_back(size)
        if stream.landing is not None:
            piece = _landed(stream, stream.landing, piece)
        elif type(piece) is memoryview:
            piece = bytes(piece)
        self._events.append(DataReceived(stream_id, piece, end_stream))

    def on_headers(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        streams, limits = self._streams, self._limits
        if stream_id <= streams.highest or not stream_id & 1:
            self._late_headers(stream_id, block, end_stream)
            return
        streams.highest = stream_id
        head = self._headers.heads.get(block)
        if head is None:
            try:
                head = self._headers.read_request(block)
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
            self.on_headers(stream_id, block, False)
            if increment:
                self.on_window_update(stream_id, increment)
            self.on_data(stream_id, piece, size, 0, True)
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

    def on_unknown(self) -> None:
        self._meaningless.spend(self._now_s)

    def on_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == frames.PING:
            self._on_ping(flags, payload)
        elif kind == RST_STREAM:
            self._on_reset(stream_id, ErrorCode(frames.WORD.unpack(payload)[0]))
        elif kind == frames.SETTINGS:
            if not flags & frames.ACK:
                self._on_settings(check(payload))
        elif kind == frames.GOAWAY:
            self._leaving = True
            if not self._open:
                self._end()
        else:  # PRIORITY
            self._meaningless.spend(self._now_s)
        if self.terminated:
            raise Farewell

    def on_window_update(self, stream_id: int, increment: int) -> None:
        sender = self._sender
        if not stream_id:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            sender.window += increment
            if sender.window > MAX_WINDOW_BYTES:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window overflows")
            if not sender.ready:
                return
            for drained in sender.connection_reopened(self._now_s):
                self._drained(drained)
        elif (stream := self._open.get(stream_id)) is None:
            self._misfit(stream_id, WINDOW_UPDATE)
        elif not increment:
            self._break(stream_id, ErrorCode.PROTOCOL_ERROR)
        elif stream.send_window + increment > MAX_WINDOW_BYTES:
            self._break(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        else:
            stream.send_window += increment
            if stream.queue is None or not sender.reopened(stream, self._now_s):
                return
            self._drained(stream)
        if self.terminated:
            raise Farewell

    def _drained(self, stream: Http2Stream) -> None:
        self._events.append(StreamDrained(stream.id))
        if stream.queue is not None and stream.queue.ending:
            self._answered(stream)

    def _on_ping(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            if payload == PING_PAYLOAD:
                self._confirm_shutdown()
            return
        if self._sender.sent_payload:
            self._note_payload()
        else:
            self._pings.spend(self._now_s)
        if self._keepalive.is_one_ping_too_many(self._now_s, len(self._open)):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
        self._sender.control(frames.ping(payload, ack=True))

    def _on_reset(self, stream_id: int, code: ErrorCode) -> None:
        stream = self._open.get(stream_id)
        if stream is None:
            self._misfit(stream_id, RST_STREAM)
            return
        self._resets.spend(self._now_s)
        self._events.append(StreamReset(stream_id, code))
        self._close(stream)

    def _on_settings(self, values: dict[int, int]) -> None:
        self._settings.spend(self._now_s)
        sender = self._sender
        sender.control(frames.SETTINGS_ACK)
        sender.max_frame = values.get(frames.MAX_FRAME_SIZE, sender.max_frame)
        table_bytes = values.get(frames.HEADER_TABLE_SIZE, frames.DEFAULT_TABLE_BYTES)
        if table_bytes < frames.DEFAULT_TABLE_BYTES and not self._table_lowered:
            self._table_lowered = True
            sender.block_prefix = TABLE_SIZE_ZERO
        initial = values.get(frames.INITIAL_WINDOW_SIZE, sender.initial_window)
        change = initial - sender.initial_window
        if not change:
            return
        sender.initial_window = initial
        for stream in list(self._open.values()):
            stream.send_window += change
            if stream.send_window > MAX_WINDOW_BYTES:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"the window of stream {stream.id} overflows")
            if sender.reopened(stream, self._now_s):
                self._drained(stream)


def server_preface(limits: Http2Limits) -> bytes:
    """What a server says first: its SETTINGS, and a wider connection window if it has one."""
    announced = frames.settings(
        (
            (frames.MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams),
            (frames.INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
            (frames.MAX_FRAME_SIZE, limits.max_frame_bytes),
            (frames.MAX_HEADER_LIST_SIZE, limits.header_list_bytes),
        )
    )
    increment = limits.connection_window_bytes - frames.DEFAULT_WINDOW_BYTES
    return announced + (frames.window_update(0, increment) if increment else b"")


def check(payload: bytes) -> dict[int, int]:
    """The settings of a SETTINGS frame, the last value of each.

    Raises:
        ConnectionFault: a value is out of its range.
    """
    values: dict[int, int] = {}
    for name, value in frames.SETTING.iter_unpack(payload):
        if name == frames.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}, expected 0 or 1")
        if name == frames.INITIAL_WINDOW_SIZE and value > frames.MAX_WINDOW_BYTES:
            raise ConnectionFault(
                ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}, expected at most 2147483647"
            )
        if name == frames.MAX_FRAME_SIZE and not frames.DEFAULT_FRAME_BYTES <= value < 1 << 24:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}, expected 16384 to 16777215"
            )
        values[name] = value
    return values


def _landed(stream: Http2Stream, landing: memoryview, piece: bytes | memoryview) -> bytes | memoryview:
    """The data in its place; as it came if there is more than has a place."""
    size = len(piece)
    if size > len(landing):
        stream.landing = None
        return bytes(piece)
    place = landing[:size]
    if type(piece) is not memoryview or piece.obj is not landing.obj:  # it was not received there
        place[:] = piece
    stream.landing = landing[size:] if size < len(landing) else None
    return place
