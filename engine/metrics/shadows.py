"""What shadows answered, beside what clients got. Labels come from the routes alone."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ..routing.answers import AnswersCompared
from ..routing.route import Shadow
from ..routing.shadowing import CopyDropped
from .family import MetricFamily


class CopyResult(enum.Enum):
    """What became of a copy that the shadow was asked. The value is the ``result`` label."""

    __hash__ = object.__hash__

    AGREES = "agrees"
    DIFFERS = "differs"
    FAILED = "failed"
    TIMED_OUT = "timed_out"


class ShadowRecord:
    """A route's shadow, with what is known of it by now.

    Attributes:
        results: copies that were asked, by what became of them.
        dropped: requests that were not, by why.
        greatest: difference of two numbers, of all answers compared.
        target_s, shadow_s: sums over the copies that were compared, seconds: of the latency that clients had, and of
            the shadow's.
        last: how the latest answer that did not agree was different, in words.
        shut: why no copy may be made now; None if one may.
    """

    def __init__(self, route: str, shadow: Shadow) -> None:
        self.route = route
        self.shadow = shadow
        self.results: Counter[CopyResult] = Counter()
        self.dropped: Counter[CopyDropped] = Counter()
        self.greatest = 0.0
        self.target_s = 0.0
        self.shadow_s = 0.0
        self.last = ""
        self.shut: CopyDropped | None = None

    def add(self, compared: AnswersCompared, target_s: float, shadow_s: float) -> None:
        """A copy was answered, and the answers compared."""
        self.results[CopyResult(compared.agreement.value)] += 1
        self.greatest = max(self.greatest, compared.greatest)
        self.target_s += target_s
        self.shadow_s += shadow_s
        self.last = compared.why or self.last

    def shown(self, ready: bool, waiting: int) -> dict[str, Any]:
        """For people and programs that ask for the route's state."""
        compared = sum(count for result, count in self.results.items() if result is not CopyResult.TIMED_OUT)
        return {
            "target": str(self.shadow.target),
            "ready": ready,
            "waiting": waiting,
            **{result.value: self.results[result] for result in CopyResult},
            "dropped": {reason.value: count for reason, count in self.dropped.items()},
            "greatest_difference": self.greatest,
            "last_difference": self.last,
            "target_ms": round(1e3 * self.target_s / compared, 3) if compared else 0.0,
            "shadow_ms": round(1e3 * self.shadow_s / compared, 3) if compared else 0.0,
        }


def shadow_families(records: Iterable[ShadowRecord]) -> Iterator[MetricFamily]:
    """Copies by result, requests without a copy by reason, the greatest difference, and latencies side by side."""
    copies = MetricFamily("trireme_route_shadow_copies_total", "Number of copies that a shadow was asked", "counter")
    dropped = MetricFamily("trireme_route_shadow_dropped_total", "Number of requests without a copy", "counter")
    greatest = MetricFamily(
        "trireme_route_shadow_greatest_difference", "Greatest difference of two numbers in answers compared", "gauge"
    )
    seconds = MetricFamily(
        "trireme_route_shadow_latency_seconds_total",
        "Sums of the latency of requests whose answers were compared, of the target and of the shadow",
        "counter",
    )
    for record in records:
        labels = {"route": record.route, "shadow": str(record.shadow.target)}
        for result in CopyResult:
            copies.add({**labels, "result": result.value}, record.results[result])
        for reason in CopyDropped:
            dropped.add({**labels, "reason": reason.value}, record.dropped[reason])
        greatest.add(labels, record.greatest)
        seconds.add({**labels, "of": "target"}, record.target_s)
        seconds.add({**labels, "of": "shadow"}, record.shadow_s)
    yield from (copies, dropped, greatest, seconds)
