"""What a person who watches a server sees of single batches and requests: some of each model, as they were executed.

Rules:
 1. While there are no windows, a batch costs one look at a number. A window takes in `left` batches, the next ones
    after `skip` others, and is closed then.
 2. What is kept holds no tensor and no client's text: times, sizes, reasons.
 3. Requests that a batch of a window has answered are noted with it. The others (refused, failed, answered from the
    cache, by an ensemble or while other batches run, as those of decoupled models are) are noted by themselves while
    it is `watched`: the first `MOST_ENDED` between two windows. All of them that have not succeeded are counted.
 4. Of a window too small for all batches, the place among them is spread evenly (`place_window`), so that what is
    measured in windows, such as percentiles, is measured at all times alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import FailureReason, RefusalReason, TriremeError

if TYPE_CHECKING:
    from ..job import ExecutionBatch, Job

MOST_REQUESTS = 32
"""Of one batch whose times are kept."""
MOST_ENDED = 32
"""Requests that are noted by themselves between two windows."""
SUCCEEDED = ""
FROM_CACHE = "cached"
"""Results of requests that have succeeded: by an execution, and from the cache."""

_GOLDEN = 0.6180339887498949


class TappedBatch(NamedTuple):
    """One execution.

    Attributes:
        number: of the executions of its model version, from 1.
        sealed: why the batch was closed, as `SealReason.value`.
        marks: nanoseconds; compute start, infer start, output start, compute end.
        over_ns: when its answers were ready to go out.
        requests: received and queued, nanoseconds, of at most `MOST_REQUESTS` that it has answered with a response.
        request_count: how many requests were in it.
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


class TappedRequest(NamedTuple):
    """A request by itself.

    Attributes:
        received_ns: when the server took it.
        start_ns: when its execution began; -1 if it has not.
        end_ns: when its last response, or its error, was there; -1 if it is open.
        result: `SUCCEEDED`, `FROM_CACHE`, or what went wrong, in words.
        instance: that executes it; empty for none.
    """

    received_ns: int
    start_ns: int
    end_ns: int
    result: str = SUCCEEDED
    instance: str = ""


class BatchTap:
    """Of one model version.

    Attributes:
        left: batches that the window still takes in; 0 while there is none.
        skip: batches before these.
        watched: requests are to be noted.
        unanswered: requests that have ended without success while it was watched, less those that were counted as
            successes and are executed again: what to add to the successes to get all that have ended.
    """

    __slots__ = ("_requests", "_taken", "left", "skip", "unanswered", "watched")

    def __init__(self) -> None:
        self.left = 0
        self.skip = 0
        self.watched = False
        self.unanswered = 0
        self._taken: list[TappedBatch] = []
        self._requests: list[TappedRequest] = []

    def open(self, skip: int, most: int) -> None:
        """A new window, instead of the one before."""
        self.skip, self.left, self.watched = skip, most, True

    def close(self) -> None:
        """No window; what was taken in is dropped."""
        self.left, self.watched = 0, False
        self._taken, self._requests = [], []

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
        some = batch.rescheduled or (batch.answers and succeeded < len(jobs))
        answered = _answered(batch) if some else jobs
        times = [(job.received_ns, job.enqueued_ns) for job in answered[:MOST_REQUESTS]]
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

    def note_request(
        self,
        received_ns: int,
        end_ns: int,
        why: TriremeError | RefusalReason | None = None,
        start_ns: int = -1,
        instance: str = "",
        times: int = 1,
    ) -> None:
        """A request has ended, and no batch will tell of it; while it is watched.

        Args:
            why: it has not succeeded; None if it has, which without an execution means that the cache had its answer.
            times: there were so many alike; one of them is noted.
        """
        if why is not None:
            self.unanswered += times
        if len(self._requests) < MOST_ENDED:
            result = _result(why) if why is not None else FROM_CACHE if start_ns < 0 else SUCCEEDED
            self._requests.append(TappedRequest(received_ns, start_ns, end_ns, result, instance))

    def take_requests(self) -> list[TappedRequest]:
        """As `take`, of requests by themselves."""
        taken, self._requests = self._requests, []
        return taken

    def take(self) -> list[TappedBatch]:
        """What was taken in since the last call, oldest first."""
        taken, self._taken = self._taken, []
        return taken


def _answered(batch: ExecutionBatch) -> list[Job]:
    """Those of its requests that have a response."""
    ended = ((job, outcome) for job, outcome, final in batch.answers if final and not job.is_null)
    return [job for job, outcome in ended if not isinstance(outcome, TriremeError)]


def _result(why: TriremeError | RefusalReason) -> str:
    if isinstance(why, RefusalReason):
        return f"refused: {why.value.replace('_', ' ')}"
    if why.refusal_counted and why.refusal_reason is not None:
        return _result(why.refusal_reason)
    return "failed" if why.reason is FailureReason.OTHER else f"failed: {why.reason.value.lower()}"


def place_window(expected: int, most: int, turn: int) -> int:
    """How many batches to skip before a window (rule 4).

    Args:
        expected: batches until the next window.
        most: that this one takes in.
        turn: number of the window.
    """
    return int(turn * _GOLDEN % 1.0 * (expected - most)) if expected > most else 0
