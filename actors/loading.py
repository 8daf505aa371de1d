"""What every model of a server shares; loading a version with it, off the event loop; and warming up its instances.

An instance executes the samples of its model's configuration before it takes its first request. That is part of its
start: it happens where the instance lives, under the same limit of time as any batch, and again for whatever instance
comes in its place. No statistics speak of it, since no client asked for anything.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..engine.backends.interface import InstanceSpec
from ..engine.clock import Clock
from ..engine.config.model import ModelConfig
from ..engine.errors import InternalError, InvalidArgumentError, TriremeError
from ..engine.instances.warmup import WarmupSample
from ..engine.job import ExecutionBatch, Job, Outcome
from ..engine.logs.request_lines import RequestLines
from ..engine.repository.agents import AgentRegistry
from ..engine.repository.loading import (
    LoadContext,
    LoadedEnsemble,
    LoadedInstances,
    LoadedMember,
    load_ensemble,
    load_instances,
)
from ..engine.repository.source import ModelSource
from .actor import Turn
from .budget import InflightBudget
from .cache_access import CacheAccess
from .executors import Executors
from .rate_limiter import RateLimiter

logger = logging.getLogger("trireme.repository")
model_logger = logging.getLogger("trireme.model")

ExecuteBatch = Callable[[ExecutionBatch], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext(LoadContext):
    """What every model of a server shares; `limiter` only where executions are limited, `cache` where there is one."""

    clock: Clock
    executors: Executors
    budget: InflightBudget
    turn: Turn
    lines: RequestLines = field(default_factory=RequestLines)
    limiter: RateLimiter | None = None
    cache: CacheAccess | None = None
    agents: AgentRegistry = field(default_factory=AgentRegistry)


async def load(
    source: ModelSource,
    config: ModelConfig,
    version: int,
    context: ServerContext,
    members: Sequence[LoadedMember] | None,
) -> LoadedInstances | LoadedEnsemble:
    """Load one version on a thread. When this is cancelled the thread is not waited for; what a backend can end of what
    it waits for is ended.

    Args:
        members: the model of each step, loaded, if it is an ensemble.

    Raises:
        TriremeError: it cannot be loaded.
    """
    executors = context.executors
    try:
        if members is not None:
            return await executors.offload(partial(load_ensemble, source, config, members))
        work = partial(load_instances, source, config, version, context)
        return await executors.offload_cancellable(work, _close_unwanted)
    except TriremeError:
        raise
    except Exception as error:
        raise InternalError(f"{type(error).__name__}: {error}") from error


def _close_unwanted(loaded: LoadedInstances) -> None:
    try:
        loaded.model.close()
    except Exception:
        # A backend's code, on a thread that is not waited for.
        logger.exception("closing model '%s', whose load was given up, failed", loaded.config.name)


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
            model_logger.debug(
                "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                *(config.name, spec.name, sample.name, run),
            )
            errors = await _execute(sample, loaded, version, spec, clock, execute)
            if errors and sample.settling:
                model_logger.warning(
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
