"""Where a simulation listens in on the actors.

The actors know nothing of it: for the time of a run, models are given a scheduler that is the real one and also tells
the recorder what it is asked and what its core decides. So events stand in the history in the order in which things
happened, at the moment of the decision itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from ..actors import model as model_module
from ..actors.scheduler import InstanceAddress, Scheduler
from ..engine.job import Job, Outcome, Reply
from ..engine.scheduling.core import Action, Dispatch, InstanceId, Reject, SchedulerCore
from .events import (
    NEVER_NS,
    CancelHeard,
    InstanceAttached,
    InstanceDetached,
    ReplyDelivered,
    RequestDropped,
    RequestQueued,
    RequestRejected,
    SchedulerStopped,
)
from .history import Recorder, error_text, request_number


class TappedCore:
    """A scheduler's core, with its decisions written down. Whatever else it is asked goes straight to the core."""

    def __init__(self, core: SchedulerCore, recorder: Recorder) -> None:
        self.instances: dict[InstanceId, str] = {}
        self._core = core
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._core, name)
        if callable(value):
            setattr(self, name, value)  # found at once from now on
        return value

    def next_action(self, now: float) -> Action:
        action = self._core.next_action(now)
        if isinstance(action, Dispatch):
            self._recorder.batch_sealed(action.jobs, self.instances[action.instance], action.reason.value)
        elif isinstance(action, Reject):
            recorder = self._recorder
            recorder.record(RequestRejected(recorder.now_ns(), request_number(action.job), error_text(action.error)))
        return action

    def drop_all(self) -> Sequence[Job]:
        jobs = self._core.drop_all()
        for job in jobs:
            self._recorder.record(RequestDropped(self._recorder.now_ns(), request_number(job)))
        return jobs

    def __repr__(self) -> str:
        return repr(self._core)


class TappedReply:
    """A job's reply, with what it is given written down."""

    __slots__ = ("_number", "_recorder", "_reply", "_settled")

    def __init__(self, reply: Reply, number: int, recorder: Recorder) -> None:
        self._reply = reply
        self._number = number
        self._recorder = recorder
        self._settled = False

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        recorder = self._recorder
        recorder.record(ReplyDelivered(recorder.now_ns(), self._number, error_text(outcome), final, self._settled))
        self._settled = self._settled or final
        return self._reply.deliver(outcome, final)


def tapped_scheduler(recorder: Recorder, schedulers: list[Scheduler]) -> type[Scheduler]:
    """The scheduler actor, with what it is told written down; each one made is added to `schedulers`."""

    class TappedScheduler(Scheduler):
        def __init__(self, name: str, core: SchedulerCore, *args: Any, **kwargs: Any) -> None:
            self._tapped = TappedCore(core, recorder)
            super().__init__(name, cast(SchedulerCore, self._tapped), *args, **kwargs)
            schedulers.append(self)

        def submit(self, job: Job, **options: Any) -> None:
            number = request_number(job)
            job.reply = TappedReply(job.reply, number, recorder)
            super().submit(job, **options)
            deadline_ns = NEVER_NS if job.deadline_s is None else round(job.deadline_s * 1e9)
            recorder.record(RequestQueued(recorder.now_ns(), number, self.name, job.rows, job.level, deadline_ns))

        def cancel(self, job: Job) -> None:
            recorder.record(CancelHeard(recorder.now_ns(), request_number(job), job.batch is not None))
            super().cancel(job)

        def stop(self) -> None:
            recorder.record(SchedulerStopped(recorder.now_ns(), self.name))
            super().stop()

        def attach(self, instance: InstanceId, address: InstanceAddress) -> None:
            self._tapped.instances[instance] = address.name
            recorder.record(InstanceAttached(recorder.now_ns(), self.name, address.name))
            super().attach(instance, address)

        def detach(self, instance: InstanceId) -> None:
            name = self._tapped.instances.get(instance)
            if name is not None and instance in self._addresses:
                recorder.record(InstanceDetached(recorder.now_ns(), self.name, name))
            super().detach(instance)

    return TappedScheduler


@contextmanager
def tapped(recorder: Recorder) -> Iterator[list[Scheduler]]:
    """Within the block, models that are loaded get a scheduler that is listened to; the list of these."""
    before = model_module.Scheduler
    schedulers: list[Scheduler] = []
    model_module.Scheduler = tapped_scheduler(recorder, schedulers)
    try:
        yield schedulers
    finally:
        model_module.Scheduler = before
