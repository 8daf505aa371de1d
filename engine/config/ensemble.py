"""``ensemble_scheduling`` as plain values (docs/reference/ensembles.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .build import model_config
from .model import ModelConfig
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
