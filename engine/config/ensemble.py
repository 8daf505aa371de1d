"""``ensemble_scheduling`` as plain values (docs/reference/ensembles.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .model import ModelConfig, copy_message, mirrored, model_config
from .platforms import ENSEMBLE


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
        tuple(mirrored(EnsembleStep, step) for step in message.step), message.max_inflight_requests
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


def ensemble_problems(message: Any) -> Iterator[str]:
    """What is wrong with an ensemble by itself, in order."""
    model = message.name
    if message.platform != ENSEMBLE:
        yield f"ensemble scheduling cannot be set for model '{model}' whose platform is not ensemble"
    if message.instance_group:
        yield f"instance group should not be specified for ensemble '{model}'"
    if message.HasField("optimization"):
        yield f"optimization should not be specified for ensemble '{model}'"
    if message.model_warmup:
        yield f"model_warmup can not be specified for ensemble '{model}'"
    if not message.ensemble_scheduling.step:
        yield f"must specify 'step' for ensemble '{model}'"
    graph: dict[str, _Tensor] = {}
    for index, step in enumerate(message.ensemble_scheduling.step):
        yield from _step_problems(step, f"'{model}'", index, graph)
    for tensor in message.input:
        if tensor.name not in graph:
            yield f"ensemble input '{tensor.name}' for ensemble {model}' is not used"
    _flow([tensor.name for tensor in message.input], graph)
    yield from _output_problems(message, graph)
    outputs = {output.name for output in message.output}
    for name, tensor in graph.items():
        if name not in outputs and not (tensor.is_ready and tensor.targets):
            yield f"ensemble tensor '{name}' is unused in ensemble '{model}'"


def _step_problems(step: Any, model: str, index: int, graph: dict[str, _Tensor]) -> Iterator[str]:
    """Put the tensors of a step into the graph."""
    for name in ("model_name", "input_map", "output_map"):
        if not getattr(step, name):
            yield f"must specify '{name}' in step {index} of ensemble {model}"
    inputs = list(dict.fromkeys(step.input_map[key] for key in sorted(step.input_map)))
    outputs = [step.output_map[key] for key in sorted(step.output_map)]
    for name in outputs:
        tensor = graph.setdefault(name, _Tensor())
        if tensor.is_written:
            yield f"ensemble tensor '{name}' can appear in an output map only once for ensemble {model} step {index}"
        tensor.is_written = True
        tensor.sources.extend(inputs)
    for name in inputs:
        graph.setdefault(name, _Tensor()).targets.extend(outputs)


def _flow(ready: list[str], graph: dict[str, _Tensor]) -> None:
    """Mark what data reaches, starting from the ensemble's inputs."""
    ready = [name for name in ready if name in graph]
    for name in ready:
        graph[name].is_ready = True
    while ready:
        for name in graph[ready.pop()].targets:
            target = graph[name]
            if not target.is_ready and all(graph[source].is_ready for source in target.sources):
                target.is_ready = True
                ready.append(name)


def _output_problems(message: Any, graph: dict[str, _Tensor]) -> Iterator[str]:
    for output in message.output:
        tensor = graph.get(output.name)
        if tensor is None:
            yield f"ensemble output '{output.name}' for ensemble {message.name}' is not used"
        elif not tensor.is_ready:
            missing = next((source for source in tensor.sources if not graph[source].is_ready), None)
            why = f": at least one of its depending tensors, '{missing}', is not connected" if missing else ""
            yield f"output '{output.name}' for ensemble '{message.name}' is not written{why}"
