"""What the frames of the other side do to a connection, whichever side this is: windows, streams, settings, PINGs.

It connects the state machines, which are in `reader` (frames), `streams` (streams, and what goes out) and `keepalive`
(time). Faults are raised and end in `Http2Endpoint.receive`, whose inner half this is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Generic

from . import frames
from .frames import (
    DATA,
    HEADERS,
    MAX_WINDOW_BYTES,
    RST_STREAM,
    WINDOW_UPDATE,
    ConnectionFault,
    DataReceived,
    ErrorCode,
    Farewell,
    H,
    Http2Event,
    StreamDrained,
    StreamReset,
)
from .headers import TABLE_SIZE_ZERO
from .keepalive import Keepalive
from .limits import Budget, Http2Limits
from .reader import SHAPES, FrameReader
from .streams import Http2Stream, Sender, State, Streams

_TINY_DATA_BYTES = 64


class Http2Core(ABC, Generic[H]):
    """One connection, seen from either side.

    Args:
        preface: what this side says first.
        reader: of what the peer says.

    Attributes as for `Http2Endpoint`.
    """

    peer: str
    """What the other side is called in debug texts."""

    def __init__(self, limits: Http2Limits, preface: bytes, reader: FrameReader, now_s: float) -> None:
        self._limits = limits
        self._now_s = now_s
        self._reader = reader
        tiny_frames = Budget(limits.tiny_frames, "windows are too small", now_s)
        self._sender = Sender(preface, limits.control_backlog_bytes, tiny_frames)
        self._streams = Streams(limits.remembered_resets)
        self._open = self._streams.open
        self._keepalive = Keepalive(limits.keepalive, now_s)
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
        self._unended = 0  # open streams on which the peer has not said everything
        self._leaving = False  # the peer has sent GOAWAY
        self._winds_up = False  # one side leaves
        self._table_lowered = False
        self.terminated = False
        self.next_timer_s = self._keepalive.next_timer_s

    # ---- what the two sides do differently ----

    @abstractmethod
    def _said_all(self, stream: Http2Stream) -> None:
        """All that the owner has to say on a stream went out."""

    @abstractmethod
    def _drops_data(self, stream: Http2Stream) -> bool:
        """What still comes on the stream, on which something is queued, is of no interest."""

    @abstractmethod
    def _nothing_open(self) -> None:
        """The last open stream was closed, of a connection that winds up."""

    @abstractmethod
    def _on_goaway(self, last_stream_id: int, code: ErrorCode, debug: bytes) -> None:
        """The peer leaves."""

    def _ping_answered(self, payload: bytes) -> None:
        """A PING was acknowledged."""

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
        if self._winds_up and not self._open:
            self._nothing_open()

    def _cut(self, stream: Http2Stream, code: ErrorCode) -> None:
        self._queue(frames.rst_stream(stream.id, code))
        self._streams.remember_cut(stream.id)
        self._close(stream)

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

    def _set_timer(self) -> None:
        self.next_timer_s = self._keepalive.next_timer_s

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

    # ---- frames (see `layouts.FrameSink`) ----

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
        if stream.queue is not None and self._drops_data(stream):
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

    @abstractmethod
    def on_headers(self, stream_id: int, block: bytes, end_stream: bool) -> None: ...

    def on_call(self, stream_id: int, block: bytes, increment: int, piece: bytes) -> None:
        self.on_headers(stream_id, block, False)
        if increment:
            self.on_window_update(stream_id, increment)
        self.on_data(stream_id, piece, len(piece), 0, True)

    def on_answer(self, stream_id: int, block: bytes, piece: bytes, trailers: bytes) -> None:
        self.on_headers(stream_id, block, False)
        self.on_data(stream_id, piece, len(piece), 0, False)
        self.on_headers(stream_id, trailers, True)

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
            self._leaving = self._winds_up = True
            last_stream_id, code = frames.GOAWAY_WORDS.unpack_from(payload)
            self._on_goaway(last_stream_id & frames.MAX_STREAM_ID, ErrorCode(code), payload[frames.GOAWAY_WORDS.size :])
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
            self._said_all(stream)

    def _on_ping(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            self._ping_answered(payload)
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


def announcement(limits: Http2Limits, first: tuple[int, int]) -> bytes:
    """What a side says of itself at first: its SETTINGS, the `first` of which is its own, and a wider connection window
    if it has one."""
    announced = frames.settings(
        (
            first,
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
