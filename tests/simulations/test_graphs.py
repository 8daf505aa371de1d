"""What a request to an ensemble comes to, by the plan alone; and that the real ensemble does just that."""

from __future__ import annotations

from collections import Counter

from trireme.simulations.events import AnswersTaken, BatchSealed, RequestAnswered, StepSubmitted
from trireme.simulations.graphs import Graphs, is_step, step_number
from trireme.simulations.plan import Fault, ModelPlan, Plan, RequestPlan, StepPlan
from trireme.simulations.play import drain_bound_s, play
from trireme.simulations.report import describe

MS = 1_000_000
INNER = ModelPlan("inner", steps=(StepPlan("one"), StepPlan("one"), StepPlan("two", (1, 1))))
OUTER = ModelPlan("outer", steps=(StepPlan("inner"), StepPlan("two", (0, 1))), max_inflight=2)
MODELS = (ModelPlan("one"), ModelPlan("two", inputs=2), INNER, OUTER)


def plan(*requests: RequestPlan) -> Plan:
    return Plan(1, MODELS, requests, calm_ns=1_000 * MS)


def test_numbers_of_steps_are_unique_and_tell_where_they_come_from() -> None:
    numbers = {step_number(parent, step) for parent in range(1, 500) for step in range(1, 10)}
    deeper = {step_number(number, step) for number in numbers for step in range(1, 10)}
    assert len(numbers) == 499 * 9
    assert len(deeper) == len(numbers) * 9
    assert not numbers & deeper
    assert all(map(is_step, numbers | deeper))
    assert not is_step(999_999)
    assert step_number(12, 1) == 10000121


def test_steps_that_follow_from_answers_have_numbers_of_their_own() -> None:
    places = [(step, at) for step in range(1, 10) for at in [(), (0,), (1,), (10,), (99,), (0, 0), (0, 1), (1, 0)]]
    numbers = {step_number(parent, *place) for parent in (1, 2, 10, 99) for place in places}
    deeper = {step_number(number, *place) for number in numbers for place in places}
    assert len(numbers) == 4 * len(places)
    assert len(deeper) == len(numbers) * len(places)
    assert not numbers & deeper
    assert step_number(12, 2, (7,)) == 10000120072


def test_outputs_are_what_no_step_takes_the_last_first() -> None:
    assert INNER.sinks == (3, 2)
    assert [output.name for output in INNER.config().output] == ["OUTPUT0", "OUTPUT1"]


def test_an_ensemble_asks_another_one_for_its_first_output_only() -> None:
    graphs = Graphs(plan())
    assert graphs.needed("inner", whole=True) == {1, 2, 3}
    assert graphs.needed("inner", whole=False) == {1, 3}
    request = RequestPlan(1, "outer", 0, fault=Fault.RAISE, fault_step=4)
    executions = [(each.number, each.model, each.fault is Fault.RAISE) for each in graphs.executions(request)]
    assert executions == [(100000111, "one", False), (100000113, "two", True), (10000012, "two", False)]


def test_the_answer_follows_from_the_graph() -> None:
    """one: x + 1; two: x + y + 1; inner: one(x), two of it; outer: two of x and of inner's first output."""
    graphs = Graphs(plan())
    assert graphs.answers("inner", 10) == [11 + 11 + 1, 11]
    assert graphs.answers("outer", 10) == [10 + 23 + 1]


def test_the_real_ensemble_does_what_the_plan_says() -> None:
    """Each step once, each with the right tensors (a wrong answer would be noticed), each a request of its own."""
    outcome = play(plan(RequestPlan(1, "outer", MS), RequestPlan(2, "inner", MS)))
    assert outcome.violation is None
    assert outcome.counts["requests"] == 2
    steps = [(step.parent, step.step) for step in outcome.history.of(StepSubmitted)]
    assert sorted(steps) == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (10000011, 1), (10000011, 3)]
    executed = Counter(request for batch in outcome.history.of(BatchSealed) for request in batch.requests)
    assert executed == Counter({100000111: 1, 100000113: 1, 10000012: 1, 10000021: 1, 10000022: 1, 10000023: 1})


MANY = ModelPlan("many", decoupled=True)
TWICE = ModelPlan("twice", steps=(StepPlan("many"), StepPlan("many", (1,)), StepPlan("one", (2,))), max_inflight=1)
NESTED = ModelPlan("nested", steps=(StepPlan("twice"), StepPlan("one", (1,))))


def test_what_follows_from_a_decoupled_member_is_executed_for_each_of_its_answers() -> None:
    graphs = Graphs(Plan(1, (*MODELS, MANY, TWICE, NESTED), (), calm_ns=0))
    assert graphs.decoupled == {"many", "twice", "nested"}
    executions = graphs.executions(RequestPlan(1, "nested", 0, answers=2, fault=Fault.FAIL, fault_step=1))
    assert Counter(each.model for each in executions) == {"many": 1 + 2, "one": 4 + 4}
    assert len({each.number for each in executions}) == len(executions)
    assert [each.fault for each in executions[:3]] == [Fault.NONE, Fault.FAIL, Fault.NONE]
    none = graphs.executions(RequestPlan(2, "nested", 0, answers=0, fault=Fault.FAIL, fault_step=1))
    assert [(each.model, each.fault) for each in none] == [("many", Fault.FAIL)]
    assert Counter(graphs.executors(RequestPlan(3, "nested", 0, answers=2))) == {"many": 3, "one": 8}


def test_the_real_ensemble_does_so_too() -> None:
    """Each step once for each answer that it follows from, and one answer for each way through the graph."""
    models = (*MODELS, MANY, TWICE, NESTED)
    request = RequestPlan(1, "nested", MS, answers=2, apart=True)
    outcome = play(Plan(1, models, (request,), calm_ns=1_000 * MS))
    assert outcome.violation is None
    steps = [(each.parent, each.step, each.iteration) for each in outcome.history.of(StepSubmitted)]
    pairs = [(first, second) for first in (0, 1) for second in (0, 1)]
    inner = [(10000011, 1, ()), *((10000011, 2, (answer,)) for answer in (0, 1))]
    inner += [(10000011, 3, pair) for pair in pairs]
    assert sorted(steps) == [(1, 1, ()), *((1, 2, (answer,)) for answer in range(4)), *sorted(inner)]
    taken = [number for event in outcome.history.of(AnswersTaken) for number in event.answers]
    assert taken == [1, 2, 3, 4]


def test_a_fault_strikes_one_step_and_its_ensembles_say_so() -> None:
    outcome = play(plan(RequestPlan(1, "outer", MS, fault=Fault.FAIL, fault_step=1)))
    assert outcome.violation is None
    errors = {event.request: event.error for event in outcome.history.of(RequestAnswered)}
    assert errors[1] == "in ensemble 'outer', in ensemble 'inner', request 100000113 was made to fail"
    assert not errors[100000111]
    assert 10000012 not in errors


def test_a_request_to_an_ensemble_may_take_as_long_as_all_its_steps() -> None:
    one = drain_bound_s(plan(RequestPlan(1, "one", 0)))
    outer = drain_bound_s(plan(RequestPlan(1, "outer", 0)))
    nothing = drain_bound_s(plan())
    assert outer - nothing > 2.5 * (one - nothing)


def test_an_ensemble_is_described_in_words() -> None:
    lines = list(describe(plan(RequestPlan(1, "outer", 0, fault=Fault.CRASH, fault_step=2))))
    inner = "step 1: one of the input; step 2: one of the input; step 3: two of step 1 and step 1"
    outer = "step 1: inner of the input; step 2: two of the input and step 1; at most 2 in a step"
    assert lines[3:] == [
        f"  model inner: an ensemble; max_batch_size 8; {inner}",
        f"  model outer: an ensemble; max_batch_size 8; {outer}",
        "  request 1 to outer at 0 ms, instance crashes (execution 3)",
    ]
