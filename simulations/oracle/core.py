"""A scheduler core that is observed: listeners hear what it is told and what it decides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

from ...engine.config.model import ModelConfig
from ...engine.errors import TriremeError
from ...engine.job import Job
from ...engine.scheduler_delays import SchedulerDelays
from ...engine.scheduling.adaptive import AdaptiveBatcher
from ...engine.scheduling.core import (
    Action,
    Await,
    Dispatch,
    InstanceId,
    Reject,
    SchedulerCore,
    WaitUntil,
)
from ...engine.scheduling.factory import CoreFactory, make_scheduler
from ...engine.scheduling.sequence.batcher import SequenceBatcher, StartSlot
from ...engine.scheduling.sequence.slot import Discard, Slot, SlotMessage, SlotState
from ...engine.scheduling.sequence.slot_core import Discarded, Failed, Idle, SlotCore, SlotReport
from ...engine.scheduling.sequence.state import StateLayout
from ..faulty_slots import DyingSlotCore, SlotDies
from ..history import Recorder, error_text, request_number
from .observed import (
    NEVER_S,
    Admitted,
    Awaits,
    CoreMade,
    Dispatched,
    Observation,
    QueueDropped,
    RefusedAtDoor,
    Rejected,
    SaidFull,
    SlotAsked,
    ToldCancelled,
    ToldDiscarded,
    ToldExecuted,
    ToldGone,
    ToldIdle,
    ToldPaused,
    ToldRelease,
    ToldSequencesEnd,
    ToldSettled,
    ToldSilent,
    ToldSlotDied,
    ToldToStop,
    Waits,
)


def observed_factory(
    recorder: Recorder, name_of: Callable[[str], str], slot_dies: Callable[[], SlotDies | None]
) -> CoreFactory:
    """A factory of cores that are observed.

    Args:
        name_of: what a model that is being loaded is called in histories.
        slot_dies: what slots may die of, if of anything.
    """

    def make(config: ModelConfig, states: StateLayout | None, delays: SchedulerDelays) -> SchedulerCore:
        core = make_scheduler(config, states, delays)
        name = name_of(config.name)
        recorder.tell(CoreMade(name, config, delays))
        return cast(SchedulerCore, ObservedCore(name, core, recorder.tell, slot_dies()))

    return make


class ObservedCore:
    """A core, with what passes told to `tell`. Whatever else it is asked goes straight to the core."""

    def __init__(
        self, name: str, core: SchedulerCore, tell: Callable[[Observation], None], slot_dies: SlotDies | None = None
    ) -> None:
        self._name = name
        self._observed = core
        self._tell = tell
        self._slot_dies = slot_dies

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._observed, name)
        if callable(value):
            setattr(self, name, value)  # found at once from now on
        return value

    @property
    def queued(self) -> int:
        return self._observed.queued

    def use_slots(self, start: StartSlot) -> None:
        dies = self._slot_dies

        def start_observed(slot: Slot, core: SlotCore) -> Callable[[SlotMessage], object]:
            send = start(slot, core if dies is None else cast(SlotCore, DyingSlotCore(core, dies)))

            def observed(message: SlotMessage) -> object:
                if isinstance(message, Discard):
                    self._tell(SlotAsked(self._name, slot.instance, slot.number))
                return send(message)

            return observed

        cast(SequenceBatcher, self._observed).use_slots(start_observed)

    def enqueue(self, job: Job, now: float) -> None:
        request = job.request
        asked = job.rows, request.priority, request.timeout_us, job.inputs
        sequence = request.correlation_id, request.sequence_start, request.sequence_end
        number = request_number(job)
        try:
            self._observed.enqueue(job, now)
        except TriremeError as error:
            self._tell(RefusedAtDoor(now, self._name, number, error_text(error), *asked, *sequence))
            raise
        self._tell(Admitted(now, self._name, number, *asked, *sequence))

    def instance_idle(self, instance: InstanceId, spare: bool = False) -> None:
        self._observed.instance_idle(instance, spare)
        self._tell(ToldIdle(self._name, instance, spare))

    def instance_paused(self, instance: InstanceId) -> None:
        self._observed.instance_paused(instance)
        self._tell(ToldPaused(self._name, instance))

    def instance_gone(self, instance: InstanceId) -> None:
        self._observed.instance_gone(instance)
        self._tell(ToldGone(self._name, instance))

    def release(self, instance: InstanceId) -> bool:
        free = cast(SequenceBatcher, self._observed).release(instance)
        self._tell(ToldRelease(self._name, instance, free))
        return free

    def cancel(self, job: Job) -> None:
        self._observed.cancel(job)
        self._tell(ToldCancelled(self._name, request_number(job)))

    def executed(self, instance: InstanceId, first: Job, now: float, *, failed: bool = False) -> None:
        cast(AdaptiveBatcher, self._observed).executed(instance, first, now, failed=failed)
        self._tell(ToldExecuted(now, self._name, instance, request_number(first), failed))

    def settle(self, jobs: Sequence[Job], now: float, rescheduled: Collection[Job]) -> None:
        cast(SequenceBatcher, self._observed).settle(jobs, now, rescheduled)
        self._tell(ToldSettled(now, self._name, _numbers(jobs), _numbers(rescheduled)))

    def next_action(self, now: float) -> Action:
        action = self._observed.next_action(now)
        if isinstance(action, Dispatch):
            self._tell(Dispatched(now, self._name, action.instance, _numbers(action.jobs), action.reason))
        elif isinstance(action, Reject):
            self._tell(Rejected(now, self._name, request_number(action.job), error_text(action.error)))
        elif isinstance(action, Await):
            self._tell(Awaits(now, self._name))
        else:
            self._tell(Waits(now, self._name, action.when_s if isinstance(action, WaitUntil) else NEVER_S))
        return action

    @property
    def full(self) -> bool:
        full = self._observed.full
        self._tell(SaidFull(self._name, full))
        return full

    def hear(self, report: SlotReport, now: float) -> None:
        sequence = report.slot.sequence
        goes_on = isinstance(report, Idle) and sequence is not None and not sequence.over
        is_gone = report.slot.state is SlotState.GONE
        cast(SequenceBatcher, self._observed).hear(report, now)
        if isinstance(report, Discarded) and not is_gone:
            self._tell(ToldDiscarded(self._name, report.slot.instance, report.slot.number, _numbers(report.jobs)))
        if goes_on and sequence is not None and sequence.over:
            self._tell(ToldSilent(now, self._name, sequence.id))
        if isinstance(report, Failed) and not is_gone:
            self._tell(ToldSlotDied(self._name, report.slot.instance, report.slot.number))

    def stop(self) -> None:
        self._observed.stop()
        self._tell(ToldToStop(self._name))

    def end_sequences(self) -> None:
        cast(SequenceBatcher, self._observed).end_sequences()
        self._tell(ToldSequencesEnd(self._name))

    def drop_all(self) -> Sequence[Job]:
        jobs = self._observed.drop_all()
        self._tell(QueueDropped(self._name, _numbers(jobs)))
        return jobs

    def __repr__(self) -> str:
        return repr(self._observed)


def _numbers(jobs: Collection[Job]) -> tuple[int, ...]:
    return tuple([request_number(job) for job in jobs])
