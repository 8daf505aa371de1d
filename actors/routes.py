"""The routes of a server: names that clients use as models, for which models answer (`engine.routing`).

Rules:
 1. Where a request goes is decided when it is admitted, and again if its target cannot serve any more by then: it is
    refused only if no target can serve. The answer tells which model has given it.
 2. Changes of models come as messages. What follows from them, from ends of requests, which are counted when the
    answers of a turn have gone out, and from time, is decided once a turn, logged and counted.
 3. A change of routes is looked at as a whole before anything of it holds: targets must be known to the repository,
    and those that are ready must look alike.
 4. What is set while the server runs holds until the file of routes says something else of that route than before.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..engine.config.model import ModelConfig
from ..engine.description import ModelState
from ..engine.errors import ColdModelError, InvalidArgumentError, NotFoundError, TriremeError, UnavailableError
from ..engine.job import Job
from ..engine.metrics.family import MetricFamily
from ..engine.metrics.routes import route_families
from ..engine.request import LATEST, InferenceRequest, Routing
from ..engine.routing.comparison import TargetOutcome
from ..engine.routing.documents import read_route
from ..engine.routing.record import RouteRecord, merge_routes
from ..engine.routing.rollout import RolloutEvent, RolloutState
from ..engine.routing.route import ModelRoute, RouteError, StickyBy, Target, check_routes
from ..engine.routing.routed_reply import RoutedReply, RoutedResult, ShadowDoor, result_of
from ..engine.routing.router import ModelRouter, RouteChoice
from .actor import Actor
from .loading import ServerContext
from .model import Model
from .model_control import ModelControl
from .routes_as_models import RoutesAsModels, none_ready

logger = logging.getLogger("trireme.routes")

_MOST_TRIES = 16
"""Targets that one request is offered to; one that cannot serve is out when the next one is chosen."""


VersionsByPolicy = Mapping[str, frozenset[int] | None]
"""By the names of models; None for what cannot be told before it is loaded."""


@dataclass(frozen=True, slots=True)
class ModelTouched:
    """Something changes of the models of this name, in this turn."""

    name: str


class Routes(RoutesAsModels, Actor[ModelTouched]):
    """See the rules above.

    Args:
        control: of the models that are targets.
        context: of the server; its control mode says whether routes may change though no file of them is read.
        start_soon: starts a task of the server. That of the routes is started when there are any.

    Attributes:
        shadows: takes what is to be copied; None if nothing does.
        from_file: a file of routes has been read.
        updates: how often the file was applied, and refused.
    """

    def __init__(
        self,
        control: ModelControl,
        context: ServerContext,
        start_soon: Callable[..., None],
    ) -> None:
        Actor.__init__(self, "the routes", context.turn)
        RoutesAsModels.__init__(self, control.repository)
        self.shadows: ShadowDoor | None = None
        self.from_file = False
        self.updates = {"applied": 0, "refused": 0}
        self._clock = context.clock
        self._changeable = context.options.model_control_mode.takes_orders
        self._control = control
        self.start_soon = start_soon
        self._started = False
        self._router = ModelRouter(self._ready)
        self._of_model: dict[str, list[RouteRecord]] = {}
        self._from_file: dict[str, ModelRoute] = {}
        self._touched: dict[str, None] = {}
        self._replies: list[RoutedReply] = []  # not counted yet
        self._observed = False
        self._forgetting = False
        self._repository.describe_route = self.describe
        self._repository.followers.append(self._model_changes)

    # What requests ask.

    @property
    def names(self) -> list[str]:
        return list(self._records)

    def find_for(self, request: InferenceRequest) -> Model | None:
        """The model that a request is for, if its name is that of a route; else None.

        Raises:
            TriremeError: no target can serve.
        """
        name = request.model_name
        if request.model_version != LATEST or not (name in self._records or name in self._ended):
            return None
        routing = request.routing
        if routing is None:
            routing = request.routing = Routing()
        choice = routing.choice
        if choice is None or not self.is_ready(name, choice.target):
            choice = self._choose(request, routing)
        for _ in range(_MOST_TRIES):
            if choice is None:
                break
            target = choice.target
            try:
                model = self._repository.find_for(request, target.model, target.version)
                if model.ready or model.continues(request) or not self._router.is_ready(name, target):
                    return model
            except ColdModelError:
                raise  # it is loaded for this request
            except TriremeError as error:
                if not self._router.is_ready(name, target):
                    routing.choice = None
                    raise none_ready(name, [error]) from None
            self._catch_up()
            choice = self._choose(request, routing)
        routing.choice = None
        return None

    def find_draining(self, request: InferenceRequest) -> Model | None:
        """While the server stops: the version that has the sequence which a request for a route continues."""
        if request.model_version == LATEST and request.correlation_id and not request.sequence_start:
            routing = request.routing = request.routing or Routing()
            choice = self._choose(request, routing)
            if choice is not None:
                return self._repository.find_draining(request, choice.target.model, choice.target.version)
        return None

    def observe(self, job: Job, choice: RouteChoice) -> None:
        """Be told of the end of a request that was found its target, and is not queued yet."""
        RoutedReply(job, choice, self._clock, self._request_ended)

    def shut_copies(self, name: str, shut: bool) -> int:
        """See `ModelRouter.shut_copies`."""
        return self._router.shut_copies(name, shut)

    def refused(self, request: InferenceRequest, error: Exception) -> None:
        """A request that was found its target got no further."""
        routing = request.routing
        if routing is not None and routing.choice is not None and isinstance(error, TriremeError):
            self._count(request.model_name, routing.choice.target, result_of(error))

    def _choose(self, request: InferenceRequest, routing: Routing) -> RouteChoice | None:
        """Find a target. A sequence that has one keeps it."""
        sequence = request.correlation_id
        if routing.choice is not None and sequence and not request.sequence_start:
            return routing.choice
        if sequence and not request.sequence_start and self._began_before(request):
            routing.choice = RouteChoice(Target(request.model_name))
            return routing.choice
        routing.choice = self._router.choose(
            request.model_name,
            self._clock.now_s(),
            key=self._key_of(request, routing),
            sequence=sequence,
            start=request.sequence_start,
            end=request.sequence_end,
        )
        if sequence and self.deadline_s == math.inf:
            self._set_deadline()  # sequences are forgotten in time
        if request.model_name in self._ended:
            self._forget_ended()
        return routing.choice

    def _began_before(self, request: InferenceRequest) -> bool:
        """Whether a sequence began when this was the name of a model, and not of a route: it ends there."""
        name = request.model_name
        if self._router.knows(name, request.correlation_id):
            return False
        try:
            return self._repository.find_for(request, name).continues(request)
        except TriremeError:
            return self._repository.find_draining(request, name) is not None

    def _key_of(self, request: InferenceRequest, routing: Routing) -> bytes | None:
        record = self._records.get(request.model_name)
        if record is None or not record.keyed:
            return None
        route = record.route
        match route.sticky:
            case StickyBy.HEADER:
                text = routing.key
            case StickyBy.PARAMETER:
                value = request.parameters.get(route.sticky_name, "")
                text = value if isinstance(value, str) else repr(value)
            case StickyBy.REQUEST_ID:
                text = request.id
            case _:
                text = ""
        return text.encode("utf-8", "surrogatepass") if text else None

    def _catch_up(self) -> None:
        """A model is not what is known of it here: take in the news that are on their way."""
        with self._turn:
            self._turn.deliver_ahead(self._repository)
            self._turn.deliver_ahead(self)

    def _request_ended(self, reply: RoutedReply, job: Job) -> None:
        if not self._replies:
            self._turn.afterwards(self, self._count_replies)
        self._replies.append(reply)
        shadow, kept = reply.choice.shadow, reply.kept
        if kept is not None and shadow is not None and self.shadows is not None and job.accepted and not job.cancelled:
            self.shadows.answered(reply.route, job.request, shadow, kept, reply.latency_ns * 1e-9)

    # What clients are told.

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """One route, or all: the members of its document, and its `state`.

        Raises:
            NotFoundError: there is no such route.
        """
        records = [self._record(name)] if name else list(self._records.values())
        shown = [record.shown(self._router, self._clock.now_s()) for record in records]
        if self.shadows is not None:
            for record, each in zip(records, shown, strict=True):
                if record.route.shadow is not None:
                    each["state"]["shadow"] = self.shadows.status(record.name)
        return shown

    def families(self, _scrape: object = None) -> Iterator[MetricFamily]:
        """Metrics; none without routes."""
        if self._records or self.from_file:
            yield from route_families(self._records.values(), self._router, self.updates)
        if self.shadows is not None:
            yield from self.shadows.families()

    # Changes of routes.

    async def set_route(self, name: str, document: Mapping[str, Any]) -> None:
        """Set a route, in place of the one of this name, if there is one; for requests that come from now on.

        Raises:
            UnavailableError: routes cannot be changed on this server, or not any more.
            InvalidArgumentError: it is faulty, or its targets are; then nothing is changed.
        """
        self._check_change()
        route = read_route(name, document)
        served = await self._look_at_models([route])
        self._replace({**self._present(), name: (route, True)}, [route], served)
        shown = ", ".join(f"{weight} % to '{target}'" for target, weight in route.weights)
        logger.info("route '%s' was set while the server runs: %s", name, shown)

    async def remove_route(self, name: str) -> None:
        """From now on the name is not a route any more.

        Raises:
            UnavailableError: as `set_route`.
            NotFoundError: it is none.
        """
        self._check_change()
        self._record(name)
        routes = self._present()
        del routes[name]
        self._replace(routes, [], {})
        logger.info("route '%s' was removed while the server runs", name)

    async def read_file(self, routes: Iterable[ModelRoute]) -> None:
        """The file of routes has these (rule 4).

        Raises:
            InvalidArgumentError: they cannot be together, or their targets are faulty; then nothing is changed.
            TriremeError: the repository cannot be looked at.
        """
        now = check_routes(routes)
        served = await self._look_at_models(now.values())
        merged = merge_routes(self._records, self._from_file, now)
        self._replace(merged, [route for route, live in merged.values() if not live], served)
        self._from_file, self.from_file = now, True
        self.updates["applied"] += 1

    async def stop_rollout(self, name: str) -> None:
        """Give a canary's share back.

        Raises:
            UnavailableError: as `set_route`.
            NotFoundError: there is no such route.
            InvalidArgumentError: it has no rollout that is under way.
        """
        self._check_change()
        self._record(name)
        event = self._router.stop_rollout(name, self._clock.now_s())
        if event is None:
            raise InvalidArgumentError(f"route '{name}' has no rollout under way that could be stopped")
        self._note([event])
        self._set_deadline()

    def _check_change(self) -> None:
        if self._repository.stopping:
            raise UnavailableError("the server is stopping, routes are not changed any more")
        if not (self.from_file or self._changeable):
            raise UnavailableError(
                "routes cannot be changed while this server runs, expected --routes, or explicit or on-demand as "
                "--model-control-mode"
            )

    def _present(self) -> dict[str, tuple[ModelRoute, bool]]:
        return {name: (record.route, record.live) for name, record in self._records.items()}

    async def _look_at_models(self, routes: Iterable[ModelRoute]) -> VersionsByPolicy:
        """What the repositories hold now of the targets of which a version is named."""
        await self._control.rescan()
        names = dict.fromkeys(target.model for route in routes for target in route.keys if target.version != LATEST)
        return {name: await self._control.versions_by_policy(name) for name in names}

    def _replace(
        self, routes: dict[str, tuple[ModelRoute, bool]], changed: Iterable[ModelRoute], served: VersionsByPolicy
    ) -> None:
        """Rule 3. `changed`: what is to be looked at, the others were before."""
        check_routes(route for route, _ in routes.values())
        for route in changed:
            self._check(route, served)
        if not self._started:
            self._started = True
            self.start_soon(self.run)
        before = self._records
        self._records = {name: RouteRecord(route, live) for name, (route, live) in routes.items()}
        self._of_model = {}
        for name, record in self._records.items():
            former = before.get(name)
            if former is not None:
                record.go_on_from(former)
            record.look(self._find_config)
            for target in record.all_targets:
                self._of_model.setdefault(target.model, []).append(record)
        self._ended |= {name: record for name, record in before.items() if self._router.sequences_of(name)}
        self._ended = {name: record for name, record in self._ended.items() if name not in self._records}
        events = self._router.replace((record.route for record in self._records.values()), self._clock.now_s())
        for name in {**before, **self._records}:
            self._forget(name)
        if self.shadows is not None:
            of_routes = [(each.name, each.route.shadow) for each in self._records.values() if each.route.shadow]
            self.shadows.routes_changed(of_routes)
        self._note(events)
        self._set_deadline()

    def _check(self, route: ModelRoute, served: VersionsByPolicy) -> None:
        """Raises RouteError: a target is not known, or looks different from the others."""
        for target, key in route.keys.items():
            problem = self._problem_of(target, served.get(target.model))
            if problem:
                raise RouteError(route.name, key, f"target '{target}' {problem}")
        record = RouteRecord(route, False)
        record.look(self._find_config)
        for target in record.disagreeing:
            raise RouteError(route.name, route.keys[target], record.why[target])

    def _problem_of(self, target: Target, by_policy: Collection[int] | None) -> str:
        """Why there is no such target. A version that cannot be served yet is one if it would be after a load."""
        name = target.model
        if not self._repository.knows(name):
            expected = ", ".join(f"'{each}'" for each in self._repository.known_names()[:8]) or "none: it is empty"
            return f"is unknown, expected a model of the repository, such as {expected}"
        living = self._repository.living_of(name)
        loaded = {model.version for model in living if model.state is not ModelState.UNLOADING}
        served = sorted(loaded.union(by_policy or ()))
        if target.version in (LATEST, *served) or not served:
            return ""
        shown = ", ".join(map(str, served[:8])) + (f" and {len(served) - 8} more" if len(served) > 8 else "")
        return f"is a version that is not served, expected one that the version policy of '{name}' chooses: {shown}"

    # In turns.

    def receive(self, message: ModelTouched) -> None:
        for record in self._of_model.get(message.name, ()):
            self._touched[record.name] = None

    def _count_replies(self) -> None:
        replies, self._replies = self._replies, []
        for reply in replies:
            self._count(reply.route, reply.choice.target, reply.result, reply.latency_ns, reply.queue_ns)

    def _count(self, name: str, target: Target, result: RoutedResult, latency_ns: int = 0, queue_ns: int = 0) -> None:
        """A request has ended."""
        record = self._records.get(name)
        if record is None or target not in record.targets:
            return
        record.results[target, result] += 1
        if record.route.canary is not None and result is not RoutedResult.OTHER:
            failed = result is RoutedResult.FAILURE
            outcome = TargetOutcome(True) if failed else TargetOutcome(False, latency_ns * 1e-9, queue_ns * 1e-9)
            self._router.observe(name, target, outcome, self._clock.now_s())
            self._observed = True
            self._turn.post(self)

    def act(self) -> None:
        now_s = self._clock.now_s()
        if not (self._touched or self._observed or now_s >= self.deadline_s):
            return
        touched, self._touched = self._touched, {}
        self._observed = False
        for name in touched:
            record = self._records.get(name)
            if record is None:
                continue
            disagreed = record.disagreeing
            record.look(self._find_config)
            for target in record.disagreeing:
                if target not in disagreed:
                    logger.error("route '%s' cannot use a target: %s", name, record.why[target])
            for target in record.route.targets:
                self._note(self._router.tell_ready(name, target, record.ready(target), now_s))
            if self.shadows is not None:
                self.shadows.readiness_changed(name)
            self._forget(name)
        self._note(self._router.advance(now_s))
        self._forget_ended()
        self._set_deadline()

    def _forget_ended(self) -> None:
        for name in [name for name in self._ended if not self._router.sequences_of(name)]:
            del self._ended[name]
            self._forget(name)

    def _set_deadline(self) -> None:
        next_s = self._router.next_s()
        self.deadline_s = math.inf if next_s is None else next_s

    def _model_changes(self, name: str) -> None:
        """See `Catalog.followers`."""
        if name in self._of_model and not self._forgetting:
            self.mailbox.send_nowait(ModelTouched(name))

    def _forget(self, name: str) -> None:
        """What was said of a route may not hold any more."""
        self._forgetting = True
        try:
            self._repository.forget(name)
        finally:
            self._forgetting = False

    def _note(self, events: Iterable[RolloutEvent]) -> None:
        for event in events:
            record = self._records.get(event.route)
            if record is not None and (event.step_began or event.state is not RolloutState.STEP):
                record.rollouts[event.state] += 1
            level = logging.WARNING if event.state is RolloutState.BACK else logging.INFO
            text = "route '%s': rollout of '%s' is %s, with %g %% of the requests: %s"
            logger.log(level, text, event.route, event.target, event.state.value, event.percent, event.reason)

    def _ready(self, name: str, target: Target) -> bool:
        return self._records[name].ready(target)

    def _find_config(self, target: Target) -> ModelConfig:
        try:
            return self._repository.find(target.model, target.version).config
        except NotFoundError:
            if self._repository.living_of(target.model):
                raise
            raise NotFoundError(f"model '{target.model}' is not loaded") from None

    def _record(self, name: str) -> RouteRecord:
        record = self._records.get(name)
        if record is None:
            raise NotFoundError(f"there is no route '{name}'")
        return record
