"""What every model of a server shares."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..engine.backends.registry import BackendRegistry
from ..engine.clock import Clock
from ..engine.gpu.discovery import NO_GPUS, Gpus
from ..engine.options import ServerOptions
from ..engine.repository.agents import AgentRegistry
from ..engine.scheduling.factory import CoreFactory, make_scheduler
from .budget import InflightBudget
from .cache_access import CacheAccess
from .executors import Executors
from .rate_limiter import RateLimiter
from .turn import Turn


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every model of a server shares; `limiter` only where executions are limited, `cache` where there is one.

    Attributes:
        core_factory: makes the scheduler cores of models that have instances.
    """

    options: ServerOptions
    clock: Clock
    executors: Executors
    backends: BackendRegistry
    budget: InflightBudget
    turn: Turn
    limiter: RateLimiter | None = None
    cache: CacheAccess | None = None
    agents: AgentRegistry = field(default_factory=AgentRegistry)
    gpus: Gpus = NO_GPUS
    core_factory: CoreFactory = make_scheduler
