"""What every model of a server shares."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..engine.backends.registry import BackendRegistry
from ..engine.clock import Clock
from ..engine.gpu.discovery import NO_GPUS, Gpus
from ..engine.options import ServerOptions
from ..engine.repository.agent_registry import AgentRegistry
from .budget import InflightBudget
from .cache_access import CacheAccess
from .executors import Executors
from .rate_limiter import RateLimiter


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every model of a server shares; `limiter` only where executions are limited, `cache` where there is one."""

    options: ServerOptions
    clock: Clock
    executors: Executors
    backends: BackendRegistry
    budget: InflightBudget
    limiter: RateLimiter | None = None
    cache: CacheAccess | None = None
    agents: AgentRegistry = field(default_factory=AgentRegistry)
    gpus: Gpus = NO_GPUS
