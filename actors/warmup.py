"""Warming up an instance: it executes the samples of its model's configuration before it takes its first request.

That is part of its start: it happens where the instance lives, under the same limit of time as any batch, and again
for whatever instance comes in its place. No statistics speak of it, since no client asked for anything.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from ..engine.backends.interface import InstanceSpec
from ..engine.clock import Clock
from ..engine.errors import InvalidArgumentError, TriremeError
from ..engine.instances.warmup import WarmupSample
from ..engine.job import ExecutionBatch, Job, Outcome
from ..engine.repository.loading import LoadedInstances

logger = logging.getLogger("trireme.model")

ExecuteBatch = Callable[[ExecutionBatch], Awaitable[None]]


async def warm_up(
    loaded: LoadedInstances, version: int, spec: InstanceSpec, clock: Clock, execute: ExecuteBatch
) -> None:
    """Execute all samples, one after the other; those that settle an instance on a GPU only there.

    Args:
        execute: has the instance execute a batch.

    Raises:
        InvalidArgumentError: one has failed.
    """
    config = loaded.config
    for sample in loaded.warmup:
        if sample.settling and spec.gpu is None:
            continue
        for run in range(1, sample.runs + 1):
            logger.debug(
                "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                *(config.name, spec.name, sample.name, run),
            )
            errors = await _execute(sample, loaded, version, spec, clock, execute)
            if errors and sample.settling:
                logger.warning(
                    "model '%s' instance %s is not warmed up for %s: %s",
                    *(config.name, spec.name, sample.name, errors[0]),
                )
                break
            if errors:
                texts = "".join(f"{error}; " for error in errors)
                raise InvalidArgumentError(f"failed to run warmup sample '{sample.name}': {texts}")


async def _execute(
    sample: WarmupSample, loaded: LoadedInstances, version: int, spec: InstanceSpec, clock: Clock, execute: ExecuteBatch
) -> list[str]:
    """Execute one batch; what is wrong with the answers."""
    most = max(1, loaded.config.max_batch_size)
    if sample.requests > most:
        return [f"batch size {sample.requests} for '{spec.name}', max allowed is {most}"] * sample.requests
    errors: list[str] = []

    def hear(_job: Job, outcome: Outcome, _final: bool) -> None:
        if isinstance(outcome, TriremeError):
            errors.append(outcome.message)

    jobs, iterative = sample.jobs(version), loaded.iterative
    await execute(ExecutionBatch(jobs, spec.name, clock, stream=hear, iterative=iterative))
    return errors
