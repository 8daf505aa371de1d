"""What clients have seen of a server: for each request, and in sum."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..engine.logs.request_log import RequestTraffic

UNANSWERED = -1
"""Status of a request whose connection broke, or that was not answered in time."""

_LATE_S = 0.001


@dataclass(frozen=True, slots=True)
class PlayedSummary:
    """Of the requests that count.

    Attributes:
        seconds: from the first request's time to the last answer.
        offered: requests a second that were due.
        throughput: good answers a second.
        goodput: good answers a second within the objective; all good ones without one.
        answered, refused, unanswered: how many; each request is one of them.
        mean_s, p50_s, p95_s, p99_s, most_s: latencies of good answers; NaN if there are none.
        late: requests that were sent more than 1 ms after their time; their latencies count from their time all the
            same.
        reasons: of those that were not answered well, the most frequent first.
    """

    requests: int
    seconds: float
    offered: float
    throughput: float
    goodput: float
    answered: int
    refused: int
    unanswered: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    most_s: float
    late: int
    reasons: tuple[tuple[str, int], ...]

    def document(self) -> dict[str, Any]:
        """As JSON: what is not a number is None."""
        values = asdict(self)
        return {name: None if value != value else value for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class PlayedLog:
    """A log that was played.

    Attributes, with an entry for each request, in the order of the log:
        scheduled_s: when it was due, from the first moment; in a closed loop, when its client had thought.
        sent_s: when it was sent.
        latency_s: from when it was due to its answer; NaN for none.
        status: 0 for a good answer, `UNANSWERED`, or the protocol's status.
        reason: index of `reasons`.
    """

    traffic: RequestTraffic
    scheduled_s: np.ndarray
    sent_s: np.ndarray
    latency_s: np.ndarray
    status: np.ndarray
    reason: np.ndarray
    reasons: list[str]

    @property
    def since_sent_s(self) -> np.ndarray:
        """From when each request was sent, however late, to its answer; NaN for none."""
        return self.latency_s - (self.sent_s - self.scheduled_s)

    def summary(self, objective_s: float | None = None, warm_up_s: float = 0.0) -> PlayedSummary:
        """Figures.

        Args:
            objective_s: how long an answer may take to count as goodput.
            warm_up_s: requests that were due before that do not count.
        """
        counts = self.scheduled_s >= warm_up_s
        scheduled, latency, status = self.scheduled_s[counts], self.latency_s[counts], self.status[counts]
        good = latency[status == 0]
        ends = (scheduled + np.nan_to_num(latency)).max(initial=0.0)
        seconds = float(max(ends - scheduled.min(initial=ends), 1e-9))
        p50, p95, p99 = np.percentile(good, (50, 95, 99)) if len(good) else (np.nan,) * 3
        failed = Counter(str(self.reasons[at]) for at in self.reason[counts & (self.status != 0)])
        within = good if objective_s is None else good[good <= objective_s]
        return PlayedSummary(
            requests=len(scheduled),
            seconds=seconds,
            offered=len(scheduled) / seconds,
            throughput=len(good) / seconds,
            goodput=len(within) / seconds,
            answered=len(good),
            refused=int(np.count_nonzero(status > 0)),
            unanswered=int(np.count_nonzero(status == UNANSWERED)),
            mean_s=float(good.mean()) if len(good) else float("nan"),
            p50_s=float(p50),
            p95_s=float(p95),
            p99_s=float(p99),
            most_s=float(good.max()) if len(good) else float("nan"),
            late=int(np.count_nonzero(self.sent_s[counts] - scheduled > _LATE_S)),
            reasons=tuple(failed.most_common()),
        )

    def lines(self) -> Iterator[str]:
        """Each request's result as a line of JSON, ended."""
        columns = zip(
            self.traffic.requests,
            self.scheduled_s.tolist(),
            self.sent_s.tolist(),
            self.latency_s.tolist(),
            self.status.tolist(),
            self.reason.tolist(),
            strict=True,
        )
        for request, scheduled_s, sent_s, latency_s, status, reason in columns:
            told: dict[str, Any] = {
                "scheduled_s": round(scheduled_s, 6),
                "sent_s": round(sent_s, 6),
                "latency_s": None if latency_s != latency_s else round(latency_s, 6),
                "model": request.model,
                "rows": request.rows,
                "status": status,
            }
            if status:
                told["reason"] = self.reasons[reason]
            yield json.dumps(told, separators=(",", ":")) + "\n"
