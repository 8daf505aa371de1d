"""One request through an ensemble whose members answer once."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from ensembles import World, ensemble, error, job, member, outcomes, response, step, tensor, values

from trireme.engine.datatypes import BYTES
from trireme.engine.ensemble import EnsemblePlan, EnsembleRun
from trireme.engine.errors import (
    CancelledError,
    FailureReason,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
)
from trireme.engine.tensor import Tensor

TWO = ("A", "B?")


def world(*steps: str, members: list, **rest) -> World:
    return World(EnsemblePlan(ensemble(list(steps), **rest), members))


@pytest.fixture
def chain() -> World:
    """I goes through a and b to O."""
    return world(
        step("a", {"IN": "I"}, {"OUT": "t"}),
        step("b", {"IN": "t"}, {"OUT": "O"}),
        members=[member("a"), member("b")],
    )


@pytest.fixture
def diamond() -> World:
    """I goes through a and b side by side, and c after a, to j."""
    return world(
        step("j", {"A": "u", "B": "y"}, {"OUT": "O"}),
        step("a", {"IN": "I"}, {"OUT": "x"}),
        step("b", {"IN": "I"}, {"OUT": "y"}),
        step("c", {"IN": "x"}, {"OUT": "u"}),
        members=[member("j", TWO), member("a"), member("b"), member("c")],
    )


def assert_over(world: World, run: EnsembleRun) -> None:
    """Nothing is in flight and nothing is kept."""
    assert run.held == 0
    assert world.core.inflight == 0
    assert not world.calls


# Data flow


def test_each_step_gets_what_the_one_before_made(chain: World) -> None:
    request = job(tensor("I", 1, 2))
    run = chain.start(request)
    (submitted,) = chain.calls.values()
    assert (submitted.model_name, submitted.model_version, submitted.requested_outputs) == ("a", -1, ("OUT",))
    assert [each.name for each in submitted.inputs] == ["IN"]
    chain.answer(chain.call("a"), tensor("OUT", 3, 4))
    chain.answer(chain.call("b"), tensor("OUT", 5, 6))
    assert values(response(request)) == {"O": [5, 6]}
    assert (response(request).model_name, response(request).model_version, response(request).id) == ("e", 1, "r1")
    assert_over(chain, run)


def test_steps_that_do_not_depend_on_each_other_run_side_by_side(diamond: World) -> None:
    request = job(tensor("I", 1))
    run = diamond.start(request)
    assert diamond.working == ["a", "b"]
    diamond.answer(diamond.call("a"), tensor("OUT", 2))
    assert diamond.working == ["b", "c"]
    diamond.answer(diamond.call("c"), tensor("OUT", 3))
    assert diamond.working == ["b"], "j waits for both"
    diamond.answer(diamond.call("b"), tensor("OUT", 4))
    submitted = diamond.calls[diamond.call("j")]
    assert [(each.name, each.array.tolist()) for each in submitted.inputs] == [("A", [3]), ("B", [4])]
    diamond.answer(diamond.call("j"), tensor("OUT", 7))
    assert values(response(request)) == {"O": [7]}
    assert_over(diamond, run)


def test_tensors_are_handed_on_without_copies(chain: World) -> None:
    given = Tensor("I", BYTES, (1,), buffer=memoryview(b"\x01\x00\x00\x00x"))
    request = job(given)
    chain.start(request)
    assert chain.calls[chain.call("a")].inputs[0].buffer is given.buffer
    made = np.array([1.0], np.float32)
    chain.answer(chain.call("a"), Tensor("OUT", tensor("OUT", 1).datatype, (1,), array=made))
    assert np.shares_memory(chain.calls[chain.call("b")].inputs[0].array, made)
    chain.answer(chain.call("b"), Tensor("OUT", tensor("OUT", 1).datatype, (1,), array=made))
    assert np.shares_memory(response(request).outputs[0].array, made)


def test_one_tensor_may_feed_two_inputs_of_a_step() -> None:
    both = world(step("j", {"A": "I", "B": "I"}, {"OUT": "O"}), members=[member("j", TWO)])
    both.start(job(tensor("I", 1)))
    assert [each.name for each in both.calls[both.call("j")].inputs] == ["A", "B"]


def test_what_the_request_says_is_handed_down(chain: World) -> None:
    request = job(
        tensor("I", 1),
        parameters={"custom": "x"},
        priority=3,
        timeout_us=12345,
        correlation_id=7,
        sequence_start=True,
    )
    chain.start(request)
    chain.calls[chain.call("a")].parameters["custom"] = "changed"
    chain.answer(chain.call("a"), tensor("OUT", 1))
    submitted = chain.calls[chain.call("b")]
    assert (submitted.id, submitted.priority, submitted.timeout_us) == ("r1", 3, 12345)
    assert (submitted.correlation_id, submitted.sequence_start, submitted.sequence_end) == (7, True, False)
    assert submitted.parameters == {"custom": "x"}, "what one member does to its parameters is its own affair"


def test_a_step_names_the_version_that_it_wants() -> None:
    pinned = world(step("a", {"IN": "I"}, {"OUT": "O"}, version=3), members=[member("a")])
    pinned.start(job(tensor("I", 1)))
    assert pinned.calls[pinned.call("a")].model_version == 3


# Sequence information


def test_every_response_tells_the_sequence(chain: World) -> None:
    request = job(tensor("I", 1), correlation_id="abc", sequence_start=True, sequence_end=True)
    chain.start(request)
    chain.answer(chain.call("a"), tensor("OUT", 1), custom="dropped")
    chain.answer(chain.call("b"), tensor("OUT", 1), custom="dropped")
    assert response(request).parameters == {"sequence_id": "abc", "sequence_start": True, "sequence_end": True}


def test_a_response_without_outputs_tells_nothing(chain: World) -> None:
    request = job(tensor("I", 1), correlation_id=7)
    chain.start(request)
    chain.answer(chain.call("a"), tensor("OUT", 1))
    chain.answer(chain.call("b"), custom="only")
    assert (response(request).outputs, response(request).parameters) == ([], {})


def test_a_member_may_change_the_sequence_for_what_follows(chain: World) -> None:
    request = job(tensor("I", 1), correlation_id=7, sequence_start=True)
    chain.start(request)
    chain.answer(chain.call("a"), tensor("OUT", 1), sequence_id=42, sequence_end=True)
    submitted = chain.calls[chain.call("b")]
    assert (submitted.correlation_id, submitted.sequence_start, submitted.sequence_end) == (42, False, True)
    chain.answer(chain.call("b"), tensor("OUT", 1), sequence_start=True)
    assert response(request).parameters == {"sequence_id": 42, "sequence_start": True, "sequence_end": False}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"sequence_id": True},
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING",
        ),
        ({"sequence_start": 3}, "expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL"),
        ({"sequence_end": "yes"}, "expect parameter 'sequence_end' to be TRITONSERVER_PARAMETER_BOOL"),
    ],
)
def test_sequence_parameters_of_the_wrong_type_fail_the_request(chain: World, parameters: dict, text: str) -> None:
    request = job(tensor("I", 1))
    run = chain.start(request)
    chain.answer(chain.call("a"), tensor("OUT", 1), **parameters)
    assert error(request).message == f"in ensemble 'e', {text}"
    assert isinstance(error(request), InvalidArgumentError)
    assert_over(chain, run)


# What is absent, and what is not asked for


def test_an_optional_input_that_is_left_out_is_left_out_of_the_step() -> None:
    optional = world(step("j", {"A": "I", "B": "J"}, {"OUT": "O"}), members=[member("j", TWO)], inputs=("I", "J?"))
    optional.start(job(tensor("I", 1)))
    assert [each.name for each in optional.calls[optional.call("j")].inputs] == ["A"]


def test_an_output_that_a_member_did_not_return_is_absent_downstream(
    diamond: World, caplog: pytest.LogCaptureFixture
) -> None:
    request = job(tensor("I", 1))
    diamond.start(request)
    diamond.answer(diamond.call("a"), tensor("OUT", 1))
    diamond.answer(diamond.call("c"), tensor("OUT", 1))
    diamond.answer(diamond.call("b"), custom="no outputs")
    assert [each.name for each in diamond.calls[diamond.call("j")].inputs] == ["A"]
    with caplog.at_level(logging.DEBUG, "trireme.ensemble"):
        diamond.answer(diamond.call("j"), custom="none here either")
    assert response(request).outputs == []
    assert caplog.messages == ["Composing models did not output tensor O"]


@pytest.fixture
def shared() -> World:
    """s makes O, which is an output and goes on to P as well, and y, from which Q is made."""
    return world(
        step("s", {"IN": "I"}, {"X": "O", "Y": "y"}),
        step("a", {"IN": "O"}, {"OUT": "P"}),
        step("b", {"IN": "y"}, {"OUT": "Q"}),
        members=[member("s", outputs=("X", "Y")), member("a"), member("b")],
        outputs=("O", "P", "Q"),
    )


@pytest.mark.parametrize(("output", "steps"), [("O", ["s"]), ("P", ["s", "a"]), ("Q", ["s", "b"])])
def test_steps_that_no_output_needs_are_left_out(shared: World, output: str, steps: list[str]) -> None:
    request = job(tensor("I", 1), outputs=(output,))
    run = shared.start(request)
    seen: list[str] = []
    while shared.calls:
        call = next(iter(shared.calls))
        seen.append(call.step.model_name)
        shared.answer(call, *(tensor(name, 1) for name, _ in call.step.outputs))
    assert seen == steps
    assert [each.name for each in response(request).outputs] == [output]
    assert_over(shared, run)


def test_outputs_are_in_the_order_of_the_configuration(shared: World) -> None:
    request = job(tensor("I", 1), outputs=("Q", "O"))
    shared.start(request)
    shared.answer(shared.call("s"), tensor("Y", 2), tensor("X", 1))
    shared.answer(shared.call("b"), tensor("OUT", 3))
    assert values(response(request)) == {"O": [1], "Q": [3]}
    assert [each.name for each in response(request).outputs] == ["O", "Q"]


def test_an_input_may_be_an_output() -> None:
    passing = world(step("a", {"IN": "I"}, {"OUT": "O"}), members=[member("a")], outputs=("O", "I"))
    request = job(tensor("I", 1))
    passing.start(request)
    passing.answer(passing.call("a"), tensor("OUT", 2))
    assert values(response(request)) == {"O": [2], "I": [1]}
    request = job(tensor("I", 1), outputs=("I",))
    run = passing.start(request)
    assert values(response(request)) == {"I": [1]}
    assert response(request).parameters == {}, "no step, no sequence"
    assert_over(passing, run)


def test_an_ensemble_that_gets_nowhere_says_so() -> None:
    optional = world(step("j", {"A": "I", "B": "J"}, {"OUT": "O"}), members=[member("j", TWO)], inputs=("I", "J?"))
    request = job(tensor("J", 1))
    run = optional.start(request)
    assert isinstance(error(request), InvalidArgumentError)
    assert error(request).message == (
        "in ensemble 'e', [request id: r1] unexpected deadlock, at least one output is not set while no more ensemble "
        "steps can be made"
    )
    assert_over(optional, run)


def test_a_member_that_ends_without_an_answer_does_not_leave_the_request_open(chain: World) -> None:
    request = job(tensor("I", 1))
    run = chain.start(request)
    chain.answer(chain.call("a"))
    assert "unexpected deadlock" in error(request).message
    assert_over(chain, run)


# Errors


@pytest.mark.parametrize("kind", [UnavailableError, InternalError, InvalidArgumentError, CancelledError])
def test_an_error_of_a_member_keeps_its_kind_and_gets_the_ensembles_name(chain: World, kind: type) -> None:
    request = job(tensor("I", 1))
    run = chain.start(request)
    chain.fail(chain.call("a"), kind("boom", reason=FailureReason.BACKEND))
    assert type(error(request)) is kind
    assert error(request).message == "in ensemble 'e', boom"
    assert error(request).reason is FailureReason.OTHER
    assert_over(chain, run)


def test_an_error_is_answered_when_the_steps_in_flight_are_over(diamond: World) -> None:
    """In the meantime nothing new begins, and the first error is the one that is told."""
    request = job(tensor("I", 1))
    run = diamond.start(request)
    diamond.fail(diamond.call("b"), UnavailableError("first"))
    assert outcomes(request) == []
    diamond.answer(diamond.call("a"), tensor("OUT", 1))
    assert diamond.working == []
    assert error(request).message == "in ensemble 'e', first"
    assert_over(diamond, run)


def test_a_member_that_fails_late_does_not_leave_the_request_open(diamond: World) -> None:
    """The other member failed long before."""
    request = job(tensor("I", 1))
    run = diamond.start(request)
    diamond.fail(diamond.call("b"), UnavailableError("first"))
    diamond.fail(diamond.call("a"), InternalError("second"))
    assert error(request).message == "in ensemble 'e', first"
    assert len(outcomes(request)) == 1
    assert_over(diamond, run)


def test_a_refused_step_keeps_its_parallel_steps_from_being_submitted(diamond: World) -> None:
    request = job(tensor("I", 1))
    run = diamond.core.start(request)
    first = diamond.core.next_action()
    assert first is not None
    diamond.core.step_answered(first.call, UnavailableError("[request id: r1] Exceeds maximum queue size"))  # type: ignore[union-attr]
    diamond.act()
    assert diamond.submitted == []
    assert error(request).message == "in ensemble 'e', [request id: r1] Exceeds maximum queue size"
    assert_over(diamond, run)


def test_ends_that_are_told_twice_change_nothing(diamond: World) -> None:
    request = job(tensor("I", 1))
    run = diamond.start(request)
    late = diamond.call("a")
    diamond.answer(late, tensor("OUT", 1))
    diamond.core.step_answered(late, InternalError("late"))
    diamond.act()
    assert outcomes(request) == []
    for model in ("b", "c", "j"):
        diamond.answer(diamond.call(model), tensor("OUT", 1))
    assert values(response(request)) == {"O": [1]}
    diamond.core.step_answered(late, InternalError("later still"))
    diamond.core.cancel(run)
    diamond.act()
    assert_over(diamond, run)


# Cancelling


def test_cancelling_reaches_all_steps_in_flight_and_starts_no_more(diamond: World) -> None:
    request = job(tensor("I", 1))
    run = diamond.start(request)
    diamond.cancel(run)
    assert [call.step.model_name for call in diamond.cancelled] == ["a", "b"]
    assert request.cancelled
    diamond.answer(diamond.call("a"), tensor("OUT", 1))
    assert outcomes(request) == [], "b is still working"
    diamond.fail(diamond.call("b"), CancelledError(""))
    assert isinstance(error(request), CancelledError)
    assert error(request).message == ""
    assert_over(diamond, run)


def test_cancelling_after_a_failure_stops_waiting_members_and_tells_the_failure(diamond: World) -> None:
    request = job(tensor("I", 1))
    run = diamond.start(request)
    diamond.fail(diamond.call("b"), UnavailableError("first"))
    diamond.cancel(run)
    assert [call.step.model_name for call in diamond.cancelled] == ["a"]
    diamond.answer(diamond.call("a"), tensor("OUT", 1))
    assert error(request).message == "in ensemble 'e', first"
    assert_over(diamond, run)


def test_a_request_that_was_cancelled_before_it_began_begins_nothing(chain: World) -> None:
    request = job(tensor("I", 1))
    request.cancelled = True
    run = chain.start(request)
    assert chain.submitted == []
    assert isinstance(error(request), CancelledError)
    assert_over(chain, run)
