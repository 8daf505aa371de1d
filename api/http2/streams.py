"""Streams: the state machine of RFC 9113 §5.1, as far as a server that never pushes can see it, and what goes out on
them.

Rule 1: Ids of streams are odd and increase. A stream exists from its HEADERS on; lower ids that were never used count
        as closed.
Rule 2: A request is HEADERS, any number of DATA, and possibly trailers, which must end it.
Rule 3: When the server has said everything, the stream is closed. If the client has not, it is told to stop by
        RST_STREAM(NO_ERROR), as RFC 9113 §8.1 provides.
Rule 4: A client may not yet know that the server has closed a stream. What it still sends there is ignored, as long as
        the id is remembered (CUT); only its data counts against the connection's window, and is given back.
Rule 5: Nothing is remembered of streams that the client knows to be closed (CLOSED).
Rule 6: A frame that does not fit its stream's state costs an IDLE stream its connection. On a CUT stream it is ignored,
        and so are RST_STREAM and WINDOW_UPDATE on a CLOSED one. DATA and HEADERS on an ENDED or CLOSED stream cost it
        STREAM_CLOSED; but HEADERS on a CLOSED stream are thought to be trailers: if they open a request, an id was used
        twice, or ids went backwards, and that ends the connection (RFC 9113 §5.1.1). PRIORITY is legal anywhere and
        means nothing.

        HEADERS            DATA, END_STREAM           answered, or reset by either side
    IDLE ─────▶ OPEN ─────────────────▶ ENDED ──────────────────▶ CLOSED
      │           └────── answered, or reset by the server ─────▶ CUT
      └─ HEADERS with END_STREAM ─────▶ ENDED

What goes out, frames in order and data that waits for the client's windows (RFC 9113 §5.2, §6.9):

Rule 7: Data goes out at once as far as its stream's window, the connection's, and the largest frame allow. The rest
        waits in its stream's `SendQueue`; trailers wait behind it.
Rule 8: A stream waits either for its own window (nothing to do until its WINDOW_UPDATE comes) or for the connection's
        (then it is in `ready`). So if any stream is ready, the connection's window is used up.
Rule 9: Ready streams take turns, one frame each.
Rule 10: Nothing is copied but small things that are joined for a single write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from ...engine.tensor import Buffer
from . import frames
from .frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    HEADERS,
    AnswerBlocks,
    ConnectionFault,
    ErrorCode,
    RequestBlock,
)
from .limits import Budget

_JOIN_BYTES = 16_384
_SMALL_PIECE_BYTES = 4096
_TINY_FRAME_BYTES = 1024


class State(Enum):
    """What a stream is, seen from the frames that the client sends on it."""

    IDLE = "idle"
    OPEN = "open"
    ENDED = "ended"
    CUT = "cut"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class Http2Stream:
    """An open stream: OPEN, or ENDED once `ended`.

    Attributes:
        ended: the client has sent END_STREAM.
        receive_left: bytes that the client may still send.
        unconsumed: bytes delivered and not yet reported as consumed.
        lends: `Http2Server.hold` is in force.
        lent: how much of `unconsumed` has been given back to the connection's window all the same.
        returned: bytes consumed and not yet given back to the client's window.
        granted: bytes that the client was let send before others were consumed; so many are not given back.
        landing: where the next data is put (`Http2Server.land`).
        send_window: bytes that the server may send; negative after a client has shrunk its initial window.
        queue: what waits for that window, or for the connection's; None as long as nothing had to wait.
    """

    id: int
    ended: bool
    receive_left: int
    send_window: int
    unconsumed: int = 0
    lends: bool = False
    lent: int = 0
    returned: int = 0
    granted: int = 0
    landing: memoryview | None = None
    queue: SendQueue | None = None


class Streams:
    """Every stream of a connection: the open ones, the highest id that was used, and what is remembered of others."""

    def __init__(self, max_remembered: int) -> None:
        self.open: dict[int, Http2Stream] = {}
        self.highest = 0
        self._cut: dict[int, None] = {}
        self._max_cut = max_remembered

    def state(self, stream_id: int) -> State:
        stream = self.open.get(stream_id)
        if stream is not None:
            return State.ENDED if stream.ended else State.OPEN
        if stream_id > self.highest or not stream_id & 1:
            return State.IDLE
        return State.CUT if stream_id in self._cut else State.CLOSED

    def remember_cut(self, stream_id: int) -> None:
        """The server has closed the stream while the client may still be sending. The oldest are forgotten."""
        cut = self._cut
        if len(cut) >= self._max_cut:
            del cut[next(iter(cut))]
        cut[stream_id] = None


@dataclass(slots=True, eq=False)
class SendQueue:
    """Parts of a stream's data that wait for windows, then perhaps its end.

    Attributes:
        pending: bytes of data that wait.
        begun: bytes of the first part that do not wait any more; they are in memory as long as the rest of it is.
        ending: the stream ends after the data, with `trailers` or, if there are none, with the last DATA frame.
    """

    pending: int = 0
    begun: int = 0
    ending: bool = False
    trailers: bytes | None = None
    _parts: list[memoryview] = field(default_factory=list)
    _first: int = 0

    def add(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            if len(part):
                self._parts.append(memoryview(part))
                self.pending += len(part)

    def take(self, size: int, out: list[Buffer]) -> None:
        """Moves the first `size` bytes to `out`; at least as many must be pending."""
        self.pending -= size
        while size:
            part = self._parts[self._first]
            if len(part) > size:
                out.append(part[:size])
                self._parts[self._first] = part[size:]
                self.begun += size
                return
            out.append(part)
            size -= len(part)
            self.begun = 0
            self._first += 1
        if not self.pending:
            self._parts.clear()
            self._first = 0


class Sender:
    """The outgoing half of a connection.

    Attributes:
        out: what may be written now.
        window: bytes of data that the connection may send.
        initial_window: that of new streams, as the client has set it.
        max_frame: the largest payload that the client takes.
        ready: streams that wait for the connection's window.
        out_bytes: of data in `out`, about.
        pending_bytes, begun_bytes: of data in the streams' queues, and of parts of which some is still there.
        sent_payload: data, headers or window updates were sent since it was last cleared (gRPC's keepalive asks).
        block_prefix: goes before the next header block: a change of table size that the client has forced (RFC 7541
            §4.2).
    """

    def __init__(self, preface: bytes, control_backlog_bytes: int, tiny_frames: Budget) -> None:
        self.out: list[Buffer] = [preface]
        self.out_bytes = 0
        self.pending_bytes = 0
        self.begun_bytes = 0
        self.window = frames.DEFAULT_WINDOW_BYTES
        self.initial_window = frames.DEFAULT_WINDOW_BYTES
        self.max_frame = frames.DEFAULT_FRAME_BYTES
        self.sent_payload = False
        self.block_prefix = b""
        self.ready: dict[int, Http2Stream] = {}
        self._backlog = 0
        self._max_backlog = control_backlog_bytes
        self._tiny_frames = tiny_frames

    def take(self) -> list[Buffer]:
        """Everything in `out`, small neighbours joined."""
        out = self.out
        if not out:
            return []
        self.out = []
        self.out_bytes = 0
        self._backlog = 0
        if len(out) < 2:
            return out
        if sum(map(len, out)) <= _JOIN_BYTES:
            return [b"".join(out)]
        return _join_small(out)

    def control(self, frame: bytes) -> None:
        """Queues a frame that the client has provoked.

        Raises:
            ConnectionFault: it provokes more than it reads.
        """
        self._backlog += len(frame)
        if self._backlog > self._max_backlog:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "control frames are not being read")
        self.out.append(frame)

    # ---- requests ----

    def ask(
        self, stream: Http2Stream, head: RequestBlock, parts: Sequence[Buffer], size: int, end_stream: bool
    ) -> bool:
        """Begins a request, with `size` bytes of data. Returns whether it is complete, and went out."""
        if (
            len(head.block) + size <= _JOIN_BYTES
            and 0 < size <= stream.send_window
            and size <= self.window
            and not self.block_prefix
        ):
            # The way of nearly all requests: one piece. Every server takes frames of 16 KiB.
            data_head = FRAME_HEADER.pack(size << 8, END_STREAM if end_stream else 0, stream.id)
            stream.send_window -= size
            self.window -= size
            self.out_bytes += size
            self.sent_payload = True
            self.out.append(b"".join((head.head, data_head[5:], head.block, data_head, *parts)))
            return end_stream
        self.headers(stream, head.block, end_stream=False)
        return (size > 0 or end_stream) and self.data(stream, parts, end_stream=end_stream)

    # ---- answers ----

    def respond(self, stream: Http2Stream, blocks: AnswerBlocks, parts: Sequence[Buffer], size: int) -> bool:
        """A whole answer, with `size` bytes of data. Returns whether all of it went out."""
        if (
            blocks.nbytes + size <= _JOIN_BYTES
            and size <= stream.send_window
            and size <= self.window
            and not self.block_prefix
            and stream.queue is None
        ):
            # The way of nearly all answers: one piece. Every client takes frames of 16 KiB.
            data_head = FRAME_HEADER.pack(size << 8, 0, stream.id)
            its_stream = data_head[5:]
            self.window -= size
            self.out_bytes += size
            self.sent_payload = True
            begins = blocks.headers_head, its_stream, blocks.headers, data_head
            self.out.append(b"".join((*begins, *parts, blocks.trailers_head, its_stream, blocks.trailers)))
            return True
        self.headers(stream, blocks.headers, end_stream=False)
        self.data(stream, parts, end_stream=False)
        return self.headers(stream, blocks.trailers, end_stream=True)

    def headers(self, stream: Http2Stream, block: bytes, *, end_stream: bool) -> bool:
        """Headers, or trailers if they end the stream. Returns whether the stream's end went out."""
        queue = stream.queue
        if queue is not None and queue.ending:
            return False
        if queue is not None and queue.pending:
            queue.ending = end_stream
            queue.trailers = block
            return False
        self._headers_now(stream.id, block, end_stream)
        return end_stream

    def data(self, stream: Http2Stream, parts: Sequence[Buffer], *, end_stream: bool) -> bool:
        """Data, as far as windows allow. Returns whether the stream's end went out."""
        queue = stream.queue
        if not end_stream and (queue is None or not (queue.pending or queue.ending)):
            size = sum(map(len, parts))
            if 0 < size <= _JOIN_BYTES and size <= stream.send_window and size <= self.window:
                # The way of small messages: one piece. Every client takes frames of 16 KiB.
                stream.send_window -= size
                self.window -= size
                self.out_bytes += size
                self.sent_payload = True
                self.out.append(b"".join((FRAME_HEADER.pack(size << 8, 0, stream.id), *parts)))
                return False
        if queue is None:
            queue = stream.queue = SendQueue()
        if queue.ending:
            return False
        before = queue.pending
        queue.add(parts)
        self.pending_bytes += queue.pending - before
        queue.ending = end_stream
        if queue.pending:
            return self._push(stream, queue)
        if end_stream:
            self.sent_payload = True
            self.out.append(frames.frame(frames.DATA, END_STREAM, stream.id))
        return end_stream

    def forget(self, stream: Http2Stream) -> None:
        """The stream is gone; what it had queued is dropped."""
        self.ready.pop(stream.id, None)
        queue = stream.queue
        if queue is not None:
            self.pending_bytes -= queue.pending
            self.begun_bytes -= queue.begun

    def forget_all(self) -> None:
        """The connection is over; what was queued for `out` alone remains."""
        self.ready.clear()
        self.pending_bytes = self.begun_bytes = 0

    def _headers_now(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        self.sent_payload = True
        if self.block_prefix:
            block = self.block_prefix + block
            self.block_prefix = b""
        end = END_STREAM if end_stream else 0
        limit = self.max_frame
        if len(block) <= limit:
            self.out.append(FRAME_HEADER.pack(len(block) << 8 | HEADERS, END_HEADERS | end, stream_id) + block)
            return
        self.out.append(frames.frame(HEADERS, end, stream_id, block[:limit]))
        for at in range(limit, len(block), limit):
            last = END_HEADERS if at + limit >= len(block) else 0
            self.out.append(frames.frame(CONTINUATION, last, stream_id, block[at : at + limit]))

    # ---- windows ----

    def reopened(self, stream: Http2Stream, now_s: float) -> bool:
        """The stream's own window has grown. Returns whether something waited, and all of it went out.

        Raises:
            ConnectionFault: too many windows are so small that the data must be cut into crumbs.
        """
        queue = stream.queue
        if queue is None or not queue.pending or stream.id in self.ready or stream.send_window <= 0:
            return False
        if stream.send_window < min(queue.pending, _TINY_FRAME_BYTES):
            self._tiny_frames.spend(now_s)
        self._push(stream, queue)
        return not queue.pending

    def connection_reopened(self, now_s: float) -> list[Http2Stream]:
        """The connection's window has grown. Returns the streams of which everything went out.

        Raises:
            ConnectionFault: as in `reopened`.
        """
        drained: list[Http2Stream] = []
        ready = self.ready
        if ready and self.window < _TINY_FRAME_BYTES:
            self._tiny_frames.spend(now_s)
        while ready and self.window > 0:
            stream = ready.pop(next(iter(ready)))
            queue = stream.queue
            if queue is None or stream.send_window <= 0:  # the client has shrunk it in the meantime
                continue
            self._frame_now(stream, queue)
            if not queue.pending:
                self._rest_now(stream, queue)
                drained.append(stream)
            elif stream.send_window > 0:
                ready[stream.id] = stream
        return drained

    def _push(self, stream: Http2Stream, queue: SendQueue) -> bool:
        """Returns whether the stream's end went out."""
        while queue.pending:
            if stream.send_window <= 0:
                return False
            if self.window <= 0:
                self.ready[stream.id] = stream
                return False
            self._frame_now(stream, queue)
        return self._rest_now(stream, queue)

    def _frame_now(self, stream: Http2Stream, queue: SendQueue) -> None:
        """One DATA frame, as large as it may be."""
        size = min(queue.pending, stream.send_window, self.window, self.max_frame)
        ends = size == queue.pending and queue.ending and queue.trailers is None
        self.out.append(FRAME_HEADER.pack(size << 8, END_STREAM if ends else 0, stream.id))
        begun = queue.begun
        queue.take(size, self.out)
        self.out_bytes += size
        self.pending_bytes -= size
        self.begun_bytes += queue.begun - begun
        stream.send_window -= size
        self.window -= size
        self.sent_payload = True

    def _rest_now(self, stream: Http2Stream, queue: SendQueue) -> bool:
        """What had to wait for the data, all of which has gone out. Returns whether the stream has ended."""
        if queue.trailers is not None:
            self._headers_now(stream.id, queue.trailers, queue.ending)
            queue.trailers = None
        return queue.ending


def _join_small(pieces: list[Buffer]) -> list[Buffer]:
    """The same bytes with small neighbours joined, large pieces left alone."""
    joined: list[Buffer] = []
    run: list[Buffer] = []
    size = 0
    for piece in pieces:
        if len(piece) > _SMALL_PIECE_BYTES:
            if run:
                joined.append(run[0] if len(run) == 1 else b"".join(run))
                run, size = [], 0
            joined.append(piece)
            continue
        if size + len(piece) > _JOIN_BYTES:
            joined.append(b"".join(run))
            run, size = [], 0
        run.append(piece)
        size += len(piece)
    if run:
        joined.append(run[0] if len(run) == 1 else b"".join(run))
    return joined
