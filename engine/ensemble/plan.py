"""The graph of an ensemble: its steps, and the tensors between them (docs/reference/ensembles.md).

A plan is made once, when an ensemble and all its members are loaded, and shared by all its requests. It never changes.
What the configuration alone says has been checked before (`engine.config.ensemble`), what the members say by
`agreement`; together they promise that data flows from the inputs through every step, and never in a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..config.ensemble import ensemble_scheduling
from ..config.model import Dims, ModelConfig, ModelOutput
from .agreement import check_agreement


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step, and what its member's configuration says that matters on the way.

    Attributes:
        index: position in the configuration.
        model_version: -1 is the latest.
        inputs: (member's input, ensemble tensor), by the name of the input.
        outputs: (member's output, ensemble tensor), by the name of the output.
        dims: of each mapped input of the member, without its batch dimension.
        batching: the member's requests have a batch dimension.
        decoupled: the member answers any number of times.
    """

    index: int
    model_name: str
    model_version: int
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    dims: Mapping[str, Dims]
    batching: bool
    decoupled: bool


class EnsemblePlan:
    """The steps of one ensemble, connected.

    Args:
        config: the ensemble's, valid by itself.
        members: the complete configuration of each step's model, in the order of the steps.

    Attributes:
        name: the ensemble's.
        batching: its requests have a batch dimension.
        decoupled: it answers any number of times: data of a decoupled member reaches its outputs.
        steps: in the order of the configuration.
        inputs: its inputs' names.
        optional_inputs: those of them that a request may leave out.
        outputs: its outputs by name, in the order of the configuration.
        consumers: by tensor, the indices of the steps that take it, ascending.
        producers: by tensor, the step that makes it and which of its outputs it is; inputs of the ensemble have none.
        following: by step, the steps that take something which follows from it, directly or not.
        max_inflight_requests: most requests that a step may have in flight at a time; 0 for no limit.

    Raises:
        InvalidArgumentError: the ensemble and its members do not go together.
    """

    def __init__(self, config: ModelConfig, members: Sequence[ModelConfig]) -> None:
        scheduling = ensemble_scheduling(config)
        self.decoupled = check_agreement(config, members)
        self.name = config.name
        self.batching = config.max_batch_size > 0
        self.max_inflight_requests = scheduling.max_inflight_requests
        self.inputs = tuple(tensor.name for tensor in config.input)
        self.optional_inputs = tuple(tensor.name for tensor in config.input if tensor.optional)
        self.outputs: Mapping[str, ModelOutput] = {tensor.name: tensor for tensor in config.output}
        self.steps = tuple(
            StepPlan(
                index,
                step.model_name,
                step.model_version,
                tuple(step.input_map.items()),
                tuple(step.output_map.items()),
                {tensor.name: tensor.dims for tensor in member.input if tensor.name in step.input_map},
                member.max_batch_size > 0,
                member.decoupled,
            )
            for index, (step, member) in enumerate(zip(scheduling.steps, members, strict=True))
        )
        consumers: dict[str, dict[int, None]] = {}
        self.producers: dict[str, tuple[int, str]] = {}
        for step in self.steps:
            for _, tensor in step.inputs:
                consumers.setdefault(tensor, {})[step.index] = None
            for name, tensor in step.outputs:
                self.producers[tensor] = (step.index, name)
        self.consumers = {tensor: tuple(steps) for tensor, steps in consumers.items()}
        self.following = tuple(self._following(step) for step in self.steps)
        self._all = frozenset(range(len(self.steps)))

    def _following(self, step: StepPlan) -> frozenset[int]:
        found: set[int] = set()
        steps = [step]
        while steps:
            taken = {index for _, tensor in steps.pop().outputs for index in self.consumers.get(tensor, ())}
            steps += [self.steps[index] for index in taken - found]
            found |= taken
        return frozenset(found)

    def needed(self, requested: Collection[str]) -> frozenset[int]:
        """The steps without which these outputs cannot be made; all steps, if none is named."""
        if not requested or len(self.outputs) == len(set(requested)):
            return self._all
        needed: set[int] = set()
        tensors = list(requested)
        while tensors:
            index, _ = self.producers.get(tensors.pop(), (None, ""))
            if index is not None and index not in needed:
                needed.add(index)
                tensors += [tensor for _, tensor in self.steps[index].inputs]
        return frozenset(needed)

    def __repr__(self) -> str:
        steps = " ".join(step.model_name for step in self.steps)
        return f"<EnsemblePlan {self.name}{' (decoupled)' * self.decoupled}: {steps}>"
