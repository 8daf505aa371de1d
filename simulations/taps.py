"""Where a simulation listens in on the actors.

The actors know nothing of it: the server is given models whose scheduler, or ensemble, is the real one and also tells
the recorder what it is asked and what its core decides. So events stand in the history in the order in which things
happened, at the moment of the decision itself.

What an ensemble asks of its members are requests like those of clients. The tap gives them numbers, as ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from ..actors.cached import CachedDoor
from ..actors.ensemble import STUCK_S, Ensemble, FindContinuing, FindModel
from ..actors.loading import ServerContext
from ..actors.messages import Attach, CacheHit, Gone, Leaving, Registered, SeatLost
from ..actors.model import Model
from ..actors.reply import ANSWER_WINDOW
from ..actors.scheduler import Scheduler
from ..engine.clock import Clock
from ..engine.config.model import ModelConfig
from ..engine.ensemble import EnsembleCore, EnsemblePlan, StepCall, Submit
from ..engine.errors import TriremeError
from ..engine.job import ExecutionBatch, Job, Outcome, ReplyTarget
from ..engine.metrics.statistics import ModelStatistics
from ..engine.repository.source import ModelSource
from ..engine.request import InferenceRequest, InferenceResponse
from ..engine.scheduling.core import Action, Dispatch, InstanceId, Reject, SchedulerCore
from ..engine.scheduling.dispatcher import Accounts
from ..engine.scheduling.sequence.batcher import SequenceBatcher
from .events import (
    NEVER_NS,
    AnswerFound,
    CancelHeard,
    InstanceAttached,
    InstanceDetached,
    ModelStateChanged,
    ReplyDelivered,
    RequestAnswered,
    RequestDropped,
    RequestIsolated,
    RequestQueued,
    RequestRefused,
    RequestRejected,
    RequestRescheduled,
    RequestSubmitted,
    SchedulerStopped,
    StepSubmitted,
)
from .generations import generation_name
from .graphs import step_number
from .history import ANSWER, Recorder, answer_number, error_text, request_number
from .oracle.observed import (
    CameToCache,
    DroppedAtDoor,
    FoundInCache,
    ToldLeaving,
    ToldSeated,
    ToldSeatLost,
    ToldSettled,
)


class TappedCore:
    """A scheduler's core, with its decisions written down. Whatever else it is asked goes straight to the core."""

    def __init__(self, model: str, core: SchedulerCore, recorder: Recorder) -> None:
        self.instances: dict[InstanceId, str] = {}
        self._model = model
        self._core = core
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._core, name)
        if callable(value):
            setattr(self, name, value)  # found at once from now on
        return value

    @property
    def queued(self) -> int:
        return self._core.queued

    def next_action(self, now: float) -> Action:
        action = self._core.next_action(now)
        if isinstance(action, Dispatch):
            instance = self.instances[action.instance]
            self._recorder.batch_sealed(self._model, action.jobs, instance, action.reason.value)
        elif isinstance(action, Reject):
            recorder = self._recorder
            recorder.record(RequestRejected(recorder.now_ns(), request_number(action.job), error_text(action.error)))
        return action

    def settle(self, jobs: Sequence[Job], now: float, rescheduled: Collection[Job] = ()) -> None:
        for job in rescheduled:
            recorder = self._recorder
            recorder.record(RequestRescheduled(recorder.now_ns(), request_number(job), self._model))
        cast(SequenceBatcher, self._core).settle(jobs, now, rescheduled)

    def drop_all(self) -> Sequence[Job]:
        jobs = self._core.drop_all()
        for job in jobs:
            self._recorder.record(RequestDropped(self._recorder.now_ns(), request_number(job)))
        return jobs

    def __repr__(self) -> str:
        return repr(self._core)


class TappedAccounts(Accounts):
    """The accounts of a model without sequences, with the batches written down that are over."""

    def __init__(self, statistics: ModelStatistics, clock: Clock, model: str, recorder: Recorder) -> None:
        super().__init__(statistics, clock)
        self._model = model
        self._recorder = recorder

    def over(self, batch: ExecutionBatch) -> int:
        groups = batch.jobs, batch.rescheduled
        requests, rescheduled = (tuple([request_number(job) for job in jobs]) for jobs in groups)
        self._recorder.tell(ToldSettled(self._recorder.now_ns() / 1e9, self._model, requests, rescheduled))
        return super().over(batch)


class TappedReply:
    """A job's reply, with what it is given written down.

    Args:
        counts: whether to number the responses, which their source does not.
    """

    __slots__ = ("_counts", "_given", "_number", "_recorder", "_reply", "_settled")

    def __init__(self, reply: ReplyTarget, number: int, recorder: Recorder, *, counts: bool = False) -> None:
        self._counts = counts
        self._given = 0
        self._reply = reply
        self._number = number
        self._recorder = recorder
        self._settled = False

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        recorder = self._recorder
        if self._counts and isinstance(outcome, InferenceResponse):
            self._given += 1
            outcome.parameters[ANSWER] = self._given
        answer = answer_number(outcome)
        now_ns = recorder.now_ns()
        recorder.record(ReplyDelivered(now_ns, self._number, error_text(outcome), final, self._settled, answer))
        self._settled = self._settled or final
        return self._reply.deliver(outcome, final)


TappedDoor = Scheduler | Ensemble
"""What takes a model's jobs in."""


class Generations:
    """How often each version of each model was loaded, or tried."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], int] = {}

    def begin(self, model: str, version: int) -> str:
        """One more; its name."""
        generation = self._counts[model, version] = self._counts.get((model, version), 0) + 1
        return generation_name(model, generation)

    def latest(self, model: str) -> str:
        """The name of the one that is being loaded: a model has only one such."""
        return generation_name(model, max(count for (name, _), count in self._counts.items() if name == model))


def tapped_model(
    recorder: Recorder, schedulers: list[TappedDoor], generations: Generations, window: int, stuck_s: float
) -> type[Model]:
    """The model actor, with its states written down; the doors that it makes are added to `schedulers`."""

    ensemble = tapped_ensemble(recorder, schedulers, generations)
    ensemble.answer_window, ensemble.stuck_s = window, stuck_s

    class TappedModel(Model):
        answer_window = window
        scheduler_class = tapped_scheduler(recorder, schedulers, generations)
        ensemble_class = ensemble
        cached_door_class = tapped_cached_door(recorder, generations)

        def __init__(
            self,
            source: ModelSource,
            config: ModelConfig,
            version: int,
            context: ServerContext,
            find: FindModel,
            continuing: FindContinuing,
            on_state: Callable[[Model], None],
        ) -> None:
            name = generations.begin(source.name, version)

            def tell(model: Model) -> None:
                recorder.record(ModelStateChanged(recorder.now_ns(), name, version, model.state.value))
                on_state(model)

            super().__init__(source, config, version, context, find, continuing, tell)

    return TappedModel


class _TellsOfIsolation(Scheduler):
    """The part that tells of requests in which cores have no part: that are executed again, alone, or turned away."""

    recorder: ClassVar[Recorder]

    def __init__(
        self, label: str, tapped: TappedCore, name: str, config: ModelConfig, *args: Any, **options: Any
    ) -> None:
        self._label = label
        self._tapped = tapped
        self._isolated: set[Job] = set()
        super().__init__(name, config, cast(SchedulerCore, tapped), *args, **options)

    def _gone(self, message: Gone) -> None:
        super()._gone(message)
        for job in message.isolated:
            self._isolated.add(job)
            now_ns, number = self.recorder.now_ns(), request_number(job)
            self.recorder.record(RequestIsolated(now_ns, number, self._label, message.seat))

    def _instance_changed(self, message: Attach | Registered | Leaving | Gone | SeatLost) -> None:
        if isinstance(message, Leaving) and message.instance in self.instances:
            self.recorder.tell(ToldLeaving(self._label, self._tapped.instances[message.instance]))
        elif isinstance(message, SeatLost):
            self.recorder.tell(ToldSeatLost(self._label, message.seat, tuple(message.heirs)))
        super()._instance_changed(message)

    def _dispatch(self, action: Dispatch) -> None:
        if action.isolated:
            self._isolated.difference_update(action.jobs)
            name = self._tapped.instances[action.instance]
            self.recorder.batch_sealed(self._label, action.jobs, name, action.reason.value)
        super()._dispatch(action)

    def turn_away(self, request: InferenceRequest) -> TriremeError | None:
        error = super().turn_away(request)
        if error is not None:
            recorder = self.recorder
            recorder.record(RequestRefused(recorder.now_ns(), request_number(request), error_text(error)))
        return error

    def _reject(self, job: Job, error: TriremeError) -> None:
        if job in self._isolated:
            self._isolated.remove(job)
            self.recorder.record(RequestRejected(self.recorder.now_ns(), request_number(job), error_text(error)))
        super()._reject(job, error)


def tapped_scheduler(recorder: Recorder, schedulers: list[TappedDoor], generations: Generations) -> type[Scheduler]:
    """The scheduler actor, with what it is told written down; each one made is added to `schedulers`."""

    class TappedScheduler(_TellsOfIsolation):
        def __init__(self, name: str, config: ModelConfig, core: SchedulerCore, *args: Any, **options: Any) -> None:
            label = generations.latest(name)
            self._told_to_stop = False
            super().__init__(label, TappedCore(label, core, recorder), name, config, *args, **options)
            if self._dispatcher.sequences is None:  # or the core tells what is settled
                self._accounts = TappedAccounts(self._statistics, self._clock, label, recorder)
            schedulers.append(self)

        def admit(self, job: Job) -> None:
            super().admit(job)
            _record_queued(recorder, job, self._label)

        def _answer(self, message: CacheHit) -> None:
            _record_found(recorder, message.job, self._label)
            super()._answer(message)

        def refuse(self, job: Job, error: TriremeError) -> None:
            recorder.record(RequestRefused(recorder.now_ns(), request_number(job), error_text(error)))
            super().refuse(job, error)

        def cancel(self, job: Job) -> None:
            if not job.answered:
                recorder.record(CancelHeard(recorder.now_ns(), request_number(job), job.batch is not None))
            super().cancel(job)

        def stop(self) -> None:
            self._tell_stopped()
            super().stop()

        def bury(self, error: TriremeError) -> None:
            self._tell_stopped()
            super().bury(error)

        def _tell_stopped(self) -> None:
            if not self._told_to_stop:
                self._told_to_stop = True
                recorder.record(SchedulerStopped(recorder.now_ns(), self._label))

        def attach(self, message: Attach) -> None:
            names = [self._tapped.instances[other] for other in self.instances]
            name = _unique(message.name + self._label.removeprefix(self.name), names)
            self._tapped.instances[message.instance] = name
            recorder.tell(ToldSeated(self._label, name, message.seat))
            recorder.record(InstanceAttached(recorder.now_ns(), self._label, name))
            super().attach(message)

        def detach(self, instance: InstanceId) -> None:
            if instance in self.instances:
                name = self._tapped.instances[instance]
                recorder.record(InstanceDetached(recorder.now_ns(), self._label, name))
            super().detach(instance)

    TappedScheduler.recorder = recorder
    return TappedScheduler


def _unique(name: str, others: Collection[str]) -> str:
    """A name for a new instance. One that is to go, but still has sequences, may be called like it."""
    while name in others:
        name += "'"
    return name


class TappedEnsembleCore(EnsembleCore):
    """An ensemble's core, with what members refuse at once written down."""

    def __init__(self, plan: EnsemblePlan, recorder: Recorder) -> None:
        super().__init__(plan)
        self.asking: StepCall | None = None
        self.number = 0
        self._recorder = recorder

    def step_answered(self, call: StepCall, outcome: Outcome, final: bool = True) -> None:
        if call is self.asking and isinstance(outcome, TriremeError):
            self._recorder.record(RequestAnswered(self._recorder.now_ns(), self.number, error_text(outcome)))
        super().step_answered(call, outcome, final)


def tapped_ensemble(recorder: Recorder, schedulers: list[TappedDoor], generations: Generations) -> type[Ensemble]:
    """The ensemble actor, with what it is told and what it asks of its members written down."""

    class TappedEnsemble(Ensemble):
        def __init__(self, plan: EnsemblePlan, *args: Any) -> None:
            super().__init__(plan, *args)
            self._core = self._tapped = TappedEnsembleCore(plan, recorder)
            self._label = generations.latest(self.name)
            self._told_to_stop = False
            schedulers.append(self)

        def admit(self, job: Job) -> None:
            number = request_number(job)
            super().admit(job)
            job.reply = TappedReply(job.reply, number, recorder, counts=self._core.plan.decoupled)
            recorder.record(RequestQueued(recorder.now_ns(), number, self._label, job.rows, 0, NEVER_NS))

        def refuse(self, job: Job, error: TriremeError) -> None:
            recorder.record(RequestRefused(recorder.now_ns(), request_number(job), error_text(error)))
            super().refuse(job, error)

        def cancel(self, job: Job) -> None:
            if not job.answered:
                recorder.record(CancelHeard(recorder.now_ns(), request_number(job), False))
            super().cancel(job)

        def stop(self) -> None:
            self._tell_stopped()
            super().stop()

        def bury(self, error: TriremeError) -> None:
            self._tell_stopped()
            super().bury(error)

        def _tell_stopped(self) -> None:
            if not self._told_to_stop:
                self._told_to_stop = True
                recorder.record(SchedulerStopped(recorder.now_ns(), self._label))

        def fail_held(self, error: TriremeError) -> None:
            for job in self._runs:
                recorder.record(RequestDropped(recorder.now_ns(), request_number(job)))
            super().fail_held(error)

        def _submit(self, call: StepCall, action: Submit) -> None:
            number = _record_step(recorder, call, action.request)
            self._tapped.asking, self._tapped.number = call, number
            super()._submit(call, action)
            self._tapped.asking = None

        def hear(self, step: Any, outcome: Outcome, final: bool) -> None:
            if final:
                recorder.record(RequestAnswered(recorder.now_ns(), request_number(step.job), error_text(outcome)))
            super().hear(step, outcome, final)

    return TappedEnsemble


def _record_queued(recorder: Recorder, job: Job, model: str) -> None:
    number = request_number(job)
    job.reply = TappedReply(job.reply, number, recorder)
    deadline_ns = NEVER_NS if job.deadline_s is None else round(job.deadline_s * 1e9)
    recorder.record(RequestQueued(recorder.now_ns(), number, model, job.rows, job.level, deadline_ns))


def _record_found(recorder: Recorder, job: Job, model: str) -> None:
    """Write down that a request is answered from the response cache."""
    number = request_number(job)
    job.reply = TappedReply(job.reply, number, recorder)
    recorder.tell(FoundInCache(model, number, job.inputs))
    recorder.record(AnswerFound(recorder.now_ns(), number, model))


def _record_step(recorder: Recorder, call: StepCall, request: InferenceRequest) -> int:
    """Write down that a step is submitted; its number."""
    parent, step = request_number(call.run.job), call.step.index + 1
    number = step_number(parent, step, call.iteration)
    now_ns = recorder.now_ns()
    request.id = str(number)
    recorder.record(StepSubmitted(now_ns, number, parent, step, call.iteration))
    rows, sequence = max(1, call.rows), request.correlation_id
    flags = (request.sequence_start, request.sequence_end)
    limits = (request.priority, request.timeout_us)
    recorder.record(RequestSubmitted(now_ns, number, request.model_name, rows, *limits, sequence or 0, *flags))
    return number


def tapped_cached_door(recorder: Recorder, generations: Generations) -> type[CachedDoor]:
    """The response cache's door, with what is found there written down."""

    class TappedCachedDoor(CachedDoor):
        def __init__(self, inner: Scheduler | Ensemble, *args: Any) -> None:
            super().__init__(inner, *args)
            self._label = generations.latest(self.name)

        def _hit(self, job: Job, found: Any, outputs: Any) -> None:
            if isinstance(self._inner, Ensemble):  # a scheduler takes it in as a message
                _record_found(recorder, job, self._label)
            super()._hit(job, found, outputs)

        def admit(self, job: Job) -> None:
            recorder.tell(CameToCache(recorder.now_ns(), request_number(job)))
            super().admit(job)

        def _drop(self, waiting: Any, error: TriremeError) -> None:
            number = request_number(waiting.job)
            recorder.tell(DroppedAtDoor(recorder.now_ns(), self._label, number, error_text(error)))
            super()._drop(waiting, error)

    return TappedCachedDoor


@dataclass(frozen=True, slots=True)
class Taps:
    """What listening gives.

    Attributes:
        schedulers: those made so far.
        latest: what a model that is being loaded is called in the history.
        model_class: for the server whose models are to be listened to.
    """

    schedulers: list[TappedDoor]
    latest: Callable[[str], str]
    model_class: type[Model]


def tapped(recorder: Recorder, window: int = ANSWER_WINDOW, stuck_s: float = STUCK_S) -> Taps:
    """Models with schedulers, ensembles and doors that are listened to.

    Args:
        window: how many answers of a decoupled model may wait for their client, or for an ensemble.
        stuck_s: `Ensemble.stuck_s`.
    """
    generations = Generations()
    schedulers: list[TappedDoor] = []
    return Taps(schedulers, generations.latest, tapped_model(recorder, schedulers, generations, window, stuck_s))
