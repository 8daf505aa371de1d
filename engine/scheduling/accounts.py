"""What a scheduler counts of requests that were accepted: executions, successes, failures, each once
(docs/reference/statistics.md)."""

from __future__ import annotations

from ..clock import Clock
from ..errors import TriremeError
from ..execution import ExecutionBatch
from ..job import Job, Outcome
from ..metrics.statistics import ModelStatistics


class Accounts:
    """Keeps a model's statistics."""

    __slots__ = ("_clock", "_statistics")

    def __init__(self, statistics: ModelStatistics, clock: Clock) -> None:
        self._statistics = statistics
        self._clock = clock

    def rejected(self, job: Job, error: TriremeError) -> None:
        """A request that waited is answered with an error."""
        self._statistics.pending -= 1
        self._statistics.record_failure(job.received_ns, self._clock.now_ns(), error.reason)

    def over(self, batch: ExecutionBatch) -> None:
        """A batch is over. Those of its requests that are executed again wait again, since now."""
        statistics, clock, marks = self._statistics, self._clock, batch.marks
        statistics.record_execution(batch.rows, marks, clock.wall_ms(), batch.sealed, batch.gpu)
        if batch.reported is not None:
            statistics.record_responses(batch.take_reported())
        succeeded: list[tuple[int, int, int]] = []
        for job, outcome, final in batch.answers:
            if final and not isinstance(outcome, TriremeError) and not job.is_null:
                succeeded.append((job.received_ns, job.enqueued_ns, job.rows))
        if batch.rescheduled:
            succeeded += [(job.received_ns, job.enqueued_ns, job.rows) for job in batch.rescheduled]
        if succeeded:
            statistics.record_successes(succeeded, marks, clock.now_ns(), batch.gpu)
        for job in batch.rescheduled:
            job.batch = None
            job.enqueued_ns = clock.now_ns()
            statistics.pending += 1

    def failed(self, job: Job, error: TriremeError, gpu: int | None) -> None:
        """A request is answered with what its execution has raised."""
        self._statistics.record_failure(job.received_ns, self._clock.now_ns(), error.reason, gpu)

    def answered(self, job: Job, outcome: Outcome, final: bool) -> None:
        """A decoupled model has answered a request. An error that is not the end of it is one of its responses."""
        statistics, now_ns = self._statistics, self._clock.now_ns()
        if not job.responded and outcome is not None:
            job.responded = True
            statistics.record_first_response(job.received_ns, now_ns)
        batch = job.batch
        if batch is not None:
            batch.heard = True
            if batch.reported is not None:
                statistics.record_responses(batch.take_reported())
        if not final:
            return
        if isinstance(outcome, TriremeError):
            statistics.record_failure(job.received_ns, now_ns, outcome.reason, None if batch is None else batch.gpu)
            return
        assert batch is not None, "only what is executed succeeds"
        requests = [(job.received_ns, job.enqueued_ns, job.rows)]
        statistics.record_successes(requests, batch.marks_until(now_ns), now_ns, batch.gpu)
