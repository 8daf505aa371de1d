"""Random graphs, random requests, random order of events: what must hold whatever happens.

A member's answer is a function of its inputs, so a request's responses can be worked out directly, step by step, and
compared with what came out of the ensemble.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from ensembles import World, ensemble, job, member, outcomes, step, tensor, values
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.engine.ensemble import EnsemblePlan, StepCall
from trireme.engine.ensemble.run import RunState
from trireme.engine.errors import CancelledError, InternalError, TriremeError, UnavailableError
from trireme.engine.job import Job
from trireme.engine.request import InferenceResponse
from trireme.engine.tensor import Tensor

Made = dict[str, float | None]
"""A member's outputs by name; None for one that it does not return."""


def answers(index: int, names: list[str], taken: dict[str, float], decoupled: bool) -> list[Made]:
    """What the member of a step answers to these inputs (absent ones are left out)."""
    total = sum(value * (place + 1) for place, value in enumerate(taken.values())) * (index + 2.0) + len(taken)
    count = int(total) % 4 if decoupled else 1
    made: list[Made] = []
    for number in range(count):
        results = [(total + 7 * number + 3 * place + 1) % 1009 for place in range(len(names))]
        made.append({name: None if result % 11 == 0 else result for name, result in zip(names, results, strict=True)})
    return made


@dataclass
class Graph:
    """An ensemble as plain data: (inputs, outputs, decoupled) of each step, by ensemble tensor."""

    inputs: list[str]
    outputs: list[str]
    limit: int
    steps: list[tuple[list[str], list[str], bool]] = field(default_factory=list)

    def plan(self) -> EnsemblePlan:
        steps, members = [], []
        for index, (taken, made, decoupled) in enumerate(self.steps):
            ins = {f"IN{place}": name for place, name in enumerate(taken)}
            outs = {f"OUT{place}": name for place, name in enumerate(made)}
            steps.append(step(f"m{index}", ins, outs))
            members.append(member(f"m{index}", [f"{name}?" for name in ins], list(outs), decoupled=decoupled))
        rest = f"max_inflight_requests: {self.limit}"
        inputs = [f"{name}?" for name in self.inputs]
        return EnsemblePlan(ensemble(steps, inputs, self.outputs, rest=rest), members)

    def evaluate(self, given: dict[str, float], wanted: list[str]) -> list[dict[str, list[float]]]:
        """The responses, worked out directly, sorted."""
        tensors: dict[str, dict[tuple[int, ...], float | None]] = {name: {(): given.get(name)} for name in self.inputs}
        for index, (taken, made, decoupled) in enumerate(self.steps):
            for name in made:
                tensors[name] = {}
            for at in tensors[taken[0]]:
                ins = {f"IN{place}": tensors[name][at] for place, name in enumerate(taken)}
                present = {name: value for name, value in ins.items() if value is not None}
                for number, answer in enumerate(answers(index, made, present, decoupled)):
                    for name in made:
                        tensors[name][(*at, number) if decoupled else at] = answer[name]
        responses = []
        for at in tensors[wanted[0]]:
            found = {name: tensors[name][at] for name in self.outputs if name in wanted}
            responses.append({name: [value] for name, value in found.items() if value is not None})
        return sorted(responses, key=repr)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Every step takes tensors that follow from the same answers (`engine.ensemble.plan`, rule 4)."""
    inputs = [f"I{number}" for number in range(draw(st.integers(1, 3)))]
    origins = dict.fromkeys(inputs, 0)
    graph = Graph(inputs, [], draw(st.integers(0, 2)))
    for index in range(draw(st.integers(1, 6))):
        origin = draw(st.sampled_from(sorted(set(origins.values()))))
        pool = [name for name, other in origins.items() if other == origin]
        taken = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
        made = [f"t{index}_{number}" for number in range(draw(st.integers(1, 2)))]
        decoupled = draw(st.integers(0, 2)) == 0
        origins.update(dict.fromkeys(made, index + 1 if decoupled else origin))
        graph.steps.append((taken, made, decoupled))
    last = origins[graph.steps[-1][1][0]]
    pool = [name for name, origin in origins.items() if origin == last]
    graph.outputs = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3, unique=True))
    return graph


@st.composite
def jobs(draw: st.DrawFn, graph: Graph) -> Job:
    given = draw(st.lists(st.sampled_from(graph.inputs), min_size=1, unique=True))
    inputs = [tensor(name, draw(st.integers(0, 50))) for name in given]
    outputs = draw(st.lists(st.sampled_from(graph.outputs), unique=True))
    return job(*inputs, outputs=tuple(outputs))


class Members:
    """Work off the calls of a world, in an order that hypothesis draws."""

    def __init__(self, graph: Graph, world: World, draw: st.DataObject) -> None:
        self._graph = graph
        self._world = world
        self._draw = draw
        self._left: dict[StepCall, list[list[Tensor]]] = {}

    def step(self) -> None:
        """One answer of one call."""
        call = self._draw.draw(st.sampled_from(list(self._world.calls)))
        if call not in self._left:
            self._left[call] = list(self._responses(call))
        left = self._left[call]
        if not left:
            self._world.answer(call)
            return
        outputs = left.pop(0)
        final = not left and (not call.step.decoupled or self._draw.draw(st.booleans()))
        self._world.respond(call, InferenceResponse("m", 1, "", outputs), final)

    def fail(self) -> None:
        """One call fails."""
        call = self._draw.draw(st.sampled_from(list(self._world.calls)))
        self._world.fail(call, self._draw.draw(st.sampled_from([InternalError("boom"), UnavailableError("full")])))

    def _responses(self, call: StepCall) -> Iterator[list[Tensor]]:
        made = self._graph.steps[call.step.index][1]
        inputs = sorted(self._world.calls[call].inputs, key=lambda each: each.name)
        taken = {each.name: float(each.array[0]) for each in inputs}
        for answer in answers(call.step.index, made, taken, call.step.decoupled):
            found = [(f"OUT{place}", answer[name]) for place, name in enumerate(made)]
            yield [tensor(name, value) for name, value in found if value is not None]


def test_every_transition_happens_and_no_other() -> None:
    """What one run does to each sort of event in each state."""
    events = {
        RunState.FAILED: lambda world, run: world.fail(next(iter(world.calls)), InternalError("boom")),
        RunState.CANCELLED: lambda world, run: world.cancel(run),
        RunState.ENDED: lambda world, run: [world.answer(call, tensor("OUT", 1)) for call in list(world.calls)],
    }
    seen: dict[RunState, set[RunState]] = {state: set() for state in RunState}
    for first, second in itertools.product(events, repeat=2):
        steps = [step("a", {"IN": "I"}, {"OUT": "O"}), step("b", {"IN": "I"}, {"OUT": "P"})]
        world = World(EnsemblePlan(ensemble(steps, outputs=("O", "P")), [member("a"), member("b")]))
        run = world.start(job(tensor("I", 1)))
        for event in (first, second):
            before = run.state
            if world.calls:
                events[event](world, run)
            if run.state is not before:
                seen[before].add(run.state)
    assert seen == {
        RunState.RUNNING: {RunState.FAILED, RunState.CANCELLED, RunState.ENDED},
        RunState.FAILED: {RunState.CANCELLED, RunState.ENDED},
        RunState.CANCELLED: {RunState.ENDED},
        RunState.ENDED: set(),
    }


def assert_sound(world: World, graph: Graph, jobs: list[Job]) -> None:
    """What holds in every history once it is over."""
    assert world.core.inflight == 0
    assert not world.calls
    for each in jobs:
        finals = [final for _, final in outcomes(each)]
        assert finals.count(True) == 1
        assert finals[-1]
    submitted = [(id(call.run), index, call.iteration) for index, call in world.submitted]
    assert len(submitted) == len(set(submitted)), "a step ran twice for one iteration"
    if graph.limit:
        assert max(world.most_inflight.values(), default=0) <= graph.limit
    assert all(call.run.held == 0 for _, call in world.submitted)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_responses_are_what_the_graph_makes_of_the_inputs(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    world = World(graph.plan())
    requests = [data.draw(jobs(graph)) for _ in range(data.draw(st.integers(1, 3)))]
    members = Members(graph, world, data)
    waiting = list(requests)
    while waiting or world.calls:
        if waiting and (not world.calls or data.draw(st.booleans())):
            world.start(waiting.pop(0))
        else:
            members.step()
    assert_sound(world, graph, requests)
    for each in requests:
        given = {name: float(each.inputs[name].array[0]) for name in each.inputs}
        wanted = list(each.requested_outputs) or graph.outputs
        got = [values(answer) for answer, _ in outcomes(each) if isinstance(answer, InferenceResponse)]
        assert sorted(got, key=repr) == graph.evaluate(given, wanted)
        needed = world.core.plan.needed(each.requested_outputs)
        assert all(index in needed for index, call in world.submitted if call.run.job is each)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_goes_wrong_each_request_ends_once_and_nothing_stays(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    world = World(graph.plan())
    requests = [data.draw(jobs(graph)) for _ in range(data.draw(st.integers(1, 3)))]
    members = Members(graph, world, data)
    runs = [world.start(each) for each in requests]
    troubles = data.draw(st.integers(1, 4))
    cancelled: set[int] = set()
    while world.calls:
        event = data.draw(st.sampled_from(["step", "step", "fail", "cancel"])) if troubles else "step"
        if event == "step":
            members.step()
            continue
        troubles -= 1
        if event == "fail":
            before = len(world.submitted)
            members.fail()
            failed_runs = {id(call.run) for _, call in world.submitted[before:] if call.run.state.value == "failed"}
            assert not failed_runs, "a failed request submitted a step"
        else:
            number = data.draw(st.integers(0, len(runs) - 1))
            cancelled.add(number)
            mine = [call for call in world.calls if call.run is runs[number]]
            world.cancel(runs[number])
            assert set(mine) <= set(world.cancelled)
    assert_sound(world, graph, requests)
    for number, each in enumerate(requests):
        last, _ = outcomes(each)[-1]
        if isinstance(last, CancelledError):
            assert number in cancelled
        elif isinstance(last, TriremeError):
            assert last.message in ("in ensemble 'e', boom", "in ensemble 'e', full")
