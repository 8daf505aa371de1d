"""Swarm runs of a whole server with routes (`engine.routing`): its actors, in virtual time.

Each run is drawn from its seed: models with several versions, some of them stateful; routes over them, with weights,
keys, canaries; how long batches take; requests, bursts of them, sequences whose clients think, clients that give up.
Meanwhile routes are set anew, taken away, and their rollouts stopped; models are loaded again, unloaded and loaded;
instances die. A quarter of the runs stop the server amid all that. Each decision of the router is held against
`oracle.routing`; besides, a request is executed by a target that its route has, or had meanwhile, and once; a sequence
by the target where it began; and no request fails but for a fault, or because no target could serve.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import trio

from ..engine.backends.interface import InstanceSpec
from ..engine.config.model import DynamicBatching
from ..engine.errors import TriremeError
from ..engine.job import ExecutionBatch
from ..engine.options import ControlMode
from ..engine.request import LATEST, InferenceResponse
from ..engine.routing.route import Target
from .drawn_run import DrawnRun, play_drawn
from .executors import SimulatedFailure
from .invariants.leftovers import leftovers
from .models import SimulatedModel, simple_model, simple_request
from .oracle.routing import WatchedRouter
from .plan import ModelPlan
from .plan_parts import SequencesPlan
from .world import World

LONGEST_S = 10_000.0
"""Virtual seconds after which a run is stuck."""

CALM_S = 300.0
"""After faults have stopped: instances are started again, and all is answered by then."""

PLAIN = (Target("digits", 1), Target("digits", 2), Target("digits", 3), Target("a"), Target("b"))
STATEFUL = (Target("talk", 1), Target("talk", 2), Target("hear"))
ROUTES = ("r", "digits", "talk")
"""Two of them have the name of a model whose versions they may name."""

USER = "user"


def play_routed(seed: int) -> DrawnRun:
    """Play one run to its end."""
    run = RoutedRun(Random(f"routed {seed}"))
    return play_drawn(run.run, run.play, seed, LONGEST_S)


@dataclass(eq=False)
class RoutedRequest:
    """A request under way, or a sequence.

    Attributes:
        allowed: where it may be executed: what the route leads to, or led to since it was sent.
        began: of a sequence: where it did.
    """

    name: str
    allowed: set[Target]
    began: Target | None = None
    executed: Target | None = None
    sent_s: float = 0.0


class RoutedRun:
    """A run in the making."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self.run = DrawnRun()
        self._has = {
            what: draw.random() < share
            for what, share in {
                "routes change": 0.6,
                "models change": 0.5,
                "faults": 0.4,
                "leavers": 0.3,
                "bursts": 0.4,
                "sequences": 0.6,
            }.items()
        }
        self._stops = draw.random() < 0.25
        self._service_s = draw.choice((0.0005, 0.01, 0.1))
        self._gap_s = draw.choice((0.0005, 0.01, 0.05))
        self._requests = draw.choice((50, 300, 1_000))
        self._bad = draw.choice((None, None, *PLAIN))
        models = [simple_model(name, self._work, instances=draw.randint(1, 2)) for name in ("a", "b")]
        for model, versions in zip((simple_model("digits", self._work), *models), ((1, 2, 3), (1,), (1,)), strict=True):
            if draw.random() < 0.5:
                model.config = simple_model(model.name, self._work, batching=DynamicBatching((), 500)).config
            models.append(SimulatedModel(model.config, self._work, versions))
        stateful = ModelPlan("talk", sequences=SequencesPlan(oldest=draw.random() < 0.5, idle_us=20_000_000))
        models.append(SimulatedModel(stateful.config(), self._work, (1, 2)))
        models.append(SimulatedModel(ModelPlan("hear", sequences=stateful.sequences).config(), self._work))
        self._models = {model.name: model for model in models}
        self._routes: dict[str, set[Target]] = {}
        self._asked: dict[str, RoutedRequest] = {}
        self._under_way: list[RoutedRequest] = []
        self._numbers = 0
        self._calm = self._settled = self._stopping = False
        self._harmed = False
        self._open = 0
        self._sticky: dict[str, str] = {}
        self._kept: dict[tuple[str, str], Target] = {}

    @property
    def _world(self) -> World:
        assert self._in is not None, "it has begun"
        return self._in

    _in: World | None = None

    # ---- what models do ----

    async def _work(self, spec: InstanceSpec, batch: ExecutionBatch) -> None:
        del spec
        failing = False
        for job in batch.jobs:
            if not job.is_null:
                target = Target(job.request.model_name, job.model_version)
                self._executes(str(job.request.parameters.get("number", "")), job)
                failing = failing or (self._bad is not None and target == self._bad)
        await trio.sleep(self._service_s * self._draw.random())
        if self._has["faults"] and not self._calm:
            drawn = self._draw.random()
            if drawn < 0.02:
                self._harmed = True
                raise RuntimeError("the instance dies") if drawn < 0.01 else SimulatedFailure("it fails")

    def _executes(self, number: str, job: Any) -> None:
        asked = self._asked.get(number)
        if asked is None:
            self.run.complain(f"request {number} is executed, and nothing waits for it")
            return
        name, version = job.model_name, job.model_version
        at = next((each for each in asked.allowed if each in (Target(name, version), Target(name))), None)
        if at is None:
            self.run.complain(
                f"request {number} for '{asked.name}' is executed by {name}:{version}, not one of {asked.allowed}"
            )
        if asked.executed is not None and not self._harmed:
            self.run.complain(f"request {number} is executed twice")
        asked.executed = Target(name, version)
        self.run.counts["executed"] += 1

    # ---- the run ----

    async def play(self, world: World) -> None:
        """The scenario."""
        self._in = world
        world.load_s = self._draw.choice((0.0, 0.05))
        options = self._options(world)
        async with trio.open_nursery() as clients, world.serve(*self._models.values(), **options) as server:
            routes = server.routes
            self._router = routes._router = WatchedRouter(routes._ready, complain=self.run.complain)
            for name in ROUTES:
                await self._set_route(name)
            await self._send(clients)
            self._stopping = self._stops
            if not self._stops:
                await self._calm_down()
        for text in leftovers(server, world.schedulers, {}):
            self.run.complain(f"left: {text}")
        if self._open:
            self.run.complain(f"{self._open} requests are open")

    def _options(self, world: World) -> dict[str, Any]:
        """Of the server."""
        del world
        return {
            "model_control_mode": ControlMode.EXPLICIT,
            "startup_models": tuple(self._models),
            "exit_timeout_s": 100.0,
        }

    async def _send(self, clients: trio.Nursery) -> None:
        draw, has = self._draw, self._has
        for number in range(self._requests):
            await trio.sleep(self._gap_s * draw.random())
            if has["bursts"] and number % 100 == 20:
                for _ in range(200):
                    clients.start_soon(self._ask, draw.choice(("r", "digits")))
            if has["routes change"] and draw.random() < 0.03:
                clients.start_soon(self._change_route, draw.choice(ROUTES))
            if has["models change"] and draw.random() < 0.02:
                clients.start_soon(self._change_model, draw.choice(list(self._models)))
            if has["sequences"] and draw.random() < 0.1:
                clients.start_soon(self._talk, number + 1)
            clients.start_soon(self._ask, draw.choice(("r", "digits")))

    async def _calm_down(self) -> None:
        """Nothing strikes any more: then each route answers."""
        self._calm = True
        await trio.sleep(CALM_S)
        if self._open:
            self.run.complain(f"{self._open} requests are not answered {CALM_S:g} s after the last one")
            return
        for model in self._models.values():
            await self._world.server.load_model(model.name, {})
        await trio.sleep(CALM_S)
        self._harmed, self._settled = False, True
        for name in ROUTES:
            if name not in self._world.server.routes.names:
                await self._set_route(name)
        for name in ("r", "digits"):
            before = self._counted(name)
            for _ in range(30):
                await self._ask(name)
            await trio.lowlevel.checkpoint()
            if self._counted(name) != before + 30:
                self.run.complain(f"of 30 requests for '{name}' {self._counted(name) - before} are counted")
        await self._talk(0xCA1)

    def _counted(self, name: str) -> int:
        (shown,) = self._world.server.routes.status(name)
        return sum(each["requests"] for each in shown["state"]["targets"])

    # ---- routes ----

    def _document(self, name: str) -> dict[str, Any]:
        draw = self._draw
        pool = list(STATEFUL if name == "talk" else PLAIN)
        targets = draw.sample(pool, draw.randint(1, len(pool)))
        cuts = sorted(draw.choice((0, 5, 50, 95, 100)) for _ in targets[1:])
        weights = [high - low for low, high in zip([0, *cuts], [*cuts, 100], strict=True)]
        document: dict[str, Any] = {"targets": dict(zip(map(str, targets), weights, strict=True))}
        sticky = draw.choice(("", f"parameter:{USER}", "request-id", "sequence"))
        if sticky:
            document["sticky"] = sticky
        if len(targets) > 1 and draw.random() < 0.6:
            steps = draw.choice(([50], [20, 60, 100], [100]))
            document["canary"] = {"target": str(draw.choice(targets)), "steps": steps, "step-secs": 0.5, "errors": 0.2}
        return document

    async def _set_route(self, name: str) -> None:
        document = self._document(name)
        targets = {self._target(text) for text in document["targets"]}
        before = self._routes.get(name, set())
        self._may_lead(name, before | targets)
        try:
            await self._world.server.routes.set_route(name, document)
        except TriremeError as error:
            if not self._stopping:
                self.run.complain(f"route '{name}' cannot be set: {error.message}")
            return
        self.run.counts["routes set"] += 1
        self._routes[name] = targets
        self._sticky[name] = "" if "canary" in document else document.get("sticky", "")

    def _target(self, text: str) -> Target:
        model, _, version = text.partition(":")
        return Target(model, int(version or LATEST))

    def _may_lead(self, name: str, targets: set[Target]) -> None:
        """Requests under way may be sent to any of these; and those that come until it is known."""
        self._routes[name] = targets
        for asked in self._under_way:
            if asked.name == name:
                asked.allowed |= targets

    async def _change_route(self, name: str) -> None:
        if self._stopping:
            return
        server, draw = self._world.server, self._draw
        if name not in self._routes or self._calm or draw.random() < 0.7:
            await self._set_route(name)
            return
        try:
            await (server.routes.stop_rollout(name) if draw.random() < 0.8 else self._remove(name))
            self.run.counts["rollouts stopped, or routes removed"] += 1
        except TriremeError:
            self.run.counts["nothing to stop"] += 1

    async def _remove(self, name: str) -> None:
        """From then on it is a model's name, or none."""
        self._may_lead(name, {*self._routes[name], Target(name)})
        await self._world.server.routes.remove_route(name)
        self.run.counts["routes removed"] += 1

    async def _change_model(self, name: str) -> None:
        if self._stopping:
            return
        server, draw = self._world.server, self._draw
        calls: list[Callable[[], Awaitable[None]]] = [
            partial(server.load_model, name, {}),
            partial(server.unload_model, name),
        ]
        try:
            if draw.random() < 0.5:
                self._models[name].touch()
                await calls[0]()
                self.run.counts["loaded again"] += 1
            else:
                await calls[1]()
                self.run.counts["unloaded"] += 1
                await trio.sleep(draw.random() * 0.5)
                if not self._stopping:
                    await calls[0]()
        except TriremeError:
            self.run.counts["change in vain"] += 1

    # ---- clients ----

    async def _ask(self, name: str) -> None:
        draw = self._draw
        if self._stopping:
            return
        asked = self._begin(name)
        leaves_s = (
            draw.random() * 0.05 if self._has["leavers"] and not self._calm and draw.random() < 0.2 else LONGEST_S
        )
        parameters = {USER: f"u{draw.randint(1, 20)}"} if draw.random() < 0.7 else {}
        with trio.move_on_after(leaves_s) as limit:
            answer = await self._answer(asked, parameters)
            self._judge(asked, answer)
            self._look_at_key(asked, parameters.get(USER, ""))
        self._under_way.remove(asked)
        self._open -= 1
        self.run.counts["given up"] += limit.cancelled_caught

    def _look_at_key(self, asked: RoutedRequest, user: str) -> None:
        """While nothing changes, all requests of a user go to one target."""
        changes = self._has["routes change"] or self._has["models change"] or self._has["faults"]
        if user and asked.executed and self._sticky.get(asked.name) == f"parameter:{USER}" and not changes:
            self.run.counts["sticky"] += 1
            kept = self._kept.setdefault((asked.name, user), asked.executed)
            if asked.executed != kept:
                self.run.complain(
                    f"a request of {user} for '{asked.name}' is at {asked.executed}, others are at {kept}"
                )

    async def _talk(self, sequence: int) -> None:
        """A sequence, to its end or to its first error."""
        draw, began = self._draw, None
        length = draw.randint(2, 6)
        for index in range(length):
            if self._stopping:
                return
            asked = self._begin("talk")
            if began is not None:
                asked.allowed = {began}
            answer = await self._answer(asked, {}, (sequence, index == 0, index == length - 1))
            self._judge(asked, answer, continues=index > 0)
            self._under_way.remove(asked)
            self._open -= 1
            if isinstance(answer, TriremeError):
                return
            began = began or asked.executed
            self.run.counts["of sequences"] += 1
            await trio.sleep(draw.random() * 0.3)

    def _begin(self, name: str) -> RoutedRequest:
        asked = RoutedRequest(name, set(self._routes.get(name, {Target(name)})))
        self._under_way.append(asked)
        self._open += 1
        return asked

    async def _answer(
        self, asked: RoutedRequest, parameters: dict[str, str], sequence: tuple[int, bool, bool] = (0, False, False)
    ) -> InferenceResponse | TriremeError:
        self._numbers += 1
        request = simple_request(asked.name)
        request.parameters = {**parameters, "number": str(self._numbers)}
        request.correlation_id, request.sequence_start, request.sequence_end = sequence
        self._asked[str(self._numbers)] = asked
        asked.sent_s = self._world.clock.now_s()
        return await self._world.ask(request)

    def _serves(self, name: str) -> bool:
        """Whether a target that has a share of a route is ready."""
        server = self._world.server
        naive = self._router.naive
        if name not in naive.routes:
            return False
        return any(server.model_ready(each.model, each.version) for each in naive.weights(name))

    def _judge(self, asked: RoutedRequest, answer: InferenceResponse | TriremeError, continues: bool = False) -> None:
        """What came of a request."""
        if isinstance(answer, TriremeError):
            self.run.counts["failed"] += 1
            changing = self._has["models change"] and not self._settled
            if self._harmed or self._stopping:
                return
            if changing:
                if not continues and asked.sent_s == self._world.clock.now_s() and self._serves(asked.name):
                    self.run.complain(
                        f"a request for '{asked.name}' is refused, though a target serves: {answer.message}"
                    )
                return
            unknown = Target(asked.name) in asked.allowed or asked.name not in self._routes
            if not unknown:
                self.run.complain(f"a request for '{asked.name}' failed{' on its way' * continues}: {answer.message}")
            return
        self.run.counts["answered"] += 1
        executed = asked.executed
        if executed is None:
            self.run.complain(f"a request for '{asked.name}' is answered, and was not executed")
        elif (answer.model_name, int(answer.model_version)) != (executed.model, executed.version):
            said = f"{answer.model_name}:{answer.model_version}"
            self.run.complain(f"a request for '{asked.name}' is answered by {said}, and was executed by {executed}")
