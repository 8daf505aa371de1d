"""Swarm runs of a whole server whose models are loaded on demand (docs/on_demand.md): its actors, in virtual time.

Each run is drawn from its seed: models, their sizes and instances, how much room there is, pins, how long loads and
batches take; requests by Zipf's law, and bursts of first requests for all models at once; limits of time, clients that
give up while they wait; loads that fail and sizes that are a surprise; loads and unloads by hand. A quarter of the runs
stop the server amid all that; in the others nothing strikes any more after a while, and then every request must be
answered well, or be refused for a reason that still holds. Decisions are held against `oracle.residency`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import trio

from ..engine.backends.interface import InstanceSpec
from ..engine.config import model_config
from ..engine.config.model import DynamicBatching, ModelConfigMessage
from ..engine.datatypes import FP32
from ..engine.errors import RefusalReason, TriremeError
from ..engine.job import ExecutionBatch
from ..engine.options import ControlMode
from ..engine.repository.residents import Residence
from ..engine.request import LATEST, InferenceResponse
from .drawn_run import DrawnRun, play_drawn
from .invariants.leftovers import leftovers
from .models import SimulatedModel, simple_model, simple_request
from .oracle.residency import WatchedResidency
from .world import World

LONGEST_S = 10_000.0
"""Virtual seconds after which a run is stuck."""

CALM_S = 400.0
"""After faults have stopped: loads that have failed are tried again by then."""

REFUSED_AMID = frozenset(
    (RefusalReason.MODEL_MEMORY, RefusalReason.LOAD_FAILED, RefusalReason.LOAD_WAIT, RefusalReason.QUEUE_TIMEOUT)
)
"""Reasons that there may be while faults strike."""


EXECUTES = (Residence.RESIDENT, Residence.DRAINING)
"""States in which a model may have something in flight."""


def play_on_demand(seed: int) -> DrawnRun:
    """Play one run to its end."""
    run = _Run(Random(f"on demand {seed}"))
    return play_drawn(run.run, run.play, seed, LONGEST_S)


class _Run:
    """A run in the making."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self.run = DrawnRun()
        self._world: World | None = None
        self._calm = False
        self._stopping = False
        self._surprises = draw.random() < 0.3
        count = draw.randint(3, 12)
        equal = draw.random() < 0.5
        self._models = [self._model(f"m{number}", 100 if equal else draw.randint(20, 300)) for number in range(count)]
        self._ensembles = [self._ensemble(f"e{number}") for number in range(draw.choice((0, 0, 1, 3)))]
        self._names = [each.name for each in (*self._models, *self._ensembles)]
        draw.shuffle(self._names)
        sizes = [model.nbytes for model in self._models]
        self._limit = draw.randint(max(sizes) // 2, max(max(sizes) + 1, sum(sizes) * 2 // 3))
        pinned = draw.choice(self._models)
        self._pins = (pinned.name,) if draw.random() < 0.2 and 2 * pinned.nbytes < self._limit else ()
        self._load_s = draw.choice((0.0, 0.01, 0.3))
        self._service_s = draw.choice((0.001, 0.02, 0.5))
        self._requests = draw.randint(20, 150)
        self._gap_s = draw.choice((0.0, 0.01, 0.3))
        self._has = {
            what: draw.random() < share
            for what, share in {"bursts": 0.4, "limits": 0.3, "leavers": 0.3, "failures": 0.4, "hands": 0.4}.items()
        }
        self._stops = draw.random() < 0.25
        self._open = 0

    def _model(self, name: str, nbytes: int) -> SimulatedModel:
        batching = DynamicBatching((), self._draw.choice((0, 1_000))) if self._draw.random() < 0.5 else None
        model = simple_model(name, self._work, instances=self._draw.randint(1, 2), batching=batching)
        model.nbytes = nbytes
        model.on_start = partial(self._started, model)
        return model

    def _ensemble(self, name: str) -> SimulatedModel:
        """A chain of two models."""
        message = ModelConfigMessage(name=name, platform="ensemble", max_batch_size=8)
        message.input.add(name="INPUT0", data_type=FP32.number, dims=[4])
        message.output.add(name="OUTPUT0", data_type=FP32.number, dims=[4])
        tensors = ("INPUT0", "T", "OUTPUT0")
        for member, taken, given in zip(self._draw.sample(self._models, 2), tensors, tensors[1:], strict=False):
            step = message.ensemble_scheduling.step.add(model_name=member.name, model_version=LATEST)
            step.input_map["INPUT0"], step.output_map["OUTPUT0"] = taken, given
        return SimulatedModel(model_config(message), self._work)

    # ---- what models do ----

    def _started(self, model: SimulatedModel, spec: InstanceSpec) -> None:
        del spec
        self._look()

    async def _work(self, spec: InstanceSpec, batch: ExecutionBatch) -> None:
        name = batch.jobs[0].request.model_name
        model = next(each for each in self._models if each.name == name)
        self.run.counts["executed"] += len(batch.jobs)
        for _ in range(2):
            core = self._world.server.residents if self._world is not None else None
            if not model.copies or (core is not None and core.core[name].state not in EXECUTES):
                self.run.complain(f"'{spec.name}' executes {batch!r}, and is not in memory, or leaves")
            await trio.sleep(self._service_s * self._draw.random())

    def _look(self) -> None:
        """What is in memory now."""
        used = sum(model.nbytes * model.copies for model in self._models)
        if used > self._limit and not self._surprises:
            there = {model.name: model.copies for model in self._models if model.copies}
            self.run.complain(f"{used} bytes are in memory, of {self._limit}: {there}")

    # ---- the run ----

    async def play(self, world: World) -> None:
        """The scenario."""
        self._world = world
        world.load_s = self._load_s
        world.residency_class = partial(WatchedResidency, complain=self.run.complain)
        options: dict[str, Any] = {
            "model_control_mode": ControlMode.ON_DEMAND,
            "model_memory_limit": self._limit,
            "model_pins": self._pins,
            "model_load_thread_count": self._draw.choice((1, 2, 4)),
            "exit_timeout_s": 100.0,
        }
        serves = world.serve(*self._models, *self._ensembles, **options)
        async with trio.open_nursery() as clients, serves as server:
            await self._send(clients)
            self._stopping = self._stops
            if not self._stops:
                await self._calm_down()
        for text in leftovers(server, world.schedulers, {}):
            self.run.complain(f"left: {text}")
        for model in self._models:
            if model.copies:
                self.run.complain(f"'{model.name}' is still in memory")
        if self._open:
            self.run.complain(f"{self._open} requests are open")

    async def _send(self, clients: trio.Nursery) -> None:
        names = self._names
        weights = [1 / (rank + 1) for rank in range(len(names))]
        for number in range(self._requests):
            await trio.sleep(self._gap_s * self._draw.random())
            if self._has["bursts"] and number % 50 == 20:
                for name in names * 3:
                    clients.start_soon(self._ask, name)
            if self._has["failures"] and self._draw.random() < 0.1:
                self._break()
            if self._has["hands"] and self._draw.random() < 0.05:
                clients.start_soon(self._by_hand, self._draw.choice(names))
            (name,) = self._draw.choices(names, weights)
            clients.start_soon(self._ask, name)

    def _break(self) -> None:
        """A model cannot be loaded, or can be again, or is larger than it was."""
        model = self._draw.choice(self._models)
        if self._surprises and self._draw.random() < 0.5:
            model.nbytes = self._draw.randint(20, 300)
        else:
            model.is_broken = not model.is_broken

    async def _calm_down(self) -> None:
        """Faults strike no more: then each model that fits answers."""
        for model in self._models:
            model.is_broken = False
        await trio.sleep(CALM_S)
        if self._open:
            self.run.complain(f"{self._open} requests are not answered {CALM_S:g} s after the last one")
        self._calm = True
        with trio.move_on_after(CALM_S) as limit:
            async with trio.open_nursery() as clients:
                for name in self._names * 2:
                    clients.start_soon(self._ask, name)
        if limit.cancelled_caught:
            self.run.complain(f"all is well, and {CALM_S:g} s later there are requests without an answer")

    async def _ask(self, name: str) -> None:
        world, draw = self._world, self._draw
        assert world is not None, "it has begun"
        amid = not self._calm
        timeout_us = draw.randint(1_000, 2_000_000) if amid and self._has["limits"] and draw.random() < 0.3 else 0
        leaves_s = draw.random() * 2 if amid and self._has["leavers"] and draw.random() < 0.3 else LONGEST_S
        self._open += 1
        answer: InferenceResponse | TriremeError | None = None
        try:
            with trio.move_on_after(leaves_s):
                answer = await world.ask(simple_request(name, timeout_us=timeout_us))
        finally:
            self._open -= 1
        if answer is None:
            self.run.counts["given up"] += 1
        elif isinstance(answer, TriremeError):
            self._refused(name, answer, timeout_us > 0)
        else:
            self.run.counts["answered"] += 1

    def _refused(self, name: str, error: TriremeError, limited: bool) -> None:
        self.run.counts[f"refused: {error.refusal.value if error.refusal else error.kind.value}"] += 1
        fits = error.refusal is RefusalReason.MODEL_MEMORY
        if self._calm and not fits:
            self.run.complain(f"all is well, and a request for '{name}' is refused: {error.message}")
        elif not (error.refusal in REFUSED_AMID or limited or self._stopping or self._has["hands"]):
            self.run.complain(f"a request for '{name}' is refused: {error.message} ({error.refusal})")

    async def _by_hand(self, name: str) -> None:
        world = self._world
        assert world is not None, "it has begun"
        call: Callable[..., Any] = world.server.load_model if self._draw.random() < 0.5 else world.server.unload_model
        arguments = ({},) if call == world.server.load_model else ()
        try:
            await call(name, *arguments)
            self.run.counts["by hand"] += 1
        except TriremeError:
            self.run.counts["by hand, in vain"] += 1
