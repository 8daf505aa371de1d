"""What a request to an ensemble comes to, by the plan alone; and that the real ensemble does just that."""

from __future__ import annotations

from collections import Counter

from trireme.simulations.events import BatchSealed, RequestAnswered, StepSubmitted
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
