"""What every model of a server shares."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..engine.clock import Clock
from ..engine.repository.agents import AgentRegistry
from ..engine.repository.loading import LoadContext
from .budget import InflightBudget
from .cache_access import CacheAccess
from .executors import Executors
from .rate_limiter import RateLimiter
from .turn import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings(LoadContext):
    """What every model of a server shares; `limiter` only where executions are limited, `cache` where there is one."""

    clock: Clock
    executors: Executors
    budget: InflightBudget
    turn: Turn
    limiter: RateLimiter | None = None
    cache: CacheAccess | None = None
    agents: AgentRegistry = field(default_factory=AgentRegistry)
