"""Planted bugs are found, and made small: the simulator can see."""

from __future__ import annotations

import warnings

import pytest

from trireme.simulations.hunt import hunt, shrunk
from trireme.simulations.museum import EXHIBITS, Exhibit
from trireme.simulations.planted import PLANTED, planted
from trireme.simulations.planted.fleet import FLEET_BUGS
from trireme.simulations.planted.generating import GENERATING_BUGS
from trireme.simulations.planted.generating_servers import GENERATING_SERVER_BUGS
from trireme.simulations.planted.managed_fleet import MANAGED_FLEET_BUGS
from trireme.simulations.planted.residency import RESIDENCY_BUGS
from trireme.simulations.planted.residents import RESIDENTS_BUGS
from trireme.simulations.planted.routed import ROUTED_BUGS
from trireme.simulations.planted.routes import ROUTE_BUGS
from trireme.simulations.play import play

SEEDS = range(1, 1001)

FIRST_SEEDS = {
    "reordered-answers": 5,
    "held-for-ever": 5,
    "names-alone": 6,
    "bound-never": 14,
    "credit-lost": 14,
    "spare-is-idle": 14,
    "lost-flush": 14,
    "one-credit-too-many": 14,
    "one-batch-answers": 14,
    "lost-reply": 14,
    "impatient-restart": 17,
    "healthy-corpse": 17,
    "answered-in-place": 18,
    "locks-nothing": 18,
    "padding-of-a-client": 20,
    "place-lost-with-its-slot": 22,
    "sequence-outlives-its-slot": 22,
    "loss-unnoticed": 22,
    "comes-back-last": 27,
    "one-slot-less": 27,
    "state-written-in-place": 28,
    "sickness-unnoticed": 31,
    "bound-early": 34,
    "late-failure": 36,
    "unknown-while-stopping": 37,
    "priorities-ignored": 38,
    "segment-kept": 46,
    "time-of-the-dead": 48,
    "latest-idle-first": 58,
    "reaper-never-rests": 59,
    "notes-lost": 62,
    "hit-overtakes": 68,
    "result-of-another": 69,
    "small-demands-first": 70,
    "step-taken-twice": 71,
    "forgotten-rows": 78,
    "shared-stream": 85,
    "memory-back-early": 85,
    "followed-unheard": 85,
    "lease-kept": 85,
    "never-let-go": 87,
    "refused-in-one-breath": 92,
    "first-step-alone": 102,
    "first-preferred": 106,
    "exceeded-batch": 106,
    "order-holds-the-model": 110,
    "steps-untold": 110,
    "requests-go-on": 114,
    "late-end-counts": 115,
    "start-taken-for-good": 126,
    "number-used-again": 127,
    "ring-overwritten": 127,
    "impatient-refusal": 130,
    "members-first": 139,
    "room-untold": 140,
    "followed-too-early": 145,
    "lost-with-all": 150,
    "left-by-all": 156,
    "inverted-priority": 156,
    "still-held-in-place": 159,
    "forgotten-instance": 163,
    "bell-not-rung": 169,
    "taken-unheard": 169,
    "grant-lost": 169,
    "region-never-gone": 176,
    "cut-from-the-end": 184,
    "drained-without-end": 186,
    "delay-of-the-first": 189,
    "kept-permit": 203,
    "not-inherited": 226,
    "dropped-by-reload": 238,
    "resource-dies-with-its-holder": 239,
    "posted-too-late": 257,
    "idle-since-its-first": 275,
    "longer-override": 278,
    "anyones-reason": 286,
    "change-unheard": 971,
}
"""Where to begin with those that take long to meet, or whose first seeds take long to play. They age whenever something
else is drawn: the test takes longer then, and says so."""

SOON = 10
"""Seeds that may be played before a bug is met without a word about `FIRST_SEEDS`."""

NOTICED_AS = {
    "lost-reply": "answers leave when they may, neither before nor after",
    "double-reply": "each accepted request gets exactly one final reply",
    "reordered-answers": "answers leave in order where that was asked for",
    "exceeded-batch": "batches are within their limits",
    "inverted-priority": "no request is overtaken",
    "forgotten-instance": "no instance is idle while work is due",
    "held-for-ever": "answers leave when they may, neither before nor after",
    "unknown-while-stopping": "refusals say what is true",
    "healthy-corpse": "a model is ready if and only if all of it is alive",
    "reordered-sequence": "sequences are executed in order on one instance",
    "slot-released-twice": "nothing dies but of faults",
    "reaper-never-rests": "sequence batchers decide what the rules say",
    "resource-dies-with-its-holder": "queues drain when faults have stopped",
    "state-written-in-place": "a sequence's state is its own",
    "never-let-go": "queues drain when faults have stopped",
    "late-failure": "ensembles carry out each step once, and answer when all is over",
    "locks-nothing": "no request fails because a model is loaded or unloaded",
    "drained-without-end": "queues drain when faults have stopped",
    "order-holds-the-model": "queues drain when faults have stopped",
    "stays-in-line": "no instance is idle while work is due",
    "refused-in-one-breath": "queue limits and deadlines hold",
    "memory-back-early": "clients and models are told the truth",
    "one-credit-too-many": "an instance has one batch at a time",
    "shared-stream": "a GPU takes batches through their instance's streams in order",
    "sickness-unnoticed": "queues drain when faults have stopped",
    "bound-early": "second credits are used late",
    "bound-never": "second credits are used late",
    "credit-lost": "second credits are used late",
    "spare-is-idle": "schedulers decide what the rules say",
}
"""By which invariant each is found first; of the others it may be any."""


OTHERS = {
    **RESIDENCY_BUGS,
    **RESIDENTS_BUGS,
    **ROUTE_BUGS,
    **ROUTED_BUGS,
    **FLEET_BUGS,
    **MANAGED_FLEET_BUGS,
    **GENERATING_BUGS,
    **GENERATING_SERVER_BUGS,
}
"""They are found by swarms of their own."""

RARE = {"stays-in-line"}
"""They take thousands of seeds to meet; their exhibits in the museum show them."""


@pytest.mark.parametrize(
    "bug",
    [bug for bug in PLANTED if bug not in RARE and bug not in OTHERS],
)
def test_a_planted_bug_is_found_within_a_thousand_seeds(bug: str) -> None:
    first = FIRST_SEEDS.get(bug, SEEDS.start)
    seeds = [*range(first, SEEDS.stop), *range(SEEDS.start, first)]
    found = next((found for found in hunt(seeds, bug=bug) if found.violation is not None), None)
    assert found is not None, f"{bug} was not found"
    assert found.violation is not None
    clean = next(iter(hunt([found.seed])))
    assert clean.violation is None, "the seed finds the planted bug, not another one"
    if seeds.index(found.seed) >= SOON:
        warnings.warn(f"{found.seed} should stand in FIRST_SEEDS for {bug}: what is drawn has changed", stacklevel=1)


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["lost-reply", "reordered-sequence", "exceeded-batch"])
def test_what_is_found_shrinks_to_a_few_requests_and_still_shows_the_bug(bug: str) -> None:
    found = next(found for found in hunt(SEEDS, bug=bug) if found.violation is not None)
    assert found.violation is not None
    plan = shrunk(found.seed, found.violation, bug)
    assert len(plan.requests) <= 12
    assert len(plan.models) <= 2  # an ensemble needs a member
    assert plan == shrunk(found.seed, found.violation, bug), "shrinking has no part for chance"
    with planted(bug):
        violation = play(plan).violation
    assert violation is not None
    assert violation.invariant == found.violation.invariant
    assert play(plan).violation is None


def test_a_planted_bug_is_gone_after_the_block() -> None:
    before = {name: getattr(where, method) for name, (where, method, _) in PLANTED.items()}
    for name, (where, method, _) in PLANTED.items():
        with planted(name):
            assert getattr(where, method) is not before[name]
        assert getattr(where, method) is before[name]


@pytest.mark.parametrize("exhibit", EXHIBITS.values(), ids=EXHIBITS)
def test_an_exhibit_of_the_museum_is_whole_and_would_be_noticed(exhibit: Exhibit) -> None:
    """The situation comes up, nothing breaks; and with the old bug back, something does."""
    outcome = play(exhibit.plan)
    assert outcome.violation is None
    assert [what for what in exhibit.reached if not outcome.counts[what]] == []
    with planted(exhibit.bug):
        violation = play(exhibit.plan).violation
    assert violation is not None
    assert violation.invariant == NOTICED_AS[exhibit.bug]
