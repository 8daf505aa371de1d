"""What an ensemble counts for itself (docs/reference/statistics.md#what-each-event-counts). Its members count their own
requests.

A request that succeeds is one execution of its own batch size; its compute times are the sums over its steps, side by
side or not, and its queue time is what passed before its steps began. One that fails counts twice, as in Triton: once
for the failure of the step and once for the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import FailureReason
from ..job import Job, Phase, SealReason
from ..metrics.statistics import ModelStatistics


@dataclass(slots=True)
class ComputeTimes:
    """Sums over the steps of one request, in nanoseconds."""

    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def add(self, marks: Sequence[int]) -> None:
        """A member has answered a step, finally and without an error.

        Args:
            marks: of the execution that the step was part of, by `Phase`.
        """
        self.input_ns += max(0, marks[Phase.INFER_START] - marks[Phase.COMPUTE_START])
        self.infer_ns += max(0, marks[Phase.OUTPUT_START] - marks[Phase.INFER_START])
        self.output_ns += max(0, marks[Phase.COMPUTE_END] - marks[Phase.OUTPUT_START])

    def marks(self, start_ns: int) -> list[int]:
        """The sums as marks, by `Phase`, of one execution that starts at `start_ns`; they may end after the request."""
        infer_ns = start_ns + self.input_ns
        output_ns = infer_ns + self.infer_ns
        return [start_ns, infer_ns, output_ns, output_ns + self.output_ns]


def record_success(
    statistics: ModelStatistics, job: Job, times: ComputeTimes, start_ns: int, released_ns: int, wall_ms: int
) -> None:
    """A request to an ensemble succeeded.

    Args:
        statistics: the ensemble's.
        start_ns: when its first steps began.
        released_ns: when its final answer went out.
    """
    marks = times.marks(start_ns)
    statistics.record_execution(job.rows, marks, wall_ms, SealReason.UNBATCHED)
    statistics.record_successes([(job.received_ns, job.enqueued_ns, job.rows)], marks, released_ns)


def record_failure(statistics: ModelStatistics, job: Job, released_ns: int) -> None:
    """A request to an ensemble failed, or was cancelled."""
    for _ in range(2):
        statistics.record_failure(job.received_ns, released_ns, FailureReason.OTHER)
