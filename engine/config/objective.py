"""A model's latency objective, for which its batcher chooses delays and sizes (docs/adaptive_batching.md).

Rules:
 1. The parameter `PARAMETER` is a number of milliseconds from 0.001 to 3,600,000. A model without it has no objective.
 2. Batches are then formed by the adaptive batcher, which needs ``dynamic_batching``, and answers that come once, as
    soon as they are there. So what follows is refused: no ``dynamic_batching`` (sequences and ensembles have none),
    decoupled answers, answers in the order of the requests, a delay, and queue policies that let a request wait on
    after its time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..errors import InvalidArgumentError
from .model import DynamicBatching, ModelConfig, TimeoutAction

PARAMETER = "LATENCY_OBJECTIVE_MS"
_LEAST_MS, _MOST_MS = 0.001, 3_600_000.0


def latency_objective_s(config: ModelConfig) -> float | None:
    """The objective of a model, in seconds; None if it has none.

    Raises:
        InvalidArgumentError: the parameter is no such number, or the configuration cannot be combined with it.
    """
    text = config.parameters.get(PARAMETER)
    if text is None:
        return None
    for problem in _problems(config):
        raise InvalidArgumentError(f"parameter '{PARAMETER}' of model '{config.name}' {problem}")
    try:
        objective_ms = float(text)
    except ValueError:
        objective_ms = math.nan
    if not _LEAST_MS <= objective_ms <= _MOST_MS:
        raise InvalidArgumentError(
            f"parameter '{PARAMETER}' of model '{config.name}' is '{text}'; expected milliseconds, at least "
            f"{_LEAST_MS:g} and at most {_MOST_MS:.0f}"
        )
    return objective_ms / 1_000


def _problems(config: ModelConfig) -> Iterator[str]:
    """Rule 2."""
    batching = config.dynamic_batching
    if batching is None:
        if config.has_sequence_batching:
            yield "cannot be combined with 'sequence_batching'"
        if config.has_ensemble_scheduling:
            yield "cannot be combined with 'ensemble_scheduling'; models that the ensemble asks may have it"
        yield "needs 'dynamic_batching'"
        return
    if config.decoupled:
        yield "cannot be combined with 'model_transaction_policy.decoupled'"
    if batching.preserve_ordering:
        yield "cannot be combined with 'dynamic_batching.preserve_ordering'"
    if batching.max_queue_delay_us:
        yield "chooses the delay itself: 'dynamic_batching.max_queue_delay_microseconds' must be 0"
    yield from _policy_problems(batching)


def _policy_problems(batching: DynamicBatching) -> Iterator[str]:
    policies = {"default_queue_policy": batching.default_queue_policy}
    policies |= {
        f"priority_queue_policy[{level}]": policy for level, policy in sorted(batching.priority_queue_policy.items())
    }
    for field, policy in policies.items():
        if policy.default_timeout_us and policy.timeout_action is TimeoutAction.DELAY:
            yield f"refuses what cannot be in time: 'dynamic_batching.{field}.timeout_action' must be REJECT"
