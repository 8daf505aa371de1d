"""Whether a new target is worse than the ones before it, from what is seen of both.

Rules:
 1. Three things are compared: failed requests, latency and time in queues. For each, a request of the new target either
    counts against it or does not: it failed; it took longer than the others' 99th percentile times what is allowed.
 2. If the new target were as it should be, few requests would count against it; if it were worse than is allowed, more.
    Each request makes one of the two more probable (Wald's sequential test). As soon as one is `_SURE` times as
    probable as the other, the matter is decided: so a bad target is found out in few requests, and a good one is not
    accused by chance.
 3. The worse case of failures: as many more than the others have as is allowed. The better case: a quarter of that.
 4. Times: one in a hundred of the others' requests takes longer than their 99th percentile. The worse case is that two
    in a hundred of the new target's take longer than that times what is allowed, the better case that one in two
    hundred does.
 5. Failed requests say nothing about times. Times are compared once the others have had `_KNOWN` requests; the mark
    is found anew each time that the others have had a hundred more, from their latest `_KEPT`.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass, field

from .route import CanaryLimits

_SURE = math.log(1e5)
_KNOWN = 300
_KEPT = 4_000
_BEYOND = 0.01
_LEAST_FAILED = 0.001


class CanaryVerdict(enum.Enum):
    """Of a comparison."""

    OPEN = "open"
    FINE = "fine"
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class TargetOutcome:
    """Of one request that a target has answered.

    Attributes:
        failed: it was answered with an error that is not the client's.
        latency_s, queue_s: seconds; the second is a part of the first.
    """

    failed: bool
    latency_s: float = 0.0
    queue_s: float = 0.0


@dataclass(slots=True)
class _Likelihood:
    """Rule 2: the logarithm of how much more probable the worse case is. It does not fall below what decides, so that
    a target that becomes worse later is found out as soon."""

    value: float = 0.0
    seen: int = 0
    against: int = 0
    verdict: CanaryVerdict = CanaryVerdict.OPEN

    def add(self, counts: bool, better: float, worse: float) -> None:
        self.seen += 1
        self.against += counts
        self.value += math.log(worse / better) if counts else math.log((1 - worse) / (1 - better))
        if self.value >= _SURE:
            self.verdict = CanaryVerdict.WORSE
        elif self.value <= -_SURE:
            self.value = -_SURE
            if self.verdict is CanaryVerdict.OPEN:
                self.verdict = CanaryVerdict.FINE


@dataclass(slots=True)
class _Times:
    """Rules 4 and 5, for latency or time in queues.

    Attributes:
        what: is compared.
        times: the 99th percentile that is allowed.
        slack_s: and what is allowed besides.
    """

    what: str
    times: float
    slack_s: float
    kept: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    unseen: int = 0
    p99_s: float | None = None
    likelihood: _Likelihood = field(default_factory=_Likelihood)

    def add_other(self, seconds: float) -> None:
        self.kept.append(seconds)
        self.unseen += 1
        if len(self.kept) >= _KNOWN and self.unseen >= 100:
            self.unseen = 0
            self.p99_s = sorted(self.kept)[math.ceil(len(self.kept) * (1 - _BEYOND)) - 1]

    def add_new(self, seconds: float) -> None:
        if self.p99_s is not None:
            mark_s = max(self.p99_s * self.times, self.p99_s + self.slack_s)
            self.likelihood.add(seconds > mark_s, _BEYOND / 2, _BEYOND * 2)

    def reason(self) -> str:
        assert self.p99_s is not None, "there is no verdict without it"
        return (
            f"{self.what} of {self.likelihood.against} of {self.likelihood.seen} requests was more than {self.times:g} "
            f"times the 99th percentile of the others, {self.p99_s * 1e3:.3g} ms"
        )


class Comparison:
    """Of one target with the others of its route, during one step."""

    def __init__(self, limits: CanaryLimits) -> None:
        self._limits = limits
        self._others = self._others_failed = 0
        self._failures = _Likelihood()
        self._times = (
            _Times("the latency", limits.p99_times, limits.slack_s),
            _Times("the time in queues", limits.queue_times, limits.slack_s),
        )

    @property
    def seen(self) -> int:
        """How many requests of the new target have been compared."""
        return self._failures.seen

    def next_step(self) -> Comparison:
        """The same for the step after this one: what is known of the others is kept."""
        following = Comparison(self._limits)
        following._others, following._others_failed = self._others, self._others_failed
        for mine, new in zip(self._times, following._times, strict=True):
            new.kept, new.p99_s = mine.kept, mine.p99_s
        return following

    def add_other(self, outcome: TargetOutcome) -> None:
        """Another target has answered."""
        self._others += 1
        self._others_failed += outcome.failed
        if not outcome.failed:
            for times, seconds in zip(self._times, (outcome.latency_s, outcome.queue_s), strict=True):
                times.add_other(seconds)

    def add_new(self, outcome: TargetOutcome) -> None:
        """The new target has answered."""
        usual = max(_LEAST_FAILED, self._others_failed / self._others if self._others else 0.0)
        better = min(usual + self._limits.errors / 4, 0.98)
        worse = min(usual + self._limits.errors, 0.99)
        self._failures.add(outcome.failed, better, worse)
        if not outcome.failed:
            for times, seconds in zip(self._times, (outcome.latency_s, outcome.queue_s), strict=True):
                times.add_new(seconds)

    def verdict(self) -> tuple[CanaryVerdict, str]:
        """What is known by now, and if the target is worse, why."""
        if self._failures.verdict is CanaryVerdict.WORSE:
            reason = f"{self._failures.against} of {self._failures.seen} requests failed"
            return CanaryVerdict.WORSE, f"{reason}, of the others {self._others_failed} of {self._others}"
        for times in self._times:
            if times.likelihood.verdict is CanaryVerdict.WORSE:
                return CanaryVerdict.WORSE, times.reason()
        fine = [self._failures.verdict, *(times.likelihood.verdict for times in self._times)]
        return (CanaryVerdict.FINE if all(each is CanaryVerdict.FINE for each in fine) else CanaryVerdict.OPEN), ""
