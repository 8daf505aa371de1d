"""How long the responses of decoupled models take, one by one: ``response_stats`` (docs/reference/statistics.md).

Only a backend knows when work on a response began, so these exist only where it reports them
(`Job.report_response`). They are kept by index: the first responses of all requests together, then the second ones.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

MAX_INDICES = 4_096
"""Responses of a request that are told apart; what is reported for later ones is dropped."""


@dataclass(slots=True)
class Duration:
    """How often, and for how long altogether."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, times: int = 1) -> None:
        self.count += times
        self.ns += ns * times


class ResponseOutcome(enum.Enum):
    """What became of a response."""

    SUCCESS = "success"
    FAIL = "fail"
    EMPTY = "empty_response"  # only says that no more responses follow
    CANCEL = "cancel"  # the request was cancelled before


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    """One response, as its backend reports it.

    Attributes:
        index: which one of its request, from 0.
        start_ns: when work on it began.
        output_start_ns: when it was computed, and its tensors were being copied; of no meaning for responses that are
            empty or cancelled.
        end_ns: when it was handed over.
    """

    index: int
    outcome: ResponseOutcome
    start_ns: int
    output_start_ns: int
    end_ns: int


@dataclass(slots=True)
class ResponseStatistics:
    """The responses of one index. An empty one counts as computed, a cancelled one does not."""

    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    empty_response: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)

    def record(self, times: ResponseTimes) -> None:
        """Count a response. Times that go backwards count as none."""
        total_ns = max(0, times.end_ns - times.start_ns)
        match times.outcome:
            case ResponseOutcome.CANCEL:
                self.cancel.add(total_ns)
            case ResponseOutcome.EMPTY:
                self.compute_infer.add(total_ns)
                self.empty_response.add(total_ns)
            case _:
                infer_ns = min(total_ns, max(0, times.output_start_ns - times.start_ns))
                self.compute_infer.add(infer_ns)
                self.compute_output.add(total_ns - infer_ns)
                (self.success if times.outcome is ResponseOutcome.SUCCESS else self.fail).add(total_ns)


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Memory that a backend reports for a model version.

    Attributes:
        type: ``CPU``, ``CPU_PINNED`` or ``GPU``.
    """

    type: str
    id: int
    byte_size: int
