"""The graph of an ensemble: its steps, and the tensors between them (docs/reference/ensembles.md).

A plan is made once, when an ensemble and all its members are loaded, and shared by all its requests. It never changes.
What the configuration alone says has been checked before (`engine.config.ensemble`), what the members say is checked
here; together they promise that data flows from the inputs through every step, and never in a circle.

Rules, of an ensemble and its members (docs/reference/ensembles.md#members):
 1. A batching member takes at least the ensemble's max_batch_size; one without a batch dimension is not asked.
 2. Each mapped input and output exists, and each input of a member is mapped, unless it is optional.
 3. All that mention a tensor agree with the first mention of it (the ensemble's own inputs and outputs, then the steps
    in their order) about its type and its shape: without the batch dimensions, or else with them; -1 is any size.
 4. All inputs of a step, and all outputs of the ensemble, follow from the same answers of the same decoupled member, or
    from none. Which answers of two such members belong together would be undefined.
 5. The ensemble is decoupled if a member is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..config.ensemble import EnsembleStep, ensemble_scheduling
from ..config.model import Dims, ModelConfig, ModelInput, ModelOutput
from ..datatypes import DataType
from ..errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class PlannedStep:
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
        batching: its requests have a batch dimension.
        decoupled: it answers any number of times: data of a decoupled member reaches its outputs.
        inputs, optional_inputs, outputs: those of the ensemble, by name, in the order of the configuration.
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
            PlannedStep(
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

    def _following(self, step: PlannedStep) -> frozenset[int]:
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


@dataclass(frozen=True, slots=True)
class _Mention:
    """What the first to mention a tensor said of it."""

    model: str
    datatype: DataType
    dims: Dims
    full_dims: Dims


_Mentions = dict[str, _Mention]


def check_agreement(config: ModelConfig, members: Sequence[ModelConfig]) -> bool:
    """Check rules 1 to 4.

    Args:
        config: the ensemble's, valid by itself.
        members: the complete configuration of each step's model, in the order of the steps.

    Returns:
        Whether the ensemble is decoupled (rule 5).

    Raises:
        InvalidArgumentError: the first thing that is wrong, in the words of docs/reference/ensembles.md#members.
    """
    steps = ensemble_scheduling(config).steps
    mentions: _Mentions = {}
    for tensor in (*config.input, *config.output):
        dims = tensor.inner_dims
        mentions.setdefault(tensor.name, _mention(config, tensor.datatype, dims))
    for step, member in zip(steps, members, strict=True):
        if 0 < member.max_batch_size < config.max_batch_size:
            raise InvalidArgumentError(
                f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model "
                f"{step.model_name} which only allows maximum batch size to be {member.max_batch_size}"
            )
        _check_inputs(config, step, member, mentions)
        _check_outputs(config, step, member, mentions)
    return _check_flow(config, steps, members, mentions)


def _mention(config: ModelConfig, datatype: DataType, dims: Dims) -> _Mention:
    return _Mention(config.name, datatype, dims, (-1, *dims) if config.max_batch_size > 0 else dims)


def _check_inputs(config: ModelConfig, step: EnsembleStep, member: ModelConfig, mentions: _Mentions) -> None:
    where = f"in ensemble {config.name}"
    for name, tensor in step.input_map.items():
        if member.find_input(name) is None:
            raise InvalidArgumentError(
                f"{where}, ensemble tensor {tensor} is mapping to non-existing input {name} in model {step.model_name}"
            )
    for model_input in member.input:
        tensor = step.input_map.get(model_input.name)
        if tensor is not None:
            _agree(config, tensor, model_input, member, mentions)
        elif not model_input.optional:
            raise InvalidArgumentError(
                f"{where}, input {model_input.name} in model {step.model_name} is not mapped to any ensemble tensors"
            )


def _check_outputs(config: ModelConfig, step: EnsembleStep, member: ModelConfig, mentions: _Mentions) -> None:
    inputs = {tensor.name for tensor in config.input}
    for name, tensor in step.output_map.items():
        model_output = member.find_output(name)
        if model_output is None:
            raise InvalidArgumentError(
                f"in ensemble {config.name}, ensemble tensor {tensor} is mapped from non-existing output {name} in "
                f"model {step.model_name}"
            )
        if tensor in inputs:
            raise InvalidArgumentError(
                f"in ensemble {config.name}, ensemble tensor {tensor} is an input of the ensemble, so it cannot be "
                f"mapped from output {name} in model {step.model_name}"
            )
        _agree(config, tensor, model_output, member, mentions)


def _agree(
    config: ModelConfig, tensor: str, mapped: ModelInput | ModelOutput, member: ModelConfig, mentions: _Mentions
) -> None:
    """Rule 3."""
    said = _mention(member, mapped.datatype, mapped.dims)
    first = mentions.setdefault(tensor, said)
    where = f"in ensemble {config.name}, ensemble tensor {tensor}: inconsistent"
    who = f"is inferred from model {first.model} while", f"is inferred from model {said.model}"
    if first.datatype is not said.datatype:
        raise InvalidArgumentError(
            f"{where} data type: {first.datatype.config_name} {who[0]} {said.datatype.config_name} {who[1]}"
        )
    if not (matches(first.dims, said.dims) or matches(first.full_dims, said.full_dims)):
        raise InvalidArgumentError(
            f"{where} shape: {_print_dims(first.full_dims)} {who[0]} {_print_dims(said.full_dims)} {who[1]}"
        )


def matches(first: Dims, second: Dims) -> bool:
    """Whether two shapes can be one; -1 is any size."""
    if len(first) != len(second):
        return False
    return all(one == other or -1 in (one, other) for one, other in zip(first, second, strict=True))


def _print_dims(dims: Dims) -> str:
    return f"[{','.join(map(str, dims))}]"


def _check_flow(
    config: ModelConfig, steps: Sequence[EnsembleStep], members: Sequence[ModelConfig], mentions: _Mentions
) -> bool:
    """Rules 4 and 5. Each tensor gets the number of the decoupled step that it follows from; 0 is the request itself.

    A disagreement is blamed on the model that first mentioned what is made from it, as Triton does.
    """
    origins = dict.fromkeys((tensor.name for tensor in config.input), 0)
    waiting = dict(enumerate(steps))
    decoupled = 0
    while waiting:
        ready = [index for index, step in waiting.items() if all(name in origins for name in step.input_map.values())]
        assert ready, "validation has found what no data reaches"
        for index in ready:
            step = waiting.pop(index)
            tensors = list(step.output_map.values())
            origin = _origin(config, step.input_map.values(), mentions[tensors[0]].model, origins)
            if members[index].decoupled:
                decoupled += 1
                origin = decoupled
            origins.update(dict.fromkeys(tensors, origin))
    _origin(config, [tensor.name for tensor in config.output], config.name, origins)
    return decoupled > 0


def _origin(config: ModelConfig, tensors: Iterable[str], model: str, origins: dict[str, int]) -> int:
    found = {origins[tensor] for tensor in tensors}
    if len(found) > 1:
        raise InvalidArgumentError(
            f"in ensemble {config.name}, step of model '{model}' receives inputs originated from different decoupled "
            "models"
        )
    return found.pop()
