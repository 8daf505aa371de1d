"""The facade: everything that a front end, or a program that embeds Trireme, needs to know of a server.

    async with InferenceServer(ServerOptions(model_repository=(Path("model_repository"),))) as server:
        response = await server.infer(InferenceRequest("simple", inputs=[...]))

Arguments and results are plain engine values. Opening the block loads the models that the control mode names; leaving
it drains them: nothing new is accepted, what is in flight is answered, for at most ``exit_timeout_s``.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

import trio

from ..engine.admission.budget import BudgetStatistics
from ..engine.admission.client_bytes import ClientAccounts
from ..engine.admission.shares import part_of_bodies
from ..engine.backends.registry import BackendRegistry
from ..engine.backends.waiting_threads import WaitingThreads
from ..engine.cache import ResponseCache, open_cache
from ..engine.clock import Clock, SystemClock, Timers
from ..engine.description import ActorNode, IndexEntry, ModelActorStatistics, ServerMetadata
from ..engine.errors import RefusalReason, TriremeError
from ..engine.gpu.discovery import NO_GPUS, usable_gpus
from ..engine.logs.request_recorder import RequestRecorder
from ..engine.memory.regions import Regions
from ..engine.metrics.families import cache_counter_families, cache_summary_families
from ..engine.metrics.page import MetricsRegistry, Section
from ..engine.metrics.statistics import ModelStatisticsEntry
from ..engine.options import ControlMode, ServerOptions
from ..engine.repository.agents import AgentRegistry
from ..engine.repository.opening import open_repositories
from ..engine.repository.registered import RegisteredRepositories
from ..engine.repository.residency import Residency
from ..engine.repository.source import RepositorySource
from ..engine.request import LATEST, InferenceRequest, InferenceResponse
from ..engine.scheduling.factory import CoreFactory, make_scheduler
from ..engine.tensor import Buffer
from ..engine.version import VERSION
from .access_gate import LocalAccess
from .actor import Turn
from .actor_tree import server_tree
from .admission import Admission
from .budget import InflightBudget, Lease
from .cache_access import CacheAccess
from .executors import Executors
from .instance import all_pass
from .loading import ServerContext
from .management import LocalManagement
from .model import Model
from .model_calls import ModelCalls
from .model_control import ModelControl
from .offload import Offload
from .open_requests import OpenRequests, open_requests
from .rate_limiter import RateLimiter
from .repository import EndLoads, LoadProgress, StartupError
from .residents import open_residents
from .routes import Routes
from .shadows import Shadows
from .socket_readiness import Readiness
from .stopping import drain_models
from .tracing import Tracing
from .watchdog import Watchdog

if TYPE_CHECKING:
    from ..python_backend.trio_loop import TrioLoop

logger = logging.getLogger("trireme.server")

_FLUSH_GRACE_S = 1.0
"""However little time is left, traces get this long that are on their way to files or to a collector."""


class InferenceServer(Admission):
    """A server without sockets.

    Args:
        options: what to serve, and how.
        on_load_progress: called with (model name, version, state name) at every change of state.
        source: where models come from, if not from ``options.model_repository``.
        executors: where backends run, if not on threads.
        executors_factory: makes the executors if none are given, perhaps ones that measure.
        clock: time, if not trio's.
        timers: what wakes actors at their deadlines, if not their own tasks.
        on_request: called with each request for which there is room in the server, and its batch size, before its
            scheduler sees it; must not raise.
        request_log: records what clients ask; None for no log.
        backends: which backends there are, if not the installed ones.
        agents: which repository agents there are, if not the installed ones.
        core_factory, model_class, limiter_class, residency_class: what makes scheduler cores, models with their doors,
            the rate limiter, and what decides which models are in memory, if they are to be observed.
        cache_access, offload: the way to the response cache, and who checks requests that take long, if not threads.
        access: decides who may make which call; None if anyone may.

    Attributes:
        repositories: where models come from; more can be registered while it runs.
        drained: after the block: everything in flight was answered in time, but for copies for shadows.
        draining: it serves what comes, and says that it is not ready.
    """

    def __init__(
        self,
        options: ServerOptions,
        on_load_progress: LoadProgress = lambda _name, _version, _state: None,
        *,
        source: RepositorySource | None = None,
        executors: Executors | None = None,
        clock: Clock | None = None,
        backends: BackendRegistry | None = None,
        agents: AgentRegistry | None = None,
        on_request: Callable[[InferenceRequest, int], None] | None = None,
        request_log: RequestRecorder | None = None,
        core_factory: CoreFactory = make_scheduler,
        model_class: type[Model] = Model,
        limiter_class: type[RateLimiter] = RateLimiter,
        cache_access: Callable[[str, ResponseCache, Clock], CacheAccess] = CacheAccess,
        offload: Offload | None = None,
        access: LocalAccess | None = None,
        residency_class: Callable[..., Residency] = Residency,
        timers: Timers | None = None,
        executors_factory: Callable[[int, Readiness], Executors] = Executors,
    ) -> None:
        share = part_of_bodies(options.address_share)
        budget = InflightBudget(options.max_inflight_requests, options.max_inflight_bytes, share)
        super().__init__(budget, on_request, offload or Offload(), access, request_log)
        self.options = options
        self.shared_memory = Regions(largest_input_bytes=options.max_inflight_bytes)
        self.metrics = MetricsRegistry()
        self.metrics.add(Section.MODEL_COUNTERS, cache_counter_families)
        self.metrics.add(Section.SUMMARIES, cache_summary_families)
        self._on_load_progress = on_load_progress
        self._core_factory = core_factory
        self._model_class = model_class
        self._limiter_class = limiter_class
        self._residency_class = residency_class
        self._cache_access = cache_access
        source = source or open_repositories(options, os.environ, clock or SystemClock())
        self.repositories = RegisteredRepositories(source, options)
        self._executors, self._given_clock, self._timers = executors, clock, timers
        self._executors_factory = executors_factory
        self._backends = backends or BackendRegistry(options.options_for_backend, directory=options.backend_directory)
        self.services = self._backends.services
        self.custom_metrics = self.services.custom_metrics
        self.services.event_loop = _trio_loop
        self.metrics.add(Section.LAST, lambda _scrape: self.custom_metrics.families())
        self.services.limit_gpus(options.gpu_limits)
        self.services.confinement = options.confinement
        if options.model_control_mode is ControlMode.ON_DEMAND:
            self.services.waiting_threads = WaitingThreads(0)  # models come and go, more of them than there are cores
        self.gpus = NO_GPUS
        self._agents = agents or AgentRegistry()
        give_up = partial(self.refusals.count, RefusalReason.CLIENT_BYTES)
        self.client_accounts = ClientAccounts.of(options.max_inflight_bytes, options.address_share, give_up)
        self._tracing = Tracing(options.tracing, clock or SystemClock())
        self.tracer = self._tracing.tracer
        self._stop_by_s, self._startup_failed = -math.inf, False
        self.management = LocalManagement(self)
        self.drained, self.draining = True, False
        self._cache: CacheAccess | None = None
        self._watchdog: Watchdog | None = None

    async def __aenter__(self) -> Self:
        """Load the models.

        Raises:
            StartupError: a model could not be loaded, and ``exit_on_error`` is set; everything is unloaded again.
            TriremeError: a repository cannot be read, or the response cache cannot be used.
        """
        self._clock = self._given_clock or SystemClock(trio.lowlevel.current_clock().current_time)
        self._open_cache()
        self.turn = Turn(self._timers)
        self._nurseries = AsyncExitStack()
        (await self._nurseries.enter_async_context(trio.open_nursery())).start_soon(self.turn.keep_running, True)
        self._nurseries.callback(self.turn.stop)  # when all actors have ended, however they do
        self._nursery = await self._nurseries.enter_async_context(trio.open_nursery())
        self.readiness = Readiness(self._nursery.start_soon, self.turn, poll_s=self.options.poll_s)
        self.offload.start(self._nursery)
        make = self._executors_factory
        executors = self._executors or make(self.options.model_load_thread_count, self.readiness)
        self._tracing.start(self._nursery)
        limiter = self._limiter_class(self.turn, self.options.rate_limit_resources) if self.options.rate_limit else None
        self._limiter = limiter
        if limiter is not None:
            self._nursery.start_soon(limiter.run)
        self.gpus = usable_gpus(self.options.gpus, self.options.min_compute_capability, os.environ)
        context = ServerContext(
            options=self.options,
            backends=self._backends,
            gpus=self.gpus,
            core_factory=self._core_factory,
            clock=self._clock,
            executors=executors,
            budget=self._budget,
            turn=self.turn,
            lines=self._lines,
            limiter=limiter,
            cache=self._cache,
            agents=self._agents,
        )
        progress = self._on_load_progress
        self._control = ModelControl(self.repositories, context, self._nursery, progress, self._model_class)
        self._repository = self._control.repository
        self.residents = open_residents(self._control, context, self._nursery, self.metrics, self._residency_class)
        self.routes = Routes(self._control, context, self._nursery.start_soon)
        self._shadows = self.routes.shadows = Shadows(self, self._budget, self._clock, self._nursery.start_soon)
        self.metrics.add(Section.LAST, self.routes.families)
        self._calls = self._backends.services.models = ModelCalls(self.offload, self._nursery)
        started = False
        try:
            await self._start()
            self._calls.open(self, self.residents or self._control)
            started = True
        finally:
            if not started:
                await self._close(sys.exception())
        if self.options.watchdog_limit_s:
            self._watchdog = Watchdog(self._clock, self.options.watchdog_limit_s)
            self.metrics.add(Section.LAST, self._watchdog.stalls.families)
        return self

    def _open_cache(self) -> None:
        opened = open_cache(self.options.cache_config, self._clock)
        if opened is not None:
            name, cache = opened
            self._cache = self._cache_access(name, cache, self._clock)
            self.metrics.add(Section.LAST, lambda _scrape: cache.families())

    async def _start(self) -> None:
        try:
            everything_ready = await self._control.start()
        except TriremeError as error:
            if self.options.exit_on_error:
                raise
            logger.error("%s - %s", error.kind.value, error.message)
            self._repository.started = False
            return
        if self.options.model_control_mode is ControlMode.POLL and self.options.repository_poll_s > 0:
            self._nursery.start_soon(self._control.keep_polling, self.options.repository_poll_s)
        if everything_ready:
            return
        self._startup_failed = True
        logger.error("failed to load all models")
        if self.options.exit_on_error:
            raise StartupError("failed to load all models", self._repository.index())

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close(exc)

    async def _close(self, error: BaseException | None) -> None:
        """Drain within the time allowed, shielded from whatever ends the block; then end every actor."""
        with trio.CancelScope(shield=True):
            if not _is_cancelled(error):
                await self.stop(self.options.exit_timeout_s)
            await self._tracing.close(max(_FLUSH_GRACE_S, self._stop_by_s - self._clock.now_s()))
        self.exiting = True
        self._calls.close()
        self._nursery.cancel_scope.cancel()
        await self._nurseries.aclose()
        self.turn.close()
        self._control.close()
        if self._cache is not None:
            self._cache.cache.close()
        if self._watchdog is not None:
            self._watchdog.close()
        self.services.close()

    def begin_drain(self) -> None:
        """From now on the server is not ready, so that who balances load sends requests to others. It serves what comes
        all the same, until `stop`, and its models stay ready: of them that says no more than that they answer."""
        self.draining = True

    def end_loads(self) -> None:
        """What `stop` does first, for a front end that waits for its clients before it: none of them has to wait for a
        load, and no load begins."""
        self._repository.tell(EndLoads())

    async def stop(self, timeout_s: float) -> bool:
        """Stop accepting, answer what is in flight, unload.

        Args:
            timeout_s: give up after this many seconds.

        Returns:
            Whether everything was answered and unloaded in time, but for what executes copies for shadows alone.
        """
        repository = self._repository
        if not self.exiting:
            self._stop_by_s = self._clock.now_s() + timeout_s
        if not self.exiting and repository.live_versions():
            logger.info("Waiting for in-flight requests to complete.")
        self.exiting = True
        self._shadows.routes_changed(())
        repository.tell(EndLoads(drains=True))
        self.drained = not repository.live_versions()
        if self.drained:
            return True
        self.drained = await drain_models(repository, self._budget, self._shadows, timeout_s)
        return self.drained

    # Inference.

    def lease(self, name: str = "", version: int = LATEST, client: str = "") -> Lease:
        """What a request is to hold of the server-wide budget while it arrives; for `admit`, or to be closed.

        Args:
            name, version: of the model, if the request is for one and that is known. Then the model's share is looked
                at from the beginning, and not only when the request is admitted.
            client: the address of the client, of which no more than its share is to arrive at a time.
        """
        return self._budget.lease(self.routes.share(name, version) if name else None, client)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Ask a model that answers once. Cancelling this cancels the request.

        Raises:
            TriremeError: refused, or the model failed.
        """
        try:
            reply = await self.admit(request)
        except TriremeError as error:
            self.note_refusal(error, request.model_name, request.model_version)
            raise
        return await reply.response()

    # Asking about the server.

    @property
    def started(self) -> bool:
        """False if it could not start, and goes on without models because ``exit_on_error`` is not set."""
        return self._repository.started

    def tell_requests(self, wanted: bool) -> None:
        """Whether to log, at the verbose level 1, each step of a request."""
        self._lines.wanted = wanted

    def live(self) -> bool:
        return self._repository.started and not self.exiting

    def ready(self) -> bool:
        """Whether requests are welcome; with strict readiness, whether every model is well
        (docs/reference/command-line.md#live-and-ready). Not while the server drains, nor while the event loop is held
        up, or has been a moment ago (`engine.logs.stalls`)."""
        if self.draining or not self.live() or (self._watchdog is not None and self._watchdog.stalls.unwell):
            return False
        if not self.options.strict_readiness:
            return True
        if self._startup_failed and self._start_made_good():
            self._startup_failed = False
        return not self._startup_failed and self._repository.all_ready()

    async def check_ready(self) -> bool:
        """The same, and with strict readiness, models are asked that have a check of their own."""
        if not self.ready():
            return False
        checks = self._repository.own_checks() if self.options.strict_readiness else ()
        return not checks or (await all_pass(checks) and self.ready())

    def _start_made_good(self) -> bool:
        """Whether all that was missing after a start that failed has been loaded since, or is no longer asked for."""
        index = self.repository_index()
        tried = {entry.name for entry in index if entry.version}
        wanted = {entry.name for entry in index}
        if self.options.model_control_mode.takes_orders and "*" not in self.options.startup_models:
            wanted = set(self.options.startup_models)
        return wanted <= tried

    def metadata(self) -> ServerMetadata:
        return ServerMetadata(self.options.server_id, VERSION)

    def model_ready(self, name: str, version: int = LATEST) -> bool:
        return self.routes.model_ready(name, version)

    async def check_model_ready(self, name: str, version: int = LATEST) -> bool:
        """The same, and the model is asked if it has a check (docs/reference/python-backend.md#readiness)."""
        return await self.routes.check_model_ready(name, version)

    def model_names(self) -> list[str]:
        """All names of models, whatever the states of their versions, and of routes."""
        return [*dict.fromkeys((*self._repository.names(), *self.routes.names))]

    def model_versions(self, name: str) -> list[int] | None:
        return self.routes.versions_of(name)

    def follow_models(self, changed: Callable[[str], None]) -> None:
        """Have `changed` called with a name, until the server ends, whenever `describe` may say something else of it,
        and before it does. It must not raise."""
        self._repository.followers.append(changed)

    def statistics(self, name: str = "", version: int = LATEST) -> list[ModelStatisticsEntry]:
        """Statistics of all ready versions, or of one model's, or of one version. Raises InvalidArgumentError: not
        available (docs/reference/http.md#statistics)."""
        return self.routes.statistics(name, version)

    def repository_index(self, ready_only: bool = False) -> list[IndexEntry]:
        return self._repository.index(ready_only)

    async def changed(self) -> None:
        """Wait until a model changes its state."""
        await self._repository.changed()

    def backends_in_use(self) -> list[str]:
        """The names of the backends of all ready models; ensembles have none."""
        names = {model.config.backend for model in self._repository.models() if model.ready}
        return sorted(names - {""})

    def agents_used(self) -> list[tuple[str, str]]:
        """Name and place of the repository agents that models have asked for."""
        return self._agents.used()

    def model_statistics(self) -> list[ModelActorStatistics]:
        """How the model actors are: states, instances alive, restarts, abandoned threads."""
        return [model.actor_statistics() for model in self._repository.models()]

    def actors(self) -> ActorNode:
        """The tree of the actors, as it is now."""
        state = "exiting" if self.exiting else "draining" if self.draining else "serving"
        budget = self._budget.statistics()
        detail = f"requests in flight: {budget.requests}, with {budget.bytes} bytes"
        others = [] if self._limiter is None else [self._limiter]
        return server_tree(self.options.server_id, state, detail, self._repository, self._repository.models(), others)

    def open_requests(self, most: int) -> OpenRequests:
        """What instances hold now, at most so many of each model version."""
        return open_requests(self._repository.models(), most)

    def refusal_statistics(self) -> dict[RefusalReason, int]:
        """What was refused that was for no model that is served. The statistics of models have the rest."""
        return dict(self.refusals.counts)

    def budget_statistics(self) -> BudgetStatistics:
        return self._budget.statistics()

    # Model control.

    async def load_model(self, name: str, parameters: Mapping[str, str | Buffer]) -> None:
        """Load a model, or load it again if it has changed; its members first, if it is an ensemble. Requests are
        answered by what is loaded until the new versions are ready, all at once. Cancelling this does not stop it.

        Args:
            parameters: ``config``, a configuration in JSON; ``file:<path>``, files that make up the model's directory.

        Raises:
            UnavailableError: not in this control mode, or stopping.
            InvalidArgumentError: it cannot be loaded (docs/reference/http.md#load).
            InternalError: there is no such model, or its configuration is invalid.
        """
        await (self.residents or self._control).load(name, parameters)

    async def unload_model(self, name: str, unload_dependents: bool = False, namespace: str = "") -> None:
        """Begin to unload a model, and the ensembles that need it. Does not wait for requests in flight.

        Args:
            unload_dependents: also those of its members that only it needs and that were not loaded by name.
            namespace: with model namespacing, only that of this repository; empty for those of all.

        Raises:
            UnavailableError: not in this control mode, or stopping.
        """
        await (self.residents or self._control).unload(name, unload_dependents, namespace)

    async def follow_repositories(self) -> None:
        """Look at the repositories once, as in the control mode "poll": load what is new or has changed, and unload
        what is gone. Errors are logged, and keep what is served as it is."""
        await self._control.poll()

    async def rescan(self) -> None:
        """Look at the repositories, so that `repository_index` lists what they hold now.

        Raises:
            TriremeError: one cannot be read.
        """
        await self._control.rescan()

    def __repr__(self) -> str:
        return f"<InferenceServer {self.options.server_id}: {'exiting' if self.exiting else 'serving'}>"


def _trio_loop(name: str) -> TrioLoop:
    """What coroutines of Python models run on; by then, the Python backend has been imported."""
    from ..python_backend.trio_loop import TrioLoop

    return TrioLoop(name)


def _is_cancelled(error: BaseException | None) -> bool:
    """Whether an error says that its task is cancelled, and nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)
