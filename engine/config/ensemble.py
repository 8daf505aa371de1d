"""``ensemble_scheduling`` as plain values (docs/reference/ensembles.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidArgumentError
from .build import model_config
from .model import ModelConfig
from .platforms import ENSEMBLE
from .schema import copy_message


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One step.

    Attributes:
        model_version: -1 is the latest; 0, the default, is version 0 and nothing else.
        input_map: ensemble tensor by the name of the member's input, in the order of these names.
        output_map: ensemble tensor by the name of the member's output, in the order of these names.
    """

    model_name: str
    model_version: int
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EnsembleScheduling:
    """The steps, in the order of the configuration; `max_inflight_requests` holds for each of them, 0 for no limit."""

    steps: tuple[EnsembleStep, ...]
    max_inflight_requests: int = 0


def ensemble_scheduling(config: ModelConfig) -> EnsembleScheduling:
    """What an ensemble's configuration says about its steps."""
    message = config.message.ensemble_scheduling
    return EnsembleScheduling(
        tuple(
            EnsembleStep(
                step.model_name,
                step.model_version,
                {name: step.input_map[name] for name in sorted(step.input_map)},
                {name: step.output_map[name] for name in sorted(step.output_map)},
            )
            for step in message.step
        ),
        message.max_inflight_requests,
    )


def with_decoupled(config: ModelConfig, decoupled: bool) -> ModelConfig:
    """The configuration with the transaction policy that its members imply; what it said itself is overwritten."""
    message = copy_message(config.message)
    message.model_transaction_policy.decoupled = decoupled
    return model_config(message)


# Checks of ``ensemble_scheduling`` that need no other model (docs/reference/ensembles.md#configuration-errors).
#
# The steps form a graph of tensors: a step's outputs depend on all of its inputs. Data flows from the ensemble's
# inputs; every output must be reached, and every tensor must be used.


@dataclass(slots=True)
class _Tensor:
    """A tensor of the graph; `sources` and `targets` are names, in the order of the steps."""

    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    is_written: bool = False
    is_ready: bool = False


def validate_ensemble(message: Any) -> None:
    """Check an ensemble by itself.

    Raises:
        InvalidArgumentError: the first thing that is wrong.
    """
    model = message.name
    if message.platform != ENSEMBLE:
        raise InvalidArgumentError(
            f"ensemble scheduling cannot be set for model '{model}' whose platform is not ensemble"
        )
    if message.instance_group:
        raise InvalidArgumentError(f"instance group should not be specified for ensemble '{model}'")
    if message.HasField("optimization"):
        raise InvalidArgumentError(f"optimization should not be specified for ensemble '{model}'")
    if message.model_warmup:
        raise InvalidArgumentError(f"model_warmup can not be specified for ensemble '{model}'")
    if not message.ensemble_scheduling.step:
        raise InvalidArgumentError(f"must specify 'step' for ensemble '{model}'")
    graph = _graph(message)
    _flow(message, graph)
    _validate_outputs(message, graph)
    outputs = {output.name for output in message.output}
    for name, tensor in graph.items():
        if name not in outputs and not (tensor.is_ready and tensor.targets):
            raise InvalidArgumentError(f"ensemble tensor '{name}' is unused in ensemble '{model}'")


def _graph(message: Any) -> dict[str, _Tensor]:
    graph: dict[str, _Tensor] = {}
    for index, step in enumerate(message.ensemble_scheduling.step):
        for name in ("model_name", "input_map", "output_map"):
            if not getattr(step, name):
                raise InvalidArgumentError(f"must specify '{name}' in step {index} of ensemble '{message.name}'")
        inputs = list(dict.fromkeys(step.input_map[key] for key in sorted(step.input_map)))
        outputs = [step.output_map[key] for key in sorted(step.output_map)]
        for name in outputs:
            tensor = graph.setdefault(name, _Tensor())
            if tensor.is_written:
                raise InvalidArgumentError(
                    f"ensemble tensor '{name}' can appear in an output map only once for ensemble '{message.name}' "
                    f"step {index}"
                )
            tensor.is_written = True
            tensor.sources.extend(inputs)
        for name in inputs:
            graph.setdefault(name, _Tensor()).targets.extend(outputs)
    return graph


def _flow(message: Any, graph: dict[str, _Tensor]) -> None:
    """Mark what data reaches, starting from the ensemble's inputs."""
    ready: list[str] = []
    for tensor in message.input:
        if tensor.name not in graph:
            raise InvalidArgumentError(f"ensemble input '{tensor.name}' for ensemble {message.name}' is not used")
        graph[tensor.name].is_ready = True
        ready.append(tensor.name)
    while ready:
        for name in graph[ready.pop()].targets:
            target = graph[name]
            if not target.is_ready and all(graph[source].is_ready for source in target.sources):
                target.is_ready = True
                ready.append(name)


def _validate_outputs(message: Any, graph: dict[str, _Tensor]) -> None:
    for output in message.output:
        tensor = graph.get(output.name)
        if tensor is None:
            raise InvalidArgumentError(f"ensemble output '{output.name}' for ensemble {message.name}' is not used")
        if not tensor.is_ready:
            missing = next((source for source in tensor.sources if not graph[source].is_ready), None)
            why = f": at least one of its depending tensors, '{missing}', is not connected" if missing else ""
            raise InvalidArgumentError(f"output '{output.name}' for ensemble '{message.name}' is not written{why}")
