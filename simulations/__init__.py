"""The same actors in virtual time: worlds, devices, histories."""

from .history import History
from .world import Scenario, World, run_world

__all__ = ["History", "Scenario", "World", "run_world"]
