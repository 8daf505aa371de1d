"""Servers that do not start, because an instance of a model cannot be made (docs/reference/model-control.md): such a
start is played by itself, before the run, with the models and the options of its plan.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

from ..actors import StartupError
from ..engine.description import IndexEntry, ModelState
from .faults import FaultyModels
from .graphs import Graphs
from .invariants.leftovers import leftovers
from .plan import ModelPlan, Plan
from .world import World

SHARE = 0.1
"""Of the runs."""

MOST_STARTS = 1_000
"""More than a server attempts before it gives up."""

NOT_STARTED = "the server could not start"
INVARIANT = "a server that cannot start says why, and leaves nothing"


def failing_to_start(plan: Plan) -> Plan:
    """The plan, before which the server may be started in vain."""
    chance = Random(f"failed start {plan.seed}")
    able = [model for model in plan.models if not model.steps]
    if chance.random() >= SHARE:
        return plan
    model = chance.choice(able)
    return replace(plan, fails_to_start=model.name, first_failing=chance.randint(1, model.instances))


class FailedStart:
    """A scenario.

    Args:
        options: those of the server.
        complain: called with what is wrong.
    """

    def __init__(self, plan: Plan, options: dict[str, Any], complain: Callable[[str], None]) -> None:
        self._plan = replace(plan, models=tuple(self._failing(plan, model) for model in plan.models), changes=())
        self._options = options
        self._complain = complain

    async def play(self, world: World) -> None:
        plan, graphs = self._plan, Graphs(self._plan)
        models = FaultyModels(plan, graphs, world, self._complain)
        world.load_s = plan.load_ns / 1e9
        try:
            async with world.serve(*models.models, **self._options):
                self._complain(f"it serves, though '{plan.fails_to_start}' cannot be loaded")
                return
        except StartupError as error:
            for text in self._wrong(error, graphs):
                self._complain(text)
        await models.gpus.quiet()
        assert world.opened is not None, "it was opened"
        for text in (*leftovers(world.opened, world.schedulers, {}), *models.gpus.leftovers()):
            self._complain(text)

    @staticmethod
    def _failing(plan: Plan, model: ModelPlan) -> ModelPlan:
        first = plan.first_failing if model.name == plan.fails_to_start else MOST_STARTS
        return replace(model, failing_starts=tuple(range(first, MOST_STARTS)))

    def _wrong(self, error: StartupError, graphs: Graphs) -> Iterator[str]:
        """What is not as it should be in the index of a server that could not start."""
        rows = {row.name: row for row in error.index}
        broken = {self._plan.fails_to_start}
        for model in self._plan.models:  # ensembles come after what they are made of
            if any(step.model in broken for step in model.steps):
                broken.add(model.name)
            row = rows.get(model.name, IndexEntry(model.name))
            if (row.state is ModelState.READY) == (model.name in broken):
                yield f"'{model.name}' is {row.state}, when '{self._plan.fails_to_start}' could not be loaded"
            elif model.name == self._plan.fails_to_start and not row.reason.endswith("fails"):
                yield f"'{model.name}' is said to be unavailable for {row.reason!r}"
