"""What a canary's requests tell (`engine.routing.comparison`)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.routing.comparison import CanaryVerdict, Comparison, TargetOutcome, log_ways
from trireme.engine.routing.route import CanaryLimits

GOOD = TargetOutcome(False, 0.010, 0.001)
FAILED = TargetOutcome(True)


class Traffic:
    """Ten requests of each side in a second, unless said otherwise."""

    def __init__(self, step_s: float = 60.0, alone: bool = False) -> None:
        self.comparison = Comparison(CanaryLimits(), step_s, alone)
        self.now_s = 0.0

    def go_on(
        self,
        seconds: int,
        new: Callable[[], TargetOutcome] = lambda: GOOD,
        others: Callable[[], TargetOutcome] = lambda: GOOD,
        hz: int = 10,
    ) -> CanaryVerdict:
        """The verdict after so long, or as soon as the target is worse."""
        for _ in range(seconds * hz):
            self.now_s += 1 / hz
            self.comparison.add(others(), False, self.now_s)
            self.comparison.add(new(), True, self.now_s)
            if self.verdict is CanaryVerdict.WORSE:
                break
        return self.verdict

    @property
    def verdict(self) -> CanaryVerdict:
        return self.comparison.verdict(self.now_s)[0]


def test_a_target_like_the_others_is_fine_after_many_requests() -> None:
    traffic = Traffic()
    assert traffic.go_on(60) is CanaryVerdict.OPEN
    assert traffic.comparison.verdict(60.0)[1] == "failures and the latency and the time in queues"
    assert traffic.go_on(200) is CanaryVerdict.FINE


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (FAILED, "requests failed, of the others 0 of"),
        (TargetOutcome(False, 0.020, 0.001), "the latency of"),
        (TargetOutcome(False, 0.011, 0.005), "the time in queues of"),
    ],
)
def test_each_of_the_three_is_compared(bad: TargetOutcome, reason: str) -> None:
    draw = random.Random(1)
    traffic = Traffic()
    traffic.go_on(40)
    assert traffic.go_on(1_000, lambda: bad if draw.random() < 0.1 else GOOD) is CanaryVerdict.WORSE
    assert reason in traffic.comparison.verdict(traffic.now_s)[1]


def test_differences_within_the_slack_do_not_count() -> None:
    traffic = Traffic()
    tiny = [TargetOutcome(False, 0.0004, 0.0), TargetOutcome(False, 0.0012, 0.0008)]
    assert traffic.go_on(300, lambda: tiny[1], lambda: tiny[0]) is CanaryVerdict.FINE


def test_one_second_does_not_decide_however_much_happens_in_it() -> None:
    traffic = Traffic()
    traffic.go_on(40)
    assert traffic.go_on(20, lambda: FAILED, hz=500) is CanaryVerdict.WORSE
    assert 44 <= traffic.now_s <= 48
    traffic = Traffic()
    traffic.go_on(40)
    assert traffic.go_on(20, lambda: TargetOutcome(False, 0.02), hz=500) is CanaryVerdict.WORSE
    assert 48 <= traffic.now_s <= 52


def test_short_steps_look_sooner() -> None:
    traffic = Traffic(step_s=1.0)
    traffic.go_on(1, hz=500)
    assert traffic.go_on(1, lambda: FAILED, hz=500) is CanaryVerdict.WORSE
    assert traffic.now_s < 1.5


@pytest.mark.parametrize("bad", [FAILED, TargetOutcome(False, 3.0, 2.0)])
def test_what_happens_to_the_others_too_counts_for_nothing(bad: TargetOutcome) -> None:
    traffic = Traffic()
    traffic.go_on(40)
    for _ in range(20):
        assert traffic.go_on(2, lambda: bad, lambda: bad) is not CanaryVerdict.WORSE
        traffic.go_on(38)
    assert traffic.verdict is CanaryVerdict.FINE


def test_latencies_that_rise_above_all_that_was_usual_say_nothing_of_either() -> None:
    """Both sides are slower than the 99th percentile that is known, and the new target half as slow again."""
    traffic = Traffic()
    traffic.go_on(40)

    def outcome(times: float) -> TargetOutcome:
        return TargetOutcome(False, times * 0.01 * 1.01 ** min(traffic.now_s - 40, 300), 0.001)

    assert traffic.go_on(300, lambda: outcome(1.5), lambda: outcome(1.0)) is CanaryVerdict.OPEN
    assert traffic.go_on(300, lambda: outcome(1.5), lambda: outcome(1.0)) is CanaryVerdict.WORSE, "it is known anew"


@pytest.mark.parametrize(("part", "found"), [(1.0, "the latency of "), (0.8, "the time in queues")])
def test_where_nine_in_ten_of_the_others_are_slow_it_still_tells_who_is_slower(part: float, found: str) -> None:
    draw = random.Random(4)
    slow = TargetOutcome(False, 0.02, 0.001)
    traffic = Traffic()
    traffic.go_on(140)
    traffic.go_on(90, lambda: slow if draw.random() < part else GOOD, lambda: slow if draw.random() < 0.9 else GOOD)
    assert traffic.comparison.verdict(traffic.now_s)[1].startswith(found)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 80), st.sampled_from((0.75, 2.0)))
def test_what_is_slow_is_dealt_out_in_so_many_ways(new: int, others: int, slow: int, odds: float) -> None:
    slow = min(slow, new + others)
    exact = sum(math.comb(new, n) * math.comb(others, slow - n) * odds**n for n in range(slow + 1))
    assert log_ways(new, others, slow, odds) == pytest.approx(math.log(exact), abs=1e-9)


def test_failures_that_others_have_had_for_long_are_usual() -> None:
    draw = random.Random(2)

    def one() -> TargetOutcome:
        return FAILED if draw.random() < 0.05 else GOOD

    traffic = Traffic()
    assert traffic.go_on(3_000, one, one) is not CanaryVerdict.WORSE


def test_a_target_that_becomes_worse_later_is_found_out_as_soon() -> None:
    draw = random.Random(3)
    traffic = Traffic()
    assert traffic.go_on(2_000) is CanaryVerdict.FINE
    assert traffic.go_on(200, lambda: FAILED if draw.random() < 0.1 else GOOD) is CanaryVerdict.WORSE


def test_the_next_step_begins_with_what_is_known_of_the_others() -> None:
    traffic = Traffic()
    traffic.go_on(40)
    traffic.comparison = traffic.comparison.next_step(alone=False)
    assert traffic.comparison.seen == 0
    assert traffic.go_on(25, lambda: TargetOutcome(False, 0.02)) is CanaryVerdict.WORSE, "the others' p99 is known"


def test_who_gets_all_is_compared_by_failures_only() -> None:
    traffic = Traffic()
    traffic.go_on(40)
    slow = TargetOutcome(False, 0.02, 0.015)
    for outcome, verdict in ((slow, CanaryVerdict.OPEN), (FAILED, CanaryVerdict.WORSE)):
        traffic.comparison = traffic.comparison.next_step(alone=True)
        for _ in range(100):
            traffic.now_s += 0.1
            traffic.comparison.add(outcome, True, traffic.now_s)
        assert traffic.verdict is verdict


def test_the_present_second_is_awaited_only_if_the_new_target_was_seen_in_it() -> None:
    comparison = Comparison(CanaryLimits(), 60.0)
    comparison.add(GOOD, False, 5.0)
    assert comparison.spell_ends_s is None
    comparison.add(GOOD, True, 5.2)
    assert comparison.spell_ends_s == 6.0
    comparison.verdict(6.0)
    assert (comparison.spell_ends_s, comparison.seen) == (None, 1)
