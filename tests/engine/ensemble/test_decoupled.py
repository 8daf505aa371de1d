"""Ensembles with members that answer any number of times."""

from __future__ import annotations

import pytest
from ensembles import World, ensemble, error, job, member, outcomes, step, tensor, values

from trireme.engine.ensemble import EnsemblePlan
from trireme.engine.errors import InternalError
from trireme.engine.job import Job
from trireme.engine.request import InferenceResponse


def told(job: Job) -> list[tuple[object, bool]]:
    """Every answer: the outputs' elements (None without a response), and whether it was the final one."""
    return [
        (values(outcome) if isinstance(outcome, InferenceResponse) else outcome, final)
        for outcome, final in outcomes(job)
    ]


@pytest.fixture
def plain() -> World:
    """d alone."""
    steps = [step("d", {"IN": "I"}, {"OUT": "O"})]
    return World(EnsemblePlan(ensemble(steps), [member("d", decoupled=True)]))


@pytest.fixture
def fork() -> World:
    """d, whose answers go through a and b side by side; j joins them to O."""
    steps = [
        step("d", {"IN": "I"}, {"OUT": "t"}),
        step("a", {"IN": "t"}, {"OUT": "x"}),
        step("b", {"IN": "t"}, {"OUT": "y"}),
        step("j", {"A": "x", "B": "y"}, {"OUT": "O"}),
    ]
    members = [member("d", decoupled=True), member("a"), member("b"), member("j", ("A", "B"))]
    return World(EnsemblePlan(ensemble(steps), members))


def test_each_answer_goes_out_and_the_end_comes_by_itself(plain: World) -> None:
    request = job(tensor("I", 1))
    run = plain.start(request)
    call = plain.call("d")
    plain.answer(call, tensor("OUT", 1), final=False)
    assert told(request) == [({"O": [1]}, False)]
    plain.answer(call, tensor("OUT", 2), final=False)
    plain.answer(call)
    assert told(request) == [({"O": [1]}, False), ({"O": [2]}, False), (None, True)]
    assert run.held == 0


def test_the_last_answer_is_final_if_it_is_known_to_be_the_last(plain: World) -> None:
    request = job(tensor("I", 1))
    plain.start(request)
    call = plain.call("d")
    plain.answer(call, tensor("OUT", 1), final=False)
    plain.answer(call, tensor("OUT", 2))
    assert told(request) == [({"O": [1]}, False), ({"O": [2]}, True)]


def test_a_member_may_answer_nothing_at_all(plain: World) -> None:
    request = job(tensor("I", 1))
    plain.start(request)
    plain.answer(plain.call("d"))
    assert told(request) == [(None, True)]


def test_the_final_answer_waits_for_what_follows_from_the_others(fork: World) -> None:
    """The decoupled member is long done when its answers come out at the end."""
    request = job(tensor("I", 1))
    run = fork.start(request)
    call = fork.call("d")
    fork.answer(call, tensor("OUT", 1), final=False)
    fork.answer(call)
    for model in ("a", "b", "j"):
        assert told(request) == []
        fork.answer(fork.call(model), tensor("OUT", 5))
    assert told(request) == [({"O": [5]}, True)]
    assert run.held == 0


def test_answers_that_overtake_each_other_never_mix(fork: World) -> None:
    request = job(tensor("I", 1))
    run = fork.start(request)
    call = fork.call("d")
    fork.answer(call, tensor("OUT", 10), final=False)
    fork.answer(call, tensor("OUT", 20))
    first_a, second_a = (each for each in fork.calls if each.step.model_name == "a")
    first_b, second_b = (each for each in fork.calls if each.step.model_name == "b")
    fork.answer(second_a, tensor("OUT", 21))
    fork.answer(first_b, tensor("OUT", 12))
    assert "j" not in fork.working, "these belong to different answers"
    fork.answer(second_b, tensor("OUT", 22))
    (joined,) = (request for call, request in fork.calls.items() if call.step.model_name == "j")
    assert [each.array.tolist() for each in joined.inputs] == [[21], [22]]
    fork.answer(fork.call("j"), tensor("OUT", 43))
    fork.answer(first_a, tensor("OUT", 11))
    (joined,) = (request for call, request in fork.calls.items() if call.step.model_name == "j")
    assert [each.array.tolist() for each in joined.inputs] == [[11], [12]]
    fork.answer(fork.call("j"), tensor("OUT", 23))
    assert told(request) == [({"O": [43]}, False), ({"O": [23]}, True)], "in the order in which they were complete"
    assert run.held == 0


def test_decoupled_members_may_follow_each_other() -> None:
    steps = [step("d", {"IN": "I"}, {"OUT": "t"}), step("d2", {"IN": "t"}, {"OUT": "O"})]
    world = World(EnsemblePlan(ensemble(steps), [member("d", decoupled=True), member("d2", decoupled=True)]))
    request = job(tensor("I", 1))
    run = world.start(request)
    call = world.call("d")
    world.answer(call, tensor("OUT", 1), final=False)
    world.answer(call, tensor("OUT", 2))
    one, two = world.calls
    world.answer(two, tensor("OUT", 21), final=False)
    world.answer(one, tensor("OUT", 11), final=False)
    world.answer(two, tensor("OUT", 22))
    world.answer(one)
    assert [answer for answer, _ in told(request)] == [{"O": [21]}, {"O": [11]}, {"O": [22]}, None]
    assert run.held == 0


def test_answers_to_answers_never_mix() -> None:
    """Each answer of d goes to d2; what d2 answers is joined with what a makes of it."""
    steps = [
        step("d", {"IN": "I"}, {"OUT": "t"}),
        step("d2", {"IN": "t"}, {"OUT": "u"}),
        step("a", {"IN": "u"}, {"OUT": "v"}),
        step("j", {"A": "u", "B": "v"}, {"OUT": "O"}),
    ]
    members = [member("d", decoupled=True), member("d2", decoupled=True), member("a"), member("j", ("A", "B"))]
    world = World(EnsemblePlan(ensemble(steps), members))
    world.start(job(tensor("I", 1)))
    call = world.call("d")
    world.answer(call, tensor("OUT", 1), final=False)
    world.answer(call, tensor("OUT", 2))
    one, two = world.calls
    world.answer(one, tensor("OUT", 10))
    world.answer(two, tensor("OUT", 20))
    first, second = world.calls
    world.answer(second, tensor("OUT", 21))
    world.answer(first, tensor("OUT", 11))
    joined = [[each.array.tolist() for each in request.inputs] for request in world.calls.values()]
    assert joined == [[[20], [21]], [[10], [11]]]


def test_a_tensor_is_let_go_after_its_last_use(fork: World) -> None:
    run = fork.start(job(tensor("I", 1)))
    call = fork.call("d")
    for number in range(5):
        fork.answer(call, tensor("OUT", number), final=False)
        assert run.held == 3, "the calls of d, a and b, and no tensor"
        fork.answer(fork.call("a"), tensor("OUT", number))
        assert run.held == 3, "the calls of d and b, and what waits for b"
        fork.answer(fork.call("b"), tensor("OUT", number))
        fork.answer(fork.call("j"), tensor("OUT", number))
        assert run.held == 1, "the call of d"


def test_what_went_out_before_an_error_stays_and_the_error_is_final(plain: World) -> None:
    request = job(tensor("I", 1))
    run = plain.start(request)
    call = plain.call("d")
    plain.answer(call, tensor("OUT", 1), final=False)
    plain.fail(call, InternalError("boom"), final=False)
    assert len(outcomes(request)) == 1, "it may still be working"
    plain.answer(call, tensor("OUT", 2), final=False)
    plain.answer(call)
    assert len(outcomes(request)) == 2
    assert error(request).message == "in ensemble 'e', boom"
    assert run.held == 0


def test_a_member_that_fails_on_one_answer_ends_the_others(fork: World) -> None:
    request = job(tensor("I", 1))
    run = fork.start(request)
    call = fork.call("d")
    fork.answer(call, tensor("OUT", 1), final=False)
    fork.fail(fork.call("a"), InternalError("boom"))
    fork.answer(fork.call("b"), tensor("OUT", 1))
    fork.answer(call, tensor("OUT", 2), final=False)
    assert fork.working == ["d"], "its later answers start nothing"
    fork.answer(call)
    assert error(request).message == "in ensemble 'e', boom"
    assert run.held == 0


def test_cancelling_reaches_the_member_and_every_iteration(fork: World) -> None:
    request = job(tensor("I", 1))
    run = fork.start(request)
    call = fork.call("d")
    fork.answer(call, tensor("OUT", 1), final=False)
    fork.answer(call, tensor("OUT", 2), final=False)
    fork.cancel(run)
    assert sorted(each.step.model_name for each in fork.cancelled) == ["a", "a", "b", "b", "d"]
    for each in list(fork.calls):
        fork.answer(each, tensor("OUT", 1))
    assert [final for _, final in outcomes(request)] == [True]
    assert run.held == 0


def test_a_member_that_should_answer_once_is_heard_once() -> None:
    steps = [step("a", {"IN": "I"}, {"OUT": "t"}), step("b", {"IN": "t"}, {"OUT": "O"})]
    world = World(EnsemblePlan(ensemble(steps), [member("a"), member("b")]))
    request = job(tensor("I", 1))
    world.start(request)
    call = world.call("a")
    world.answer(call, tensor("OUT", 1), final=False)
    world.answer(call, tensor("OUT", 2), final=False)
    assert world.working == ["a", "b"]
    world.answer(world.call("b"), tensor("OUT", 3))
    assert told(request) == [], "it answers once itself, when all is over"
    world.answer(call)
    assert told(request) == [({"O": [3]}, False), (None, True)] or told(request) == [({"O": [3]}, True)]
