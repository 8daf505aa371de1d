"""Streams: the state machine of RFC 9113 §5.1, as far as a server that never pushes can see it.

Rule 1: Ids of streams are odd and increase. A stream exists from its HEADERS on; lower ids that were never used count
        as closed.
Rule 2: A request is HEADERS, any number of DATA, and possibly trailers, which must end it.
Rule 3: When the server has said everything, the stream is closed. If the client has not, it is told to stop by
        RST_STREAM(NO_ERROR), as RFC 9113 §8.1 provides.
Rule 4: A client may not yet know that the server has closed a stream. What it still sends there is ignored, as long as
        the id is remembered (CUT); only its data counts against the connection's window, and is given back.
Rule 5: Nothing is remembered of streams that the client knows to be closed (CLOSED).

        HEADERS            DATA, END_STREAM           answered, or reset by either side
    IDLE ─────▶ OPEN ─────────────────▶ ENDED ──────────────────▶ CLOSED
      │           └────── answered, or reset by the server ─────▶ CUT
      └─ HEADERS with END_STREAM ─────▶ ENDED

`MISFITS` says how a frame is treated that does not fit the state of its stream. What is not in it is legal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from ...engine.tensor import Buffer
from .errors import ErrorCode
from .frames import DATA, HEADERS, RST_STREAM, WINDOW_UPDATE


class State(Enum):
    """What a stream is, seen from the frames that the client sends on it."""

    IDLE = "idle"
    OPEN = "open"
    ENDED = "ended"
    CUT = "cut"
    CLOSED = "closed"


class Verdict(Enum):
    """How a frame that does not fit is treated."""

    IGNORE = "ignore"
    RESET_STREAM = "reset stream"
    END_CONNECTION = "end connection"


MISFITS: Mapping[tuple[State, int], tuple[Verdict, ErrorCode]] = {
    (State.IDLE, DATA): (Verdict.END_CONNECTION, ErrorCode.PROTOCOL_ERROR),
    (State.IDLE, RST_STREAM): (Verdict.END_CONNECTION, ErrorCode.PROTOCOL_ERROR),
    (State.IDLE, WINDOW_UPDATE): (Verdict.END_CONNECTION, ErrorCode.PROTOCOL_ERROR),
    (State.ENDED, DATA): (Verdict.RESET_STREAM, ErrorCode.STREAM_CLOSED),
    (State.ENDED, HEADERS): (Verdict.RESET_STREAM, ErrorCode.STREAM_CLOSED),
    (State.CUT, DATA): (Verdict.IGNORE, ErrorCode.NO_ERROR),
    (State.CUT, HEADERS): (Verdict.IGNORE, ErrorCode.NO_ERROR),
    (State.CUT, RST_STREAM): (Verdict.IGNORE, ErrorCode.NO_ERROR),
    (State.CUT, WINDOW_UPDATE): (Verdict.IGNORE, ErrorCode.NO_ERROR),
    (State.CLOSED, DATA): (Verdict.RESET_STREAM, ErrorCode.STREAM_CLOSED),
    (State.CLOSED, HEADERS): (Verdict.RESET_STREAM, ErrorCode.STREAM_CLOSED),
    (State.CLOSED, RST_STREAM): (Verdict.IGNORE, ErrorCode.NO_ERROR),
    (State.CLOSED, WINDOW_UPDATE): (Verdict.IGNORE, ErrorCode.NO_ERROR),
}
"""By the stream's state and the frame's type. PRIORITY is legal anywhere and means nothing.

HEADERS on a CLOSED stream are thought to be trailers. If they open a request, an id was used twice, or ids went
backwards, and that ends the connection (RFC 9113 §5.1.1).
"""


class Stream:
    """An open stream: OPEN, or ENDED once `ended`.

    Attributes:
        ended: the client has sent END_STREAM.
        receive_left: bytes that the client may still send.
        unconsumed: bytes delivered and not yet reported as consumed.
        lends: `Http2Server.hold` is in force.
        lent: how much of `unconsumed` has been given back to the connection's window all the same.
        returned: bytes consumed and not yet given back to the client's window.
        send_window: bytes that the server may send; negative after a client has shrunk its initial window.
        queue: what waits for that window, or for the connection's; None as long as nothing had to wait.
    """

    __slots__ = ("ended", "id", "lends", "lent", "queue", "receive_left", "returned", "send_window", "unconsumed")

    def __init__(self, stream_id: int, ended: bool, receive_left: int, send_window: int) -> None:
        self.id = stream_id
        self.ended = ended
        self.receive_left = receive_left
        self.unconsumed = 0
        self.lends = False
        self.lent = 0
        self.returned = 0
        self.send_window = send_window
        self.queue: SendQueue | None = None


class Streams:
    """Every stream of a connection: the open ones, and what is remembered of others.

    Attributes:
        open: open streams by their ids.
        highest: the highest id that was used.
    """

    def __init__(self, max_remembered: int) -> None:
        self.open: dict[int, Stream] = {}
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


class SendQueue:
    """Parts of a stream's data that wait for windows, then perhaps its end.

    Attributes:
        pending: bytes of data that wait.
        begun: bytes of the first part that do not wait any more; they are in memory as long as the rest of it is.
        ending: the stream ends after the data, with `trailers` or, if there are none, with the last DATA frame.
    """

    __slots__ = ("_first", "_parts", "begun", "ending", "pending", "trailers")

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self._first = 0
        self.pending = 0
        self.begun = 0
        self.ending = False
        self.trailers: bytes | None = None

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
