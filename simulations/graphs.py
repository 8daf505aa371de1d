"""What a request to an ensemble comes to: its steps, what each of them executes, and what the answer must be.

Whatever an ensemble asks of a member is a request of its own, with a number of its own: see `step_number`. What follows
from a decoupled member is carried out for each of its answers; an *iteration* says for which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from ..engine.ensemble.run import Iteration
from .plan import Fault, ModelPlan, Plan, RequestPlan, StepPlan

MOST_STEPS = 9
MOST_ANSWERS = 100
_FIRST_PARENT = 1_000_000
_MODULUS = 65_536


def step_number(parent: int, step: int, iteration: Iteration = ()) -> int:
    """The number of the request that a step (from 1) of request `parent` makes: the steps of request 12 are 10000121,
    10000122 and so on; those of the first of these, if it is for an ensemble again, 100001211 and so on. Three digits
    for each answer that the step follows from stand before it: 10000120072 is the second step for the eighth answer.
    """
    assert 0 < step <= MOST_STEPS, f"there is no number for step {step}"
    number = parent if parent >= _FIRST_PARENT else _FIRST_PARENT + parent
    for answer in iteration:
        assert 0 <= answer < MOST_ANSWERS, f"there is no number for answer {answer}"
        number = number * 1_000 + answer  # the first of its digits is 0, which no step is
    return number * 10 + step


def is_step(request: int) -> bool:
    """Whether a request was made by an ensemble."""
    return request >= _FIRST_PARENT


Value = TypeVar("Value", float, np.ndarray)


def answer(state: Any, inputs: Sequence[Value]) -> Value:
    """What models answer, element by element: a sum that tells who was asked what."""
    total: Any = sum(inputs, state)
    return (total + 1) % _MODULUS


Leaf = tuple[int, int, str]
"""A step by its place below the client's request, `path` of so many digits that `power` is the power of ten that has as
many zeros (see `step_number`), and its model."""

what_is_asked = attrgetter(*(field.name for field in fields(RequestPlan)[2:]))
"""All of a request but its number and its model."""


class Graphs:
    """The ensembles of a plan.

    Attributes:
        ensembles: by name.
        decoupled: the models, ensembles included, that answer any number of times.
    """

    def __init__(self, plan: Plan) -> None:
        self._models = {model.name: model for model in plan.models}
        self._executions: dict[int, list[RequestPlan]] = {}  # by request
        self._leaves: dict[str, list[Leaf]] = {}
        self._remembers: dict[str, bool] = {}
        self._needed: dict[tuple[str, bool], frozenset[int]] = {}
        self.ensembles = {model.name: model for model in plan.models if model.steps}
        self.decoupled = {model.name for model in plan.models if model.decoupled}
        for name, ensemble in self.ensembles.items():  # they come after what they are made of
            if any(step.model in self.decoupled for step in ensemble.steps):
                self.decoupled.add(name)

    def needed(self, ensemble: str, *, whole: bool) -> frozenset[int]:
        """The steps of an ensemble that are carried out: all for clients, and for another ensemble those without which
        its first output cannot be made."""
        found = self._needed.get((ensemble, whole))
        if found is None:
            steps = self.ensembles[ensemble].steps
            found = frozenset(range(1, len(steps) + 1)) if whole else _made_of(len(steps), steps)
            self._needed[ensemble, whole] = found
        return found

    def executions(self, request: RequestPlan) -> list[RequestPlan]:
        """What is executed for a request, each as a request of its own; the fault strikes one of them."""
        if request.model not in self.ensembles:
            return [request]
        found = self._executions.get(request.number)
        if found is None:
            healthy = request if request.fault is Fault.NONE else replace(request, fault=Fault.NONE)
            found = []
            if self.is_decoupled(request.model):
                self._unfold(healthy, found, whole=True)
            else:
                leaves, root, asked = self.leaves(request.model), _FIRST_PARENT + request.number, what_is_asked(healthy)
                found += [RequestPlan(root * power + path, model, *asked) for power, path, model in leaves]
            if request.fault is not Fault.NONE:
                struck = request.fault_step % len(found)
                found[struck] = replace(found[struck], fault=request.fault)
            self._executions[request.number] = found
        return found

    def _unfold(self, request: RequestPlan, found: list[RequestPlan], *, whole: bool) -> int:
        """Add what is executed to `found`; how many answers there are if nothing goes wrong."""
        plan = self._models[request.model]
        if not plan.steps:
            found.append(request)
            return request.answers * (request.turns if plan.iterative else 1)
        needed = self.needed(plan.name, whole=whole)
        iterations: list[list[Iteration]] = [[()]]  # by tensor
        for number, step in enumerate(plan.steps, start=1):
            made: list[Iteration] = []
            for at in iterations[step.takes[0]] if number in needed else ():  # all that it takes has the same ones
                asked = replace(request, number=step_number(request.number, number, at), model=step.model)
                answers = self._unfold(asked, found, whole=False)
                made += [(*at, answer) for answer in range(answers)] if self.is_decoupled(step.model) else [at]
            iterations.append(made)
        return len(iterations[plan.sinks[0]])

    def executors(self, request: RequestPlan) -> list[str]:
        """The models of all that is executed for a request; a model that executes several times is there as often."""
        if self.is_decoupled(request.model):
            return [each.model for each in self.executions(request)]
        return [model for _, _, model in self.leaves(request.model)]

    def is_decoupled(self, model: str) -> bool:
        """Whether a model answers any number of times."""
        return model in self.decoupled

    def leaves(self, model: str) -> list[Leaf]:
        """What is executed in the end when a client asks this model; no leaf is an ensemble itself."""
        found = self._leaves.get(model)
        if found is None:
            found = self._leaves[model] = list(self._walk(1, 0, model, whole=True))
        return found

    def _walk(self, power: int, path: int, model: str, *, whole: bool) -> Iterator[Leaf]:
        if model not in self.ensembles:
            yield power, path, model
            return
        for number in sorted(self.needed(model, whole=whole)):
            yield from self._walk(
                power * 10, path * 10 + number, self.ensembles[model].steps[number - 1].model, whole=False
            )

    def answers(self, model: str, value: Value, extra: Any = 0) -> list[Value]:
        """What a model's outputs are for an input of this value, in their order. Its inputs are all the same, but for
        what `extra` says there."""
        plan = self._models[model]
        if not plan.steps:
            return [answer(extra, [value] * plan.inputs)]
        tensors = [value]
        for step in plan.steps:
            inputs = [tensors[number] for number in step.takes]
            member = self._models[step.model]
            tensors.append(self.answers(step.model, inputs[0])[0] if member.steps else answer(0, inputs))
        return [tensors[sink] for sink in plan.sinks]

    def remembers(self, model: str) -> bool:
        """Whether a model's answers depend on more than the request."""
        found = self._remembers.get(model)
        if found is None:
            plan = self._models[model]
            found = any(self.remembers(step.model) for step in plan.steps) or (
                plan.sequences is not None and plan.sequences.sums
            )
            self._remembers[model] = found
        return found

    def is_stateful(self, model: ModelPlan) -> bool:
        """Whether requests to a model must belong to sequences."""
        if model.steps:
            return any(self.is_stateful(self._models[step.model]) for step in model.steps)
        return model.sequences is not None


def _made_of(last: int, steps: Sequence[StepPlan]) -> frozenset[int]:
    """The steps without which the output of this one, the `last`, cannot be made, and itself."""
    needed: set[int] = set()
    wanted = [last]
    while wanted:
        number = wanted.pop()
        if number and number not in needed:
            needed.add(number)
            wanted += steps[number - 1].takes
    return frozenset(needed)
