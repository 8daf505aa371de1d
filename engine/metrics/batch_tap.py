"""What a person who watches a server sees of single batches: some of each model, as they were executed.

Rules:
 1. While there are no windows, a batch costs one look at a number. A window takes in `left` batches, the next ones
    after `skip` others, and is closed then.
 2. What is kept holds no tensor and no client's text: times, sizes, reasons.
 3. Of requests to decoupled models, which are answered while other batches run, so many are noted between two windows
    as there is `room` for, the first ones.
 4. Of a window too small for all batches, the place among them is spread evenly (`place_window`), so that what is
    measured in windows, such as percentiles, is measured at all times alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..job import ExecutionBatch

MOST_REQUESTS = 32
"""Of one batch whose times are kept."""
MOST_STREAMS = 32
"""Requests to a decoupled model that are noted between two windows."""

_GOLDEN = 0.6180339887498949


class TappedBatch(NamedTuple):
    """One execution.

    Attributes:
        number: of the executions of its model version, from 1.
        sealed: why the batch was closed, as `SealReason.value`.
        marks: nanoseconds; compute start, infer start, output start, compute end.
        over_ns: when its answers were ready to go out.
        requests: received and queued, nanoseconds, of at most `MOST_REQUESTS`.
        request_count: how many there are.
        failed: those that were answered with an error.
        slots: places of the requests in the batch; empty if it has no gaps.
    """

    number: int
    instance: str
    gpu: int | None
    rows: int
    sealed: str
    marks: tuple[int, int, int, int]
    over_ns: int
    requests: Sequence[tuple[int, int]]
    request_count: int
    failed: int
    slots: Sequence[int] = ()


class TappedStream(NamedTuple):
    """A request to a decoupled model that has its last response.

    Attributes:
        start_ns: when its execution began.
        end_ns: when the last response came.
        failed: that was an error.
    """

    instance: str
    start_ns: int
    end_ns: int
    failed: bool


class BatchTap:
    """Of one model version.

    Attributes:
        left: batches that the window still takes in; 0 while there is none.
        skip: batches before these.
        room: for streams.
    """

    __slots__ = ("_streams", "_taken", "left", "room", "skip")

    def __init__(self) -> None:
        self.left = 0
        self.skip = 0
        self.room = 0
        self._taken: list[TappedBatch] = []
        self._streams: list[TappedStream] = []

    def open(self, skip: int, most: int) -> None:
        """A new window, instead of the one before."""
        self.skip, self.left, self.room = skip, most, MOST_STREAMS

    def close(self) -> None:
        """No window; what was taken in is dropped."""
        self.left = self.room = 0
        self._taken, self._streams = [], []

    def note(self, batch: ExecutionBatch, number: int, over_ns: int, succeeded: int) -> None:
        """A batch is over, while there is a window.

        Args:
            number: see `TappedBatch`.
            succeeded: requests of it that were answered with a response.
        """
        if self.skip:
            self.skip -= 1
            return
        self.left -= 1
        start, infer, output, end = batch.marks
        jobs = [job for job in batch.jobs if not job.is_null]
        gaps = len(jobs) < len(batch.jobs)
        times = [(job.received_ns, job.enqueued_ns) for job in jobs[:MOST_REQUESTS]]
        self._taken.append(
            TappedBatch(
                number,
                batch.instance_name,
                batch.gpu,
                batch.rows,
                batch.sealed.value,
                (start, infer, output, end),
                over_ns,
                times,
                len(jobs),
                len(jobs) - succeeded if batch.answers else 0,
                [at for at, job in enumerate(batch.jobs) if not job.is_null] if gaps else (),
            )
        )

    def note_stream(self, instance: str, start_ns: int, end_ns: int, *, failed: bool) -> None:
        """A request has its last response, while there is room."""
        self.room -= 1
        self._streams.append(TappedStream(instance, start_ns, end_ns, failed))

    def take_streams(self) -> list[TappedStream]:
        """As `take`, of streams."""
        taken, self._streams = self._streams, []
        return taken

    def take(self) -> list[TappedBatch]:
        """What was taken in since the last call, oldest first."""
        taken, self._taken = self._taken, []
        return taken


def place_window(expected: int, most: int, turn: int) -> int:
    """How many batches to skip before a window (rule 4).

    Args:
        expected: batches until the next window.
        most: that this one takes in.
        turn: number of the window.
    """
    return int(turn * _GOLDEN % 1.0 * (expected - most)) if expected > most else 0
