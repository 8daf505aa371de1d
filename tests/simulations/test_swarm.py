"""Swarm runs: nothing is broken, everything rare happens, and one seed gives one history."""

from __future__ import annotations

import statistics
import warnings
from collections import Counter

import pytest

from trireme.simulations.coverage import REACHABLE, holes
from trireme.simulations.events import PhaseBegan, RequestSubmitted
from trireme.simulations.front_ends import BY_FRONT_ENDS
from trireme.simulations.graphs import Graphs
from trireme.simulations.hunt import hunt, play_seed
from trireme.simulations.plan import Fault, ModelPlan, Plan, RequestPlan
from trireme.simulations.play import drain_bound_s, play
from trireme.simulations.reach import ANSWERED, FEATURES, runs_that_reach, shares_answered
from trireme.simulations.swarm import draw_plan

SEEDS = range(1, 21)
RARE_SEEDS = (
    *(22, 29, 31, 38, 44, 46, 53, 57, 62, 76, 81, 97, 119, 120, 140, 145, 161, 171, 172, 185, 192, 225, 226, 245),
)
"""With these everything reachable is reached in two runs. They age whenever something else is drawn:
the test plays more seeds then, and says so."""

ALL_SEEDS = range(1, 501)
COUNTED_SEEDS = range(1, 201)
"""Of which it is counted how often each thing comes up."""

MS = 1_000_000
LEAST_SHARE = {
    "a step for a later answer of a decoupled member": 0.01,
    "an answer found in the cache, and held for its turn": 0.01,
    "the server-wide budget was used up": 0.005,
}
"""Of the runs, by feature, in which it must come up; the others in one of twenty."""


LEAST_ANSWERED = {False: 0.13, True: 0.08}
"""Of the requests of a run, in nine of ten runs, without front ends and with them: these take their clients with them
when they are killed. (200 runs have 0.15 and 0.11; those in which processes end and instances are removed answer few.)
"""


@pytest.mark.timeout(900)
def test_no_invariant_is_broken_and_everything_reachable_is_reached() -> None:
    """Some of the seeds that people play by the thousand."""
    counts: Counter[str] = Counter()
    broken = []
    chosen = {*SEEDS, *RARE_SEEDS}
    last = 0
    for seed in [*sorted(chosen), *(seed for seed in COUNTED_SEEDS if seed not in chosen)]:
        if seed not in chosen and not holes(counts):
            break
        last = seed
        found = play_seed(seed)
        counts += found.counts
        if found.violation is not None:
            broken.append(f"seed {seed}: {found.violation}")
    assert not broken, "\n".join([*broken, "see one: python -m trireme.simulations --seed N"])
    assert holes(counts) == []
    assert set(counts) - set(REACHABLE) == {"requests", "steps", ANSWERED}, (
        "what is counted is on the list of what can be reached"
    )
    if last not in chosen:
        warnings.warn(
            f"RARE_SEEDS leave holes, the last of which {last} closes: what is drawn has changed", stacklevel=1
        )


def test_steps_for_answers_of_models_that_execute_several_times_have_numbers() -> None:
    """An ensemble of ensembles of decoupled, iterative models, which answers as often as there are numbers at most."""
    plan = draw_plan(3_002_493)
    graphs = Graphs(plan)
    assert all(graphs.executions(request) for request in plan.requests if graphs.is_decoupled(request.model))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_seeds_break_nothing_and_reach_everything_often_enough() -> None:
    broken = {}
    runs: list[Counter[str]] = []
    for found in hunt(ALL_SEEDS, jobs=2):
        if found.seed in COUNTED_SEEDS:
            runs.append(found.counts)
        if found.violation is not None:
            broken[found.seed] = found.violation.invariant
    assert broken == {}, "see one: python -m trireme.simulations --seed N"
    assert statistics.median(shares_answered(runs)) > 0.6, "most requests of most runs are answered"
    for by_front_ends, least in LEAST_ANSWERED.items():
        shares = shares_answered([run for run in runs if bool(run[BY_FRONT_ENDS]) == by_front_ends])
        assert shares[len(shares) // 10] > least, f"in nine runs of ten, with front ends: {by_front_ends}"
    reached = {feature: runs_that_reach(runs, feature) for feature in FEATURES}
    assert {feature: share for feature, share in reached.items() if share < LEAST_SHARE.get(feature, 0.05)} == {}


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(920_111, id="a client for whom a front end's ring was full takes all answers that there are"),
        pytest.param(2_005_026, id="a request waited for room, and then for a slow cache"),
        pytest.param(2_006_110, id="a model was changed by a model while a front end waited to have changed it"),
        pytest.param(2_007_206, id="a front end was started again just before all was looked at"),
    ],
)
def test_what_is_right_is_not_taken_for_broken(seed: int) -> None:
    """Seeds for which an oracle said something else, and the server was right."""
    assert play(draw_plan(seed)).violation is None


def test_two_processes_play_a_seed_alike(run_python) -> None:
    """History and counts, whatever the hash seed, and whatever was played before."""
    code = (
        "from trireme.simulations.play import play\n"
        "from trireme.simulations.swarm import draw_plan\n"
        "for seed in {}:\n"
        "    outcome = play(draw_plan(seed))\n"
        "    print(seed, outcome.history.digest(), sorted(outcome.counts.items()))"
    )
    first = run_python("-c", code.format((3, 8, 14)), hash_seed=1).splitlines()  # the last has models on GPUs
    assert first == run_python("-c", code.format((5, 14, 8, 3)), hash_seed=2).splitlines()[:0:-1]
    assert len(first) == 3


def test_faults_strike_before_the_calm_and_not_after() -> None:
    requests = tuple(RequestPlan(number, "m", number * 20 * MS, fault=Fault.RAISE) for number in range(1, 11))
    outcome = play(Plan(1, (ModelPlan("m"),), requests, calm_ns=105 * MS))
    assert outcome.violation is None
    assert outcome.counts["fault: backend raises"] == 5, "the one that began at 100 ms strikes when it ends"
    assert outcome.history.of(PhaseBegan) == [PhaseBegan(105 * MS, "liveness")]


def test_a_client_waits_for_its_answer_thinks_and_sends_the_next() -> None:
    requests = (
        RequestPlan(1, "m", 5 * MS),
        RequestPlan(2, "m", 7 * MS, after=1),
        RequestPlan(3, "m", 3 * MS, after=2),
    )
    history = play(Plan(1, (ModelPlan("m", fixed_ns=10 * MS),), requests, calm_ns=0)).history
    assert [event.at_ns // MS for event in history.of(RequestSubmitted)] == [5, 22, 35]


def test_a_hang_without_a_limit_breaks_the_promise_to_drain() -> None:
    """The liveness phase has a bound, and says who has no answer when it is over."""
    requests = (RequestPlan(1, "m", 0, fault=Fault.HANG), RequestPlan(2, "m", MS))
    plan = Plan(1, (ModelPlan("m"),), requests, calm_ns=5 * MS)
    violation = play(plan).violation
    assert violation is not None
    assert violation.invariant == "queues drain when faults have stopped"
    assert violation.text == f"after {drain_bound_s(plan):g} s there is no final reply to requests [1, 2]"


def test_the_bound_counts_every_request_that_may_stand_in_the_way() -> None:
    model = ModelPlan("m", fixed_ns=10 * MS, per_row_ns=MS)
    none = drain_bound_s(Plan(1, (model,), (), 0))
    one = drain_bound_s(Plan(1, (model,), (RequestPlan(1, "m", 0, rows=2),), 0))
    two = drain_bound_s(Plan(1, (model,), (RequestPlan(1, "m", 0, rows=2), RequestPlan(2, "m", 0, rows=2)), 0))
    assert none < one < two


def test_seeds_can_be_played_in_several_processes() -> None:
    """Each gets eight at a time."""
    seeds = (18, 32, 58, 59, 85, 106, 156, 159, 203)  # they are soon over
    alone = {found.seed: found for found in hunt(seeds)}
    together = {found.seed: found for found in hunt(seeds, jobs=2)}
    assert together == alone
