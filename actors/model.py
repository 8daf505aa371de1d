"""The model actor: one version of a model, from loading to unloading, and the supervisor of its parts.

Rules:
 1. A version that is loaded stays LOADING until it is told to `Serve`, so that all versions of one load begin to serve
    in the same turn.
 2. One that is told to `Drain` while ensembles hold it (`Hold`, `LetGo`) is UNLOADING, and goes on working for them
    until the last has let it go.
 3. Its children are a scheduler and the instances (`instances`); those of an ensemble are the ensemble actor alone. An
    instance that dies is started again; meanwhile the model is not ready, with the reason. A scheduler never dies of
    its jobs; if it dies at all, or the model actor itself, the model is unready, with the reason, and every request is
    answered.
 4. What waits is for its task (`run`): loading, the end of its children, closing.

Messages: see `messages`. Every change of state is told to the repository, with the reason.

States (docs/reference/model-control.md#repository-index):

    UNKNOWN ─ run ▶ LOADING ─ loaded, Serve ▶ READY ─ Drain ▶ UNLOADING ─ all is answered and closed ▶ UNAVAILABLE
    LOADING ─ fails, or Drain ▶ UNAVAILABLE
    READY ─ rule 3 ▶ UNAVAILABLE
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar

import trio

from ..engine.admission.large_requests import RegionReaders
from ..engine.backends.interface import LoadedModel
from ..engine.cache.entry import fingerprint
from ..engine.config.chat import ChatTemplate
from ..engine.config.instance_groups import rate_limits
from ..engine.config.model import ModelConfig
from ..engine.description import ActorNode, IndexEntry, ModelActorStatistics, ModelDescription, ModelState
from ..engine.errors import InternalError, TriremeError, unframed
from ..engine.instances.orders import InstanceOrder, adopt, instance_orders
from ..engine.logs.request_lines import about
from ..engine.metrics.statistics import MemoryUsage, ModelStatistics, RecentLatencies, first_response_histogram
from ..engine.repository.catalog import UNLOADED
from ..engine.repository.loading import LoadedEnsemble, LoadedInstances, gpus_for
from ..engine.repository.source import ModelSource
from ..engine.request import InferenceRequest
from ..engine.validation import RequestValidator
from .actor import Actor
from .actor_tree import model_node
from .cached import CachedDoor
from .door import Door, stopping_error
from .ensemble import Ensemble, FindContinuing, FindModel, Members
from .instance import ReadinessCheck
from .instances import InstanceCounts, Instances
from .loading import ServerContext, load
from .messages import Drain, EndResize, Hold, ModelMessage, Serve, Stop
from .reply import ANSWER_WINDOW
from .scheduler import Scheduler
from .slot import SlotActors

logger = logging.getLogger("trireme.model")


class Model(Actor[ModelMessage]):
    """One version of one model.

    Args:
        source: where its files are.
        config: as read in the poll phase; replaced by the complete one when loaded.
        find, continuing: for ensembles; see `Members`.
        on_state: called at each change of state.

    Attributes:
        id: tells the model from every other of the server.
        stateful: requests belong to sequences.
        share: what it has in flight of the server's budget.
        region_readers: see `LoadedModel.input_gpu` and `reads_regions`.
        settled: loading has succeeded or failed; see `loaded`.
        scheduler, validator: of a model that was loaded once; others have none.
    """

    answer_window: ClassVar[int] = ANSWER_WINDOW
    scheduler_class: ClassVar[type[Scheduler]] = Scheduler
    ensemble_class: ClassVar[type[Ensemble]] = Ensemble
    cached_door_class: ClassVar[type[CachedDoor]] = CachedDoor

    scheduler: Door[Any]
    validator: RequestValidator

    def __init__(
        self,
        source: ModelSource,
        config: ModelConfig,
        version: int,
        context: ServerContext,
        find: FindModel,
        continuing: FindContinuing,
        on_state: Callable[[Model], None] = lambda _model: None,
    ) -> None:
        super().__init__(f"model {source.id} version {version}", context.turn)
        self.id = source.id
        self.name = source.name
        self.stateful = config.has_sequence_batching
        self.share = context.budget.share(source.name)
        self.version = version
        self.config = config
        self.state = ModelState.UNKNOWN
        self.reason = ""
        self.statistics = ModelStatistics()
        self.labels: Mapping[str, tuple[str, ...]] = {}
        self.chat: ChatTemplate | None = None
        self.adapters: tuple[str, ...] = ()
        self.source = source
        self._context = context
        self._find = find
        self._continuing = continuing
        self._on_state = on_state
        self.instances: Instances | None = None  # before it has any, and when they have ended
        self._counts = InstanceCounts()
        self._cause: TriremeError | None = None  # of its end
        self._end = trio.Event()
        self.settled = trio.Event()
        self._opened = False  # it has a scheduler
        self._loaded = False
        self._loading = trio.CancelScope()
        self._stopping = False
        self._finishes_sequences = False
        self._ends_sequences = False
        self._holds = 0
        self._drained = False
        self._members: Members | None = None
        self._batcher: Scheduler | None = None  # behind its door
        self._cache_identity = ""
        self._backend_model: LoadedModel | None = None
        self.region_readers = RegionReaders()

    # What others ask.

    @property
    def ready(self) -> bool:
        return self.state is ModelState.READY

    @property
    def draining(self) -> bool:
        """It takes nothing new and is still at work on what it has accepted."""
        return self.state is ModelState.UNLOADING and not self._drained

    @property
    def ended(self) -> bool:
        """It has been unloaded, has failed or was given up."""
        return self.state is ModelState.UNAVAILABLE

    @property
    def retiring(self) -> bool:
        """It has been replaced, and continues the sequences that it has until they are over."""
        return self._finishes_sequences and self.draining and self._cause is None

    @property
    def loaded(self) -> bool:
        """It waits for `serve`."""
        return self._loaded and self.state is ModelState.LOADING and not self._stopping and self._cause is None

    @property
    def serving(self) -> bool:
        """It takes requests, if only those of ensembles that hold it."""
        return self.ready or (self.held and self.state is ModelState.UNLOADING and self._cause is None)

    @property
    def held(self) -> bool:
        """An ensemble needs it."""
        return self._holds > 0

    @property
    def trouble(self) -> str:
        """Why it is not well although it is loaded: an instance waits for its restart, all of them are stuck, or a
        member is in trouble. Empty if it is well."""
        if self._members is not None:
            return self._members.trouble
        if self.instances is None:
            return "its instances have ended" if self._counts.expected else ""
        return self.instances.trouble()

    @property
    def healthy(self) -> bool:
        """Ready, and nothing is wrong with its instances, or with those of its members."""
        return self.ready and not self.trouble

    def index_entry(self) -> IndexEntry:
        """Its row of the repository index. A version that is loaded and not well is unavailable, with a reason."""
        trouble = self.trouble if self.ready else ""
        state = ModelState.UNAVAILABLE if trouble else self.state
        return IndexEntry(self.name, str(self.version), state, trouble or self.reason)

    def own_checks(self) -> list[ReadinessCheck]:
        """What its instances, or those of its members, say of themselves if they are asked."""
        if self._members is not None:
            return self._members.own_checks()
        return [] if self.instances is None else self.instances.own_checks()

    @property
    def has_sequences(self) -> bool:
        """Its answers, or those of its members, depend on requests before."""
        members = [] if self._members is None else self._members.steps
        return self.config.has_sequence_batching or any(member.has_sequences for member in members)

    @property
    def live_sequences(self) -> int:
        """How many requests may continue."""
        return 0 if self._batcher is None else self._batcher.live_sequences

    @property
    def memory_usage(self) -> tuple[MemoryUsage, ...]:
        """What the backend says about it; an ensemble has no memory of its own."""
        return () if self._backend_model is None else self._backend_model.memory_usage

    def process_bytes(self) -> int:
        """Memory of the processes that its instances run in."""
        return 0 if self._backend_model is None else self._backend_model.process_bytes()

    def continues(self, request: InferenceRequest) -> bool:
        """Whether it has the sequence that a request belongs to."""
        return self._batcher is not None and self._batcher.continues(request.correlation_id)

    def describe(self, versions: tuple[int, ...]) -> ModelDescription:
        about = self.name, self.version, versions, self.config, self.labels
        return ModelDescription(*about, chat=self.chat, adapters=self.adapters)

    def actor_statistics(self) -> ModelActorStatistics:
        counts = self._counts_now()
        return ModelActorStatistics(
            self.name,
            self.version,
            self.state,
            self.reason,
            counts.alive,
            counts.expected,
            counts.restarts,
            counts.abandoned,
            self.scheduler.inflight if self._opened else 0,
            self.source.namespace,
            self.statistics.queue.count,
            self.statistics.queue.ns,
        )

    def node(self) -> ActorNode:
        """What it and its children look like to people."""
        return model_node(self, self.scheduler if self._opened else None, self._batcher, self.instances)

    def _counts_now(self) -> InstanceCounts:
        return self._counts if self.instances is None else self.instances.counts()

    # In turns.

    def receive(self, message: ModelMessage) -> None:
        if isinstance(message, Serve):
            if self.loaded:
                self._enter(ModelState.READY)
        elif isinstance(message, Drain):
            self._drain(message)
        elif isinstance(message, EndResize):
            self._end_resize()
        else:
            self._holds += 1 if isinstance(message, Hold) else -1
            self._wind_down()

    def fail(self, error: Exception) -> None:
        super().fail(error)
        logger.error("model '%s' version %d died", self.name, self.version, exc_info=error, extra=about(self.id))
        self._give_up(InternalError(f"model '{self.name}' died: {error}"))
        self._loading.cancel()

    def _drain(self, message: Drain) -> None:
        self._finishes_sequences = message.retires and self.stateful
        self._ends_sequences = self._ends_sequences or message.unloads
        self._stopping = True
        if self.state is ModelState.READY:
            self._enter(ModelState.UNLOADING)
        self._wind_down()
        if not self._loaded:
            self._loading.cancel()
            self._end_resize()

    def _end_resize(self) -> None:
        if self.instances is not None:
            self.instances.end_start()

    def _wind_down(self) -> None:
        if self._stopping and not self.held:
            if self._opened:
                self.scheduler.mailbox.send_nowait(Stop(self._finishes_sequences, self._ends_sequences))
            self._end.set()

    # Its life.

    async def change(self, read: ModelConfig) -> str:
        """Have the instances, and the version policy, of a configuration that was just read
        (docs/reference/model-control.md#changes-in-place). Those that are too many have left when this returns, but for
        those that have sequences.

        Returns:
            Why not, and in which state; everything is as before then. Empty if it was done.
        """
        instances = self.instances
        try:
            if instances is None:
                raise stopping_error()
            context = self._context
            wanted = adopt(self.config, read)
            prepare = self.source.prepare
            config = await context.executors.offload(lambda: prepare(wanted, None, gpus_for(wanted, context)))
        except TriremeError as error:
            return f"{ModelState.UNAVAILABLE.value} state: {error.status_text}"
        error = await instances.resize(self._orders(config))
        if error is not None:
            return f"{self.state.value} state: {error.status_text}"
        self.config = config
        return ""

    async def run(self) -> None:
        """Load, serve, drain, unload."""
        retries = self._context.options.model_load_retry_count
        try:
            await self._load_and_serve()
            for attempt in range(1, retries + 1):
                if self._loaded or self._stopping or self.failure is not None or self._cause is None:
                    break
                text = "loading '%s' version %d failed: %s; trying again (%d of %d)"
                reason = self._cause.status_text
                logger.warning(text, self.id, self.version, reason, attempt, retries, extra=about(self.id))
                self._cause = None
                self._end = trio.Event()
                self._drained = False
                await self._load_and_serve()
        finally:
            self._backend_model = None
        self._enter(ModelState.UNAVAILABLE, UNLOADED if self._cause is None else self._cause.status_text)
        self.settled.set()

    async def _load_and_serve(self) -> None:
        """From loading to the end, unless loading fails."""
        self._enter(ModelState.LOADING)
        began_s = self._context.clock.now_s()
        try:
            loaded = await self._load()
            if loaded is not None:
                await self._serve(loaded, began_s)
        except TriremeError as error:
            self._cause = unframed(error)  # and not what was loaded until then
        finally:
            self._counts = replace(self._counts_now(), alive=0)
            self.instances = None
            if self._members is not None:
                self._members.let_go()

    async def _serve(self, loaded: LoadedInstances | LoadedEnsemble, began_s: float) -> None:
        try:
            async with trio.open_nursery() as nursery:
                await self._start_children(nursery, loaded)
                if self._cause is None:
                    self.statistics.load_duration_s = self._context.clock.now_s() - began_s
                    self._loaded = True
                    self.settled.set()
                    await self._end.wait()
                await self._stop_children(nursery)
        finally:
            self.scheduler.bury(stopping_error())
        if isinstance(loaded, LoadedInstances):
            await self._close(loaded.model)

    async def _close(self, model: LoadedModel) -> None:
        try:
            await self._context.executors.briefly(model.close)
            logger.info("TRITONBACKEND_ModelFinalize: delete model state")
        except Exception:
            # A backend's code: what it cannot give back is lost, but nothing else is.
            logger.exception("closing model '%s' version %d failed", self.name, self.version, extra=about(self.id))

    async def _load(self) -> LoadedInstances | LoadedEnsemble | None:
        """None if it was told to stop meanwhile: what takes time then is ended, or left to itself."""
        context, steps = self._context, None
        if self.config.has_ensemble_scheduling:
            with self._turn:  # all of them are held, or none
                self._members = Members(self.config, self._find, self._continuing)
            steps = self._members.steps
        loaded = None
        with trio.CancelScope() as self._loading:
            loaded = None if self._stopping else await load(self.source, self.config, self.version, context, steps)
        if self._stopping:
            if isinstance(loaded, LoadedInstances):
                await self._close(loaded.model)
            return None
        assert loaded is not None, "a load is cancelled by telling the model to stop"
        self.config, self.labels = loaded.config, loaded.labels
        self._backend_model = loaded.model if isinstance(loaded, LoadedInstances) else None
        self.chat = loaded.chat if isinstance(loaded, LoadedInstances) else None
        made = self._backend_model
        self.adapters = () if made is None else made.adapters
        self.region_readers = RegionReaders() if made is None else RegionReaders(made.input_gpu, made.reads_regions)
        self.stateful = self.config.has_sequence_batching
        self.validator = RequestValidator(self.config, context.options.tensor_limits)
        if context.options.summary_latencies:
            self.statistics.recent = RecentLatencies()
        histogram = first_response_histogram(self.config)  # warns of what it does not know, wanted or not
        if context.options.histogram_latencies:
            self.statistics.first_responses = histogram
        self.statistics.generated = None if made is None else made.generated
        self.statistics.encoded = None if made is None else made.encoded
        self.statistics.cached = self.config.response_cache
        if context.cache is not None and self.config.response_cache:
            shared = context.cache.cache.shared
            own = f"load {context.cache.next_load()}"
            self._cache_identity = await context.executors.offload(self.fingerprint) if shared else own
        return loaded

    def fingerprint(self) -> str:
        """Tells models that may answer differently apart, over several servers. Reads files."""
        members = [] if self._members is None else [member.fingerprint() for member in self._members.steps]
        return fingerprint(self.config, self.source.files(self.version), members)

    def _open(self, scheduler: Scheduler | Ensemble, nursery: trio.Nursery) -> None:
        """Start what takes requests in, behind a door of the response cache if the model uses it."""
        self.scheduler = scheduler
        context, identity = self._context, self._cache_identity
        if context.cache is not None and self.config.response_cache:
            about = self.config, context.clock, context.turn, self.statistics
            self.scheduler = self.cached_door_class(scheduler, context.cache, identity, *about)
        self._opened = True
        nursery.start_soon(self._keep_scheduler, self.scheduler)

    async def _start_children(self, nursery: trio.Nursery, loaded: LoadedInstances | LoadedEnsemble) -> None:
        clock, turn = self._context.clock, self._context.turn
        if isinstance(loaded, LoadedEnsemble):
            assert self._members is not None, "an ensemble was loaded with its members"
            ensemble = self.ensemble_class(loaded.plan, self._members.find, clock, turn, self.statistics)
            self._open(ensemble, nursery)
            return
        scheduler = self.scheduler_class(
            self.name,
            self.config,
            loaded.core,
            clock,
            turn,
            self.statistics,
            self._context.lines,
            iterative=loaded.iterative,
            limiter=self._context.limiter,
        )
        if self.stateful:
            SlotActors(self.name, nursery, clock, turn, scheduler.mailbox.send_nowait).serve(loaded.core)
        self._batcher = scheduler
        self._open(scheduler, nursery)
        title = f"model '{self.name}' version {self.version}"
        self.instances = Instances(title, loaded, self.version, scheduler, self._context, nursery)
        error = await self.instances.start(self._orders(self.config))
        if error is not None and not self._stopping:
            self._give_up(error)

    def _orders(self, config: ModelConfig) -> list[InstanceOrder]:
        limits = () if self._context.limiter is None else rate_limits(config)
        return list(instance_orders(config, limits))

    async def _stop_children(self, nursery: trio.Nursery) -> None:
        scheduler = self.scheduler
        if self._cause is not None:
            scheduler.bury(copy(self._cause))  # who is answered raises it; the one that is kept is not raised
        else:
            await scheduler.drained()
        self._drained = True
        if self.instances is not None:
            await self.instances.close()
        nursery.cancel_scope.cancel()

    async def _keep_scheduler(self, scheduler: Door[Any]) -> None:
        try:
            await scheduler.run()
        except Exception as error:
            text = "the scheduler of model '%s' version %d died"
            logger.exception(text, self.name, self.version, extra=about(self.id))
            self._give_up(InternalError(f"the scheduler of model '{self.name}' died: {error}"))

    def _give_up(self, error: TriremeError) -> None:
        """A part is lost for good: stop serving, answer what is queued."""
        if self._cause is None:
            self._cause = error
        if self.state is ModelState.READY:
            self._enter(ModelState.UNAVAILABLE, error.status_text)
        if self._end.is_set():  # it is being drained, and nothing is left to execute what is queued
            self.scheduler.bury(copy(error))
        self._end_resize()  # what still starts would have nothing to attach to
        self._end.set()

    def _enter(self, state: ModelState, reason: str = "") -> None:
        if (state, reason) != (self.state, self.reason):
            self.state = state
            self.reason = reason
            self._on_state(self)

    def __repr__(self) -> str:
        return f"<Model {self.name}:{self.version} {self.state.value}{f' ({self.reason})' if self.reason else ''}>"
