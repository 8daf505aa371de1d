"""What every model of a server shares, and loading a version with it, off the event loop."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from ..engine.clock import Clock
from ..engine.config.model import ModelConfig
from ..engine.errors import InternalError, TriremeError
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext(LoadContext):
    """What every model of a server shares; `limiter` only where executions are limited, `cache` where there is one."""

    clock: Clock
    executors: Executors
    budget: InflightBudget
    turn: Turn
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
