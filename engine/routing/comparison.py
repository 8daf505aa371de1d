"""Whether a new target is worse than the ones before it, from what is seen of both.

Rules:
 1. Three things are compared: failed requests, latency and time in queues. For each, a request of the new target either
    counts against it or does not: it failed; it took longer than the others' 99th percentile times what is allowed.
 2. If the new target were as it should be, few requests would count against it; if it were worse than is allowed, more.
    What is seen makes one of the two more probable (Wald's sequential test). As soon as one is `_SURE` times as
    probable as the other, the matter is decided: so a bad target is found out in few requests, and a good one is not
    accused by chance.
 3. The worse case of failures: as many more than the others have as is allowed. The better case: a quarter of that.
    What the others have is an average over about their latest `_AVERAGED` requests; while they have had few, two
    standard deviations more than that.
 4. Times: a request of the others is slow if it takes longer than their 99th percentile. In the worse case a request
    of the new target is slow, with what is allowed, at twice the odds of theirs, in the better case at three quarters
    of them (of few in a hundred, that is as often). Of what is slow in a spell (rule 5) it is looked at only how much
    is the new target's. How probable that is if all requests of the spell are dealt out anew depends on these odds
    alone (as in Fisher's exact test). So what delays both alike accuses neither, and a spell in which all are slow,
    or none is, says nothing: while latencies rise above all that was known, nothing is known of the new target. The
    percentile is known once the others have had `_KNOWN` requests, and found anew when they have had as many again (at
    most `_KEPT`), from the latest `_KEPT`. Of requests that take exactly as long as it, so many are slow that one in a
    hundred is in all. Failed requests say nothing about times.
 5. Requests that are answered within a `spell` (a second, or a twentieth of a step if that is less) may have a common
    cause. Together they count for at most a quarter of what decides, and slow ones of the new target for at most an
    eighth: a stall makes many slow. Failures count for nothing if the others, too, failed at least three times as often
    as usual then. For times a spell goes on until each side had `_FEWEST` requests in it.
 6. In a step in which the new target gets all there is nothing to compare times with: they swell and sink with the
    load. Failures are compared with what the others had before.

What that promises, of a target that goes on as it is: if it is as in the worse case or beyond it, it is taken for good
less than once in 100,000 times; if it is as in the better case or below it, it is accused less often than that. Between
the two either may come of it. A target like the others is below the better case for failures; and for times, if the
tail of latencies thins out: 1.25 times the percentile is exceeded by a third as many for an exponential distribution.
(Where the percentile lies in the stalls of a server they are as many, and it is accused less than once in 100 times.)
Of a target that takes 1.5 times as long twice as many exceed it, or more, if the tail is that of an exponential
distribution, or of a lognormal one with a sigma of up to 0.65. With heavier tails (lognormal with a sigma of 1: 1.6
times as many; Pareto with an alpha of 2: 1.4) it takes more requests, and up to one in a hundred is taken for good.
Steps should be long beside latencies: a request that is not answered is not seen. Both sides are to have requests of
the same kinds: if targets are chosen by something that tells what is asked for, times say little.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass

from .route import CanaryLimits

_SURE = math.log(1e5)
_AT_ONCE = _SURE / 4
_SLOW_AT_ONCE = _SURE / 8
_AVERAGED = 1_000
_DEVIATIONS = 2
_KNOWN = 300
_KEPT = 4_000
_BEYOND = 0.01
_WORSE = 2.0
_BETTER = 0.75
_LEAST_FAILED = 0.001
_SPELL_S = 1.0
_SPELLS = 20
_FEWEST = 3


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
class _Counts:
    """Of requests of the new target, and of the others; and of those that count against them."""

    seen: int = 0
    against: float = 0
    others: int = 0
    others_against: float = 0

    def add(self, new: bool, against: float) -> None:
        if new:
            self.seen += 1
            self.against += against
        else:
            self.others += 1
            self.others_against += against


@dataclass(slots=True)
class _Likelihood:
    """Rule 2: the logarithm of how much more probable the worse case is. It does not fall below what decides, so that
    a target that becomes worse later is found out as soon."""

    value: float = 0.0
    verdict: CanaryVerdict = CanaryVerdict.OPEN

    def add(self, more: float, at_once: float) -> None:
        """Of one spell (rule 5)."""
        self.value = max(-_SURE, self.value + max(-_AT_ONCE, min(at_once, more)))
        if self.value >= _SURE:
            self.verdict = CanaryVerdict.WORSE
        elif self.value <= -_SURE and self.verdict is CanaryVerdict.OPEN:
            self.verdict = CanaryVerdict.FINE


class _Failures:
    """Rule 3; `most` is how many more may fail, as a part of all."""

    def __init__(self, most: float) -> None:
        self.most = most
        self.usual = 0.0
        self.others = self.others_failed = 0
        self.all, self.spell = _Counts(), _Counts()
        self.likelihood = _Likelihood()

    def next_step(self, alone: bool) -> _Failures:
        """What the others have is not looked at any more where they get nothing: then what they had in all counts."""
        following = _Failures(self.most)
        following.usual, following.others, following.others_failed = self.usual, self.others, self.others_failed
        if alone:
            following.usual = max(self.usual, self.others_failed / max(1, self.others))
        return following

    def add(self, new: bool, failed: bool) -> None:
        self.spell.add(new, failed)
        if not new:
            self.others += 1
            self.others_failed += failed
            self.usual += (failed - self.usual) / min(self.others, _AVERAGED)

    def end_spell(self) -> None:
        spell, self.spell = self.spell, _Counts()
        usual = max(_LEAST_FAILED, self.usual)
        if not spell.seen or spell.others_against >= 2 + 3 * usual * spell.others:
            return
        self.all.seen += spell.seen
        self.all.against += spell.against
        usual += _DEVIATIONS * math.sqrt(usual * (1 - usual) / max(1, self.others))
        better, worse = min(usual + self.most / 4, 0.98), min(usual + self.most, 0.99)
        against, well = math.log(worse / better), math.log((1 - worse) / (1 - better))
        self.likelihood.add(spell.against * against + (spell.seen - spell.against) * well, _AT_ONCE)

    def reason(self) -> str:
        reason = f"{self.all.against} of {self.all.seen} requests failed"
        return f"{reason}, of the others {self.others_failed} of {self.others}"


class _Times:
    """Rule 4, for latency or time in queues.

    Args:
        what: is compared.
        times: the 99th percentile that is allowed.
        slack_s: and what is allowed besides.
    """

    def __init__(self, what: str, times: float, slack_s: float) -> None:
        self.what = what
        self.times = times
        self.slack_s = slack_s
        self.kept: deque[float] = deque(maxlen=_KEPT)
        self.until_found = _KNOWN
        self.p99_s: float | None = None
        self.tied = 0.0
        self.all, self.spell = _Counts(), _Counts()
        self.likelihood = _Likelihood()

    def next_step(self) -> _Times:
        following = _Times(self.what, self.times, self.slack_s)
        following.kept, following.until_found, following.p99_s = self.kept, self.until_found, self.p99_s
        following.tied = self.tied
        return following

    def add(self, new: bool, seconds: float) -> None:
        if self.p99_s is not None:
            mark_s = max(self.p99_s * self.times, self.p99_s + self.slack_s) if new else self.p99_s
            self.spell.add(new, self.tied if seconds == self.p99_s and not new else seconds > mark_s)
        if new:
            return
        self.kept.append(seconds)
        self.until_found -= 1
        if not self.until_found:
            self.until_found = len(self.kept)
            self._find()

    def _find(self) -> None:
        in_order = sorted(self.kept)
        known = len(in_order)
        self.p99_s = p99_s = in_order[math.ceil(known * (1 - _BEYOND)) - 1]
        beyond = known - bisect_right(in_order, p99_s)
        self.tied = (_BEYOND * known - beyond) / (known - beyond - bisect_left(in_order, p99_s))

    def end_spell(self) -> None:
        """Rules 4 and 5."""
        spell = self.spell
        if min(spell.seen, spell.others) < _FEWEST:
            return
        slow, others_slow = int(spell.against), int(spell.others_against)
        # What ties (rule 4) have left of a request is kept.
        self.spell, all_ = _Counts(others_against=spell.others_against - others_slow), self.all
        all_.seen += spell.seen
        all_.against += slow
        all_.others += spell.others
        all_.others_against += others_slow
        dealt = (spell.seen, spell.others, slow + others_slow)
        more = slow * math.log(_WORSE / _BETTER) - log_ways(*dealt, _WORSE) + log_ways(*dealt, _BETTER)
        self.likelihood.add(more, _SLOW_AT_ONCE)

    def reason(self) -> str:
        assert self.p99_s is not None, "there is no verdict without it"
        return (
            f"{self.what} of {self.all.against} of {self.all.seen} requests was more than {self.times:g} times the "
            f"99th percentile of the others, {self.p99_s * 1e3:.3g} ms, which {self.all.others_against:.0f} of "
            f"{self.all.others} of theirs exceeded"
        )


def log_ways(new: int, others: int, slow: int, odds: float) -> float:
    """The logarithm of the sum over n of C(new, n) C(others, slow - n) odds**n: of all ways in which `slow` of so many
    requests can be slow, those in which n of them are the new target's count odds**n times. The sum begins at its
    greatest term and goes as far as terms matter."""
    least, most = max(0, slow - others), min(new, slow)

    def growth(n: int) -> float:
        """From the term of n to the next."""
        return odds * (new - n) * (slow - n) / ((n + 1) * (others - slow + n + 1))

    greatest = least + bisect_left(range(least, most), -1.0, key=lambda n: -growth(n))
    total = 1.0
    for up in (True, False):
        term, n = 1.0, greatest
        while term > 1e-12 and (n < most if up else n > least):
            term = term * growth(n) if up else term / growth(n - 1)
            total += term
            n += 1 if up else -1
    log_choices = _log_choices(new, greatest) + _log_choices(others, slow - greatest)
    return log_choices + greatest * math.log(odds) + math.log(total)


def _log_choices(of: int, taken: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(taken + 1) - math.lgamma(of - taken + 1)


class Comparison:
    """Of one target with the others of its route, during one step.

    Args:
        step_s: how long the step takes at least, seconds.
        alone: the new target gets all (rule 6).
    """

    def __init__(self, limits: CanaryLimits, step_s: float, alone: bool = False) -> None:
        self._limits = limits
        self._alone = alone
        self._step_s = step_s
        self._spell_s = min(_SPELL_S, step_s / _SPELLS)
        self._spell_ends_s: float | None = None
        self._failures = _Failures(limits.errors)
        self._latency = _Times("the latency", limits.p99_times, limits.slack_s)
        self._queue = _Times("the time in queues", limits.queue_times, limits.slack_s)

    @property
    def seen(self) -> int:
        """How many requests of the new target have been compared."""
        return self._failures.all.seen

    @property
    def spell_ends_s(self) -> float | None:
        """When there is more to be known though no more is seen; None for never."""
        return self._spell_ends_s if self._failures.spell.seen else None

    def next_step(self, alone: bool) -> Comparison:
        """The same for the step after this one: what is known of the others is kept."""
        following = Comparison(self._limits, self._step_s, alone)
        following._failures = self._failures.next_step(alone)
        following._latency, following._queue = self._latency.next_step(), self._queue.next_step()
        return following

    def add(self, outcome: TargetOutcome, new: bool, now_s: float) -> None:
        """The new target has answered, or another one."""
        self._go_on(now_s)
        self._failures.add(new, outcome.failed)
        if not outcome.failed and not self._alone:
            self._latency.add(new, outcome.latency_s)
            self._queue.add(new, outcome.queue_s)

    def verdict(self, now_s: float) -> tuple[CanaryVerdict, str]:
        """What is known by now, and if the target is worse, why; if it is open, of what too little is known."""
        self._go_on(now_s)
        for each in (self._failures, self._latency, self._queue):
            if each.likelihood.verdict is CanaryVerdict.WORSE:
                return CanaryVerdict.WORSE, each.reason()
        compared = (("failures", self._failures), (self._latency.what, self._latency), (self._queue.what, self._queue))
        missing = [what for what, each in compared if each.likelihood.verdict is CanaryVerdict.OPEN]
        return (CanaryVerdict.OPEN, " and ".join(missing)) if missing else (CanaryVerdict.FINE, "")

    def _go_on(self, now_s: float) -> None:
        """Rule 5."""
        if self._spell_ends_s is None or now_s >= self._spell_ends_s:
            self._spell_ends_s = now_s + self._spell_s
            for each in (self._failures, self._latency, self._queue):
                each.end_spell()
