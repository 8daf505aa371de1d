"""The client's side of an HTTP/2 connection, for gRPC, without I/O: requests in, answers out (see `endpoint`).

Rule 1: A request is begun while there `has_room`: the server says how many streams may be open. Before it has said
        so, a hundred may be. What has no room is for the owner to keep.
Rule 2: An answer is told by `HeadReceived`, any number of `DataReceived`, and `HeadReceived` or the last data with
        `end_stream`; or by one `AnswerReceived`, whose data need not be reported as consumed. Interim answers (1xx) are
        dropped.
Rule 3: An answer that ends before its request is complete ends the request, too: what is left of it is not sent.
Rule 4: A server that leaves is given no more requests. Those that it has surely not looked at are reset with
        REFUSED_STREAM, the others are waited for. Then the connection is `terminated`.
Rule 5: Ids of streams do not begin anew: when they are used up, nothing has room, as if the server had left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from ...engine.tensor import Buffer
from . import frames
from .core import announcement
from .endpoint import KEEPALIVE_PING, Http2Endpoint
from .frames import (
    HEADERS,
    MAX_STREAM_ID,
    AnswerReceived,
    ConnectionFault,
    ErrorCode,
    Farewell,
    H,
    HeadReceived,
    Http2Event,
    PeerLeaves,
    RequestBlock,
    StreamFault,
    StreamReset,
    Terminated,
)
from .headers import Field, HeaderReader, check_answer
from .keepalive import Due
from .limits import Http2Limits
from .reader import FrameReader
from .streams import Http2Stream

_STREAMS_AT_FIRST = 100
_SHOWN_BYTES = 256


@dataclass(slots=True, eq=False)
class ClientStream(Http2Stream):
    """A stream that this side has opened.

    Attributes:
        said: the request is complete, and went out.
        begun: the answer's headers have come.
    """

    said: bool = False
    begun: bool = False


class Http2Client(Http2Endpoint[H]):
    """One connection.

    Args:
        parse_head: makes of the header list of an answer, or of its trailers, what it means to the owner. Called once
            for equal blocks, as long as they stand for the same; so the result must be immutable.

    Attributes:
        settled: the server's first SETTINGS have come.
    """

    peer = "server"

    def __init__(self, limits: Http2Limits, parse_head: Callable[[Sequence[Field]], H], now_s: float) -> None:
        def parse(fields: Sequence[Field]) -> tuple[int, H]:
            name, value = fields[0] if fields else (b"", b"")
            return int(value) if name == b":status" else 0, parse_head(fields)

        preface = frames.PREFACE + announcement(limits, (frames.ENABLE_PUSH, 0))
        heads: HeaderReader[tuple[int, H]] = HeaderReader(limits, parse, check_answer)
        super().__init__(limits, preface, FrameReader(limits, from_server=True), now_s)
        self._heads = heads
        self._requests = cast("dict[int, ClientStream]", self._open)
        self._next_id = 1
        self._most_open = min(_STREAMS_AT_FIRST, limits.max_concurrent_streams)  # 0 when it winds up
        self.settled = False

    # ---- requests ----

    @property
    def has_room(self) -> bool:
        """Another request may be begun (rule 1)."""
        return len(self._open) < self._most_open

    @property
    def winds_up(self) -> bool:
        """No more requests will be begun (rules 4 and 5)."""
        return self._winds_up or self.terminated or self._next_id > MAX_STREAM_ID

    def _bound(self, most_open: int) -> None:
        """So many streams may be open, of a connection that does not wind up."""
        self._most_open = 0 if self.winds_up else most_open

    @property
    def open_streams(self) -> int:
        """Requests whose answers are not complete."""
        return len(self._open)

    def request(self, block: RequestBlock, parts: Sequence[Buffer], size: int, end_stream: bool = True) -> int:
        """Begins a request: headers and `size` bytes of data, after which `send_data` may send more, unless they end
        it. To be called only if there `has_room`. Returns the stream's id."""
        stream_id = self._streams.highest = self._next_id
        self._next_id += 2
        if self._next_id > MAX_STREAM_ID:
            self._bound(0)
        sender = self._sender
        stream = ClientStream(stream_id, False, self._limits.stream_window_bytes, sender.initial_window)
        self._open[stream_id] = stream
        self._unended += 1
        if sender.ask(stream, block, parts, size, end_stream):
            stream.said = True
        return stream_id

    # ---- the connection ----

    def retire(self) -> None:
        """Begins no more requests; what is open is finished."""
        self._winds_up = True
        self._bound(0)
        if not self._open:
            self._end()

    def tick(self, now_s: float) -> list[Http2Event[H]]:
        """Does what time demands."""
        if self.terminated:
            return []
        self._note_payload()
        for due in self._keepalive.due(now_s, len(self._open)):
            if due is Due.PING:
                self._queue(frames.ping(KEEPALIVE_PING))
            elif due is Due.DEAD:
                self.abort(ErrorCode.NO_ERROR, "keepalive_timeout")
                return [Terminated(ErrorCode.NO_ERROR, "the server does not answer to PING")]
        self._set_timer()
        return []

    def _last_accepted(self) -> int:
        return 0

    def __repr__(self) -> str:
        state = "terminated" if self.terminated else "winding up" if self.winds_up else "open"
        return f"<Http2Client: {state}, {len(self._open)} open>"

    # ---- streams ----

    def _said_all(self, stream: Http2Stream) -> None:
        cast("ClientStream", stream).said = True

    def _drops_data(self, stream: Http2Stream) -> bool:
        return False

    def _nothing_open(self) -> None:
        self._end()

    def _ended(self, stream: ClientStream) -> None:
        """The answer is complete (rule 3)."""
        if stream.said:
            self._close(stream)
        else:
            self._cut(stream, ErrorCode.NO_ERROR)
        if self.terminated:
            raise Farewell

    # ---- frames (see `layouts.FrameSink`) ----

    def on_headers(self, stream_id: int, block: bytes, end_stream: bool) -> None:
        try:
            status, head = self._heads.heads.get(block) or self._heads.read(block)
        except StreamFault as fault:
            self._break(stream_id, fault.code)
            return
        stream = self._requests.get(stream_id)
        if stream is None:
            self._misfit(stream_id, HEADERS)
            return
        if stream.begun:
            legal = end_stream and not status
        else:
            legal = status >= 200 or (status > 0 and not end_stream)
            if legal and status < 200:
                self._meaningless.spend(self._now_s)
                return
        if not legal:
            self._break(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        stream.begun = True
        self._events.append(HeadReceived(stream_id, head, end_stream))
        if end_stream:
            stream.ended = True
            self._unended -= 1
            self._ended(stream)

    def on_data(self, stream_id: int, piece: bytes | memoryview, charge: int, left: int, end_stream: bool) -> None:
        stream = self._requests.get(stream_id)
        if stream is not None and not stream.begun:
            self._break(stream_id, ErrorCode.PROTOCOL_ERROR)
        super().on_data(stream_id, piece, charge, left, end_stream)
        if end_stream and stream is not None and stream.ended and stream_id in self._open:
            self._ended(stream)

    def on_answer(self, stream_id: int, block: bytes, piece: bytes, trailers: bytes) -> None:
        heads, size, stream = self._heads.heads, len(piece), self._requests.get(stream_id)
        head, tail = heads.get(block), heads.get(trailers)
        if (
            head is None
            or tail is None
            or stream is None
            or stream.begun
            or not stream.said
            or head[0] < 200
            or tail[0]
            or not size
            or size > self._connection_left
            or size > stream.receive_left
        ):
            super().on_answer(stream_id, block, piece, trailers)
            return
        self._connection_left -= size
        self._connection_returned += size
        if self._connection_returned >= self._half_window:
            self._give_back(0)
        self._events.append(AnswerReceived(stream_id, head[1], piece, tail[1]))
        del self._open[stream_id]
        self._unended -= 1
        if stream.queue is not None:
            self._sender.forget(stream)
        if self._winds_up and not self._open:
            self._end()
            raise Farewell

    def _end(self) -> None:
        super()._end()
        self._bound(0)

    def _on_goaway(self, last_stream_id: int, code: ErrorCode, debug: bytes) -> None:
        self._bound(0)
        self._events.append(PeerLeaves(code, debug[:_SHOWN_BYTES].decode("utf-8", "replace")))
        for stream in list(self._open.values()):
            if stream.id > last_stream_id:
                self._events.append(StreamReset(stream.id, ErrorCode.REFUSED_STREAM))
                self._close(stream)
        if not self._open and not self.terminated:
            self._end()

    def _on_settings(self, values: dict[int, int]) -> None:
        if values.get(frames.ENABLE_PUSH):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is 1, expected 0")
        most = self._limits.max_concurrent_streams
        if not self.settled:
            self.settled = True
            self._bound(most)
        if frames.MAX_CONCURRENT_STREAMS in values:
            self._bound(min(most, values[frames.MAX_CONCURRENT_STREAMS]))
        super()._on_settings(values)
