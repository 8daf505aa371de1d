"""When an execution is over its limit, and when its instance counts as stuck."""

from __future__ import annotations

import math

import pytest

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.instances.executing import LEAST_MARK_S, PARAMETER, ExecutionLimit, Verdict, execution_limit_s


def test_a_first_batch_is_stuck_at_half_of_the_limit_and_over_at_the_limit() -> None:
    limit = ExecutionLimit(300)
    limit.restart(10.0)
    verdicts = [limit.look(now) for now in (10.0, 159.9, 160.0, 309.9, 310.0)]
    assert verdicts == [Verdict.FINE, Verdict.FINE, Verdict.STUCK, Verdict.STUCK, Verdict.OVER]


@pytest.mark.parametrize(("longest_s", "mark_s"), [(0.1, LEAST_MARK_S), (20, 60), (100, 150)])
def test_the_mark_follows_what_batches_have_taken(longest_s: float, mark_s: float) -> None:
    limit = ExecutionLimit(300)
    limit.ended(int(longest_s * 1e9))
    limit.ended(1_000_000)
    assert limit.mark_s == mark_s


def test_a_sign_of_life_starts_the_time_anew() -> None:
    limit = ExecutionLimit(10)
    limit.restart(0.0)
    limit.restart(9.0)
    assert limit.look(18.9) is Verdict.STUCK
    assert limit.look(19.0) is Verdict.OVER


def test_without_a_limit_nothing_is_over_and_a_batch_is_stuck_once_others_have_ended() -> None:
    limit = ExecutionLimit(0)
    limit.restart(0.0)
    assert limit.look(1e9) is Verdict.FINE
    limit.ended(10**9)
    assert limit.look(1e9) is Verdict.STUCK


@pytest.mark.parametrize("limit_s", [0.05, 7, 300, 0])
def test_looking_when_told_sees_the_limit_in_time(limit_s: float) -> None:
    """A check that is made only when due is made at the very moment at which a batch that begins at any time is
    over."""
    for began_s in (0.0, 0.3, 12.3, 1000.1):
        limit, now, looks = ExecutionLimit(limit_s), began_s, 0
        limit.restart(began_s)
        while now < began_s + (limit_s or 1e4) and looks < 100_000:
            now = limit.next_look_s(now)
            looks += 1
        if limit_s:
            assert limit.look(now) is Verdict.OVER
            assert now == pytest.approx(began_s + limit_s)
        assert math.isfinite(now)


def test_a_model_may_have_a_limit_of_its_own() -> None:
    assert execution_limit_s({}, 300) == 300
    assert execution_limit_s({PARAMETER: "1.5"}, 300) == 1.5
    assert execution_limit_s({PARAMETER: "0"}, 300) == 0


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"'EXECUTION_LIMIT_SECS' is '{text}'; expected the most seconds"):
        execution_limit_s({PARAMETER: text}, 300)
