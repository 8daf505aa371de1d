"""Swarm runs of a whole server with routes, whose models are loaded on demand: as in `routed`, but there is room for
some of the targets only. What is in memory is within the limit, decisions are held against `oracle.residency` as well
as `oracle.routing`, and a request for a route loads its target."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

from ..engine.backends.interface import InstanceSpec
from ..engine.errors import RefusalReason, TriremeError
from ..engine.options import ControlMode
from ..engine.request import InferenceResponse
from .drawn_run import DrawnRun, play_drawn
from .models import SimulatedModel
from .on_demand import REFUSED_AMID
from .oracle.residency import WatchedResidency
from .routed import LONGEST_S, RoutedRequest, RoutedRun
from .world import World


def play_routed_on_demand(seed: int) -> DrawnRun:
    """Play one run to its end."""
    run = RoutedOnDemandRun(Random(f"routed on demand {seed}"))
    return play_drawn(run.run, run.play, seed, LONGEST_S)


class RoutedOnDemandRun(RoutedRun):
    """A run in the making."""

    def __init__(self, draw: Random) -> None:
        super().__init__(draw)
        for model in self._models.values():
            model.nbytes = draw.randint(20, 100)
            model.on_start = partial(self._started, model)
        sizes = sorted(model.estimated_bytes() for model in self._models.values())
        self._limit = draw.randint(sizes[-1] + sizes[-2], sum(sizes))

    def _options(self, world: World) -> dict[str, Any]:
        world.residency_class = partial(WatchedResidency, complain=self.run.complain)
        return {
            "model_control_mode": ControlMode.ON_DEMAND,
            "model_memory_limit": self._limit,
            "model_load_thread_count": self._draw.choice((1, 2, 4)),
            "exit_timeout_s": 100.0,
        }

    def _started(self, model: SimulatedModel, spec: InstanceSpec) -> None:
        del model, spec
        there = {each.name: each.copies for each in self._models.values() if each.copies}
        used = sum(each.nbytes * each.copies for each in self._models.values())
        self.run.counts["loads"] += 1
        if used > self._limit and not self._has["models change"]:
            self.run.complain(f"{used} bytes are in memory, of {self._limit}: {there}")

    def _judge(self, asked: RoutedRequest, answer: InferenceResponse | TriremeError, continues: bool = False) -> None:
        if isinstance(answer, TriremeError) and answer.refusal in REFUSED_AMID:
            self.run.counts[f"refused: {answer.refusal.value}"] += 1
            if answer.refusal is RefusalReason.LOAD_FAILED and not self._has["models change"]:
                self.run.complain(f"no load fails, and a request for '{asked.name}' is refused: {answer.message}")
            return
        super()._judge(asked, answer, continues)
