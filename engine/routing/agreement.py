"""Whether the targets of a route look alike to its clients, who know only the route."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..config.model import ModelConfig, ModelInput, ModelOutput
from .route import Target


def disagreement(target: Target, config: ModelConfig, other: Target, expected: ModelConfig) -> str:
    """What a client would notice if it were answered by one target after the other; empty if there is nothing.

    Compared are inputs and outputs (names, datatypes, dimensions, whether they are optional), whether there is a batch
    dimension, whether requests may have several answers, and whether there are sequences.

    Args:
        config: of `target`, which is at fault.
        other, expected: a target that is as it should be, and its configuration.
    """
    for problem in _problems(config, expected, f"as '{other}' has"):
        return f"target '{target}': {problem}"
    return ""


def _problems(config: ModelConfig, expected: ModelConfig, as_other: str) -> Iterable[str]:
    yield from _tensor_problems("input", config.input, expected.input, as_other)
    yield from _tensor_problems("output", config.output, expected.output, as_other)
    for what, found, wanted in (
        ("a batch dimension", config.max_batch_size > 0, expected.max_batch_size > 0),
        ("the decoupled transaction policy", config.decoupled, expected.decoupled),
        ("sequence batching", config.has_sequence_batching, expected.has_sequence_batching),
    ):
        if found != wanted:
            yield f"{what} was found, expected none" if found else f"it lacks {what}, expected {as_other}"


def _tensor_problems(
    kind: str,
    found: Sequence[ModelInput] | Sequence[ModelOutput],
    wanted: Sequence[ModelInput] | Sequence[ModelOutput],
    as_other: str,
) -> Iterable[str]:
    by_name = {tensor.name: _look(tensor) for tensor in found}
    for tensor in wanted:
        looks = by_name.pop(tensor.name, "")
        if not looks:
            yield f"it has no {kind} '{tensor.name}', expected {_look(tensor)} {as_other}"
        elif looks != _look(tensor):
            yield f"{kind} '{tensor.name}' is {looks}, expected {_look(tensor)} {as_other}"
    for name in by_name:
        yield f"it has an {kind} '{name}', expected none"


def _look(tensor: ModelInput | ModelOutput) -> str:
    optional = ", optional" if isinstance(tensor, ModelInput) and tensor.optional else ""
    return f"{tensor.datatype.name}[{','.join(map(str, tensor.dims))}]{optional}"
