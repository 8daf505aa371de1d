"""How far runs reach, counted by run."""

from __future__ import annotations

from collections import Counter

from trireme.simulations.plan import ModelPlan, Plan, RequestPlan, ResourcePlan
from trireme.simulations.play import play
from trireme.simulations.reach import ANSWERED, reach, runs_that_reach, shares_answered

MS = 1_000_000


def test_shares_are_of_runs_and_not_of_all_requests() -> None:
    runs = [Counter({"requests": 100, ANSWERED: 10}), Counter({"requests": 2, ANSWERED: 2}), Counter()]
    assert shares_answered(runs) == [0.1, 1.0]
    runs[0]["sealed: delay over"] = 50
    assert runs_that_reach(runs, "sealed: delay over") == 1 / 3
    lines = list(reach(runs))
    assert lines[0] == "requests answered, by run: 55% in the median"
    assert any(line.split() == ["sealed:", "delay", "over", "33.3%", "50"] for line in lines)


def test_what_waits_for_a_resource_is_counted_only_while_an_instance_is_idle() -> None:
    models = tuple(ModelPlan(name, max_batch_size=1, demands=(ResourcePlan("R", 1),)) for name in ("a", "b"))
    requests = (RequestPlan(1, "a", 0), RequestPlan(2, "a", MS), RequestPlan(3, "b", MS), RequestPlan(4, "b", 99 * MS))
    plan = Plan(1, models, requests, calm_ns=0, resources=(ResourcePlan("R", 1),))
    assert play(plan).counts["a request waited for resources"] == 1


def test_an_answer_from_the_cache_is_given_once_and_waits_for_its_turn() -> None:
    """Request 2 asks what 1 asked before; 4 does so as well, behind 3, which takes its time."""
    model = ModelPlan("m", max_batch_size=1, dynamic=True, preserve_ordering=True, cached=True, instances=2)
    requests = (
        RequestPlan(1, "m", 0, content=7),
        RequestPlan(2, "m", 20 * MS, content=7),
        RequestPlan(3, "m", 30 * MS),
        RequestPlan(4, "m", 31 * MS, content=7),
        RequestPlan(5, "m", 32 * MS, content=7, rows=1),
    )
    outcome = play(Plan(1, (model,), requests, calm_ns=0, cache_bytes=1 << 16))
    assert outcome.violation is None
    assert outcome.counts[ANSWERED] == 5
    assert outcome.counts["an answer found in the cache"] == 3
    assert outcome.counts["an answer found in the cache, and held for its turn"] == 2
