"""Several requests in one ensemble: `max_inflight_requests`, stopping, giving up."""

from __future__ import annotations

import pytest
from ensembles import World, ensemble, error, job, member, outcomes, response, step, tensor, values

from trireme.engine.ensemble import EnsemblePlan
from trireme.engine.errors import InternalError, UnavailableError

# Requests at the gate


@pytest.fixture
def narrow() -> World:
    """d, whose answers go through a, of which one may be in flight at a time."""
    steps = [step("d", {"IN": "I"}, {"OUT": "t"}), step("a", {"IN": "t"}, {"OUT": "O"})]
    members = [member("d", decoupled=True), member("a")]
    return World(EnsemblePlan(ensemble(steps, rest="max_inflight_requests: 1"), members))


def test_answers_of_a_decoupled_member_wait_their_turn(narrow: World) -> None:
    request = job(tensor("I", 1))
    run = narrow.start(request)
    call = narrow.call("d")
    for value in (1, 2, 3):
        narrow.answer(call, tensor("OUT", value), final=value == 3)
    assert narrow.working == ["a"]
    assert narrow.core.is_congested(call)
    for value in (1, 2, 3):
        assert narrow.working == ["a"]
        assert narrow.calls[narrow.call("a")].inputs[0].array.tolist() == [value]
        narrow.answer(narrow.call("a"), tensor("OUT", value))
    assert not narrow.core.is_congested(call)
    assert [final for _, final in outcomes(request)] == [False, False, True]
    assert (run.held, narrow.core.inflight) == (0, 0)


def test_the_limit_holds_over_all_requests_and_they_take_turns(narrow: World) -> None:
    first, second = job(tensor("I", 1)), job(tensor("I", 2))
    narrow.start(first)
    narrow.start(second)
    assert narrow.working == ["d"], "the second request waits to begin"
    narrow.answer(narrow.call("d"), tensor("OUT", 1))
    assert narrow.working == ["a", "d"] or narrow.working == ["d", "a"]
    narrow.answer(narrow.call("d"), tensor("OUT", 2))
    assert narrow.working == ["a"]
    narrow.answer(narrow.call("a"), tensor("OUT", 1))
    narrow.answer(narrow.call("a"), tensor("OUT", 2))
    assert [values(response(each)) for each in (first, second)] == [{"O": [1]}, {"O": [2]}]


def test_a_gate_lets_as_many_through_as_its_limit_and_who_waited_longest_first() -> None:
    plan = EnsemblePlan(
        ensemble([step("a", {"IN": "I"}, {"OUT": "O"})], rest="max_inflight_requests: 2"), [member("a")]
    )
    world = World(plan)
    runs = [world.start(job(tensor("I", number))) for number in range(5)]
    assert world.working == ["a", "a"]
    world.cancel(runs[2])  # was still waiting, and makes no room
    order: list[int] = []
    while world.calls:
        call = next(iter(world.calls))
        order += world.calls[call].inputs[0].array.tolist()
        world.answer(call, tensor("OUT", 1))
        assert len(world.calls) <= 2
    assert order == [0, 1, 3, 4]
    assert world.core.inflight == 0


@pytest.mark.parametrize("how", ["fail", "cancel"])
def test_who_is_over_gives_up_its_places_at_the_gate(narrow: World, how: str) -> None:
    first, second = job(tensor("I", 1)), job(tensor("I", 2))
    run = narrow.start(first)
    call = narrow.call("d")
    for value in (1, 2, 3):
        narrow.answer(call, tensor("OUT", value), final=value == 3)
    narrow.start(second)
    narrow.answer(narrow.call("d"), tensor("OUT", 4))
    if how == "cancel":
        narrow.cancel(run)
        narrow.answer(narrow.call("a"), tensor("OUT", 1))
    else:
        narrow.fail(narrow.call("a"), InternalError("boom"))
    error(first)
    assert narrow.calls[narrow.call("a")].inputs[0].array.tolist() == [4], "the other request is next at once"
    narrow.answer(narrow.call("a"), tensor("OUT", 4))
    assert values(response(second)) == {"O": [4]}
    assert (run.held, narrow.core.inflight) == (0, 0)


def test_a_request_that_never_got_through_the_gate_can_be_cancelled(narrow: World) -> None:
    first, second = job(tensor("I", 1)), job(tensor("I", 2))
    narrow.start(first)
    run = narrow.start(second)
    narrow.cancel(run)
    assert error(second).message == ""
    assert narrow.cancelled == [], "there is nothing to cancel"
    assert run.held == 0


def test_a_refused_request_makes_room_at_the_gate(narrow: World) -> None:
    first, second = job(tensor("I", 1)), job(tensor("I", 2))
    narrow.start(first)
    narrow.start(second)
    narrow.fail(narrow.call("d"), UnavailableError("full"))
    assert narrow.working == ["d"]
    assert error(first).message == "in ensemble 'e', full"


# Stopping


def test_a_stopped_ensemble_refuses_new_requests_and_finishes_the_others(narrow: World) -> None:
    request = job(tensor("I", 1))
    narrow.start(request)
    narrow.core.stop()
    with pytest.raises(UnavailableError) as caught:
        narrow.core.start(job(tensor("I", 2)))
    assert caught.value.message == (
        "[request id: r1] Server is stopping, scheduler for model has stopped accepting new inference requests"
    )
    narrow.answer(narrow.call("d"), tensor("OUT", 1))
    narrow.answer(narrow.call("a"), tensor("OUT", 1))
    assert values(response(request)) == {"O": [1]}


def test_dropping_all_gives_every_job_back_and_forgets_it(narrow: World) -> None:
    first, second = job(tensor("I", 1)), job(tensor("I", 2))
    narrow.start(first)
    narrow.start(second)
    late = narrow.call("d")
    assert narrow.core.drop_all() == [first, second]
    assert narrow.core.inflight == 0
    narrow.answer(late, tensor("OUT", 1))
    assert narrow.calls == {}
    assert outcomes(first) == []


def test_what_waits_for_the_end_of_a_step_does_not_hold_back_that_step() -> None:
    """Two decoupled members in a row: the second one's next request waits until its first one has given all."""
    steps = [step("d", {"IN": "I"}, {"OUT": "t"}), step("f", {"IN": "t"}, {"OUT": "O"})]
    members = [member("d", decoupled=True), member("f", decoupled=True)]
    world = World(EnsemblePlan(ensemble(steps, rest="max_inflight_requests: 1"), members))
    world.start(job(tensor("I", 1)))
    first = world.call("d")
    for value in (1, 2):
        world.answer(first, tensor("OUT", value), final=False)
    second = world.call("f")
    assert world.core.is_congested(first)
    assert not world.core.is_congested(second)
    world.answer(second, tensor("OUT", 3), final=True)
    assert not world.core.is_congested(first)
