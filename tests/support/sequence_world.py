"""A sequence batcher with its surroundings: requests, instances, a clock that stands until it is moved."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from trireme.engine.config.model import ModelConfig, ModelInput
from trireme.engine.config.sequence import ControlKind, SequenceBatching, SequenceControl
from trireme.engine.datatypes import BOOL, FP32, INT32, UINT64
from trireme.engine.errors import TriremeError
from trireme.engine.job import Job, Outcome, SealReason
from trireme.engine.request import InferenceRequest
from trireme.engine.scheduling.core import Await, Dispatch, Reject, Wait, WaitUntil
from trireme.engine.scheduling.sequence.batcher import SequenceBatcher
from trireme.engine.scheduling.sequence.slot import Dismiss, Slot, SlotMessage
from trireme.engine.scheduling.sequence.slot_core import Failed, SlotCore, SlotReport
from trireme.engine.scheduling.sequence.state import StateLayout
from trireme.engine.scheduling.sequence.strategies import NullJob, SequencePlan
from trireme.engine.tensor import Tensor

CONTROLS = (
    SequenceControl("START", ControlKind.START, INT32, 0, 1),
    SequenceControl("END", ControlKind.END, FP32, 0, 2),
    SequenceControl("READY", ControlKind.READY, BOOL, False, True),
    SequenceControl("CORRID", ControlKind.CORRID, UINT64),
)


class NoReply:
    """Cores never answer jobs."""

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        raise AssertionError("a scheduler core answered a job")


def sequence_job(
    key: int | str = 0,
    flags: str = "",
    name: str = "",
    *,
    rows: int = 1,
    timeout_us: int = 0,
    shape: tuple[int, ...] = (1,),
) -> Job:
    """A job for model ``m`` with one input ``IN``.

    Args:
        flags: "s" for START, "e" for END.
        name: the request's id.
        shape: of the input, without the batch dimension.
    """
    request = InferenceRequest(
        "m",
        id=name,
        timeout_us=timeout_us,
        correlation_id=key,
        sequence_start="s" in flags,
        sequence_end="e" in flags,
    )
    tensor = Tensor("IN", FP32, (rows, *shape), array=np.zeros((rows, *shape), np.float32))
    return Job(request, {"IN": tensor}, rows, "m", 1, NoReply())


def make_plan(
    batching: SequenceBatching,
    max_batch_size: int = 4,
    states: StateLayout | None = None,
    dims: tuple[int, ...] = (-1,),
) -> SequencePlan:
    """A plan for a model ``m`` with one input of these dims; `CONTROLS` if `batching` names none."""
    batching = replace(batching, controls=batching.controls or CONTROLS)
    config = ModelConfig("m", max_batch_size=max_batch_size, input=(ModelInput("IN", FP32, dims),))
    return SequencePlan.of(config, batching, states)


def value(job: Job, name: str) -> object:
    """The one element of an input."""
    return job.inputs[name].array.ravel()[0]


@dataclass(frozen=True)
class Executed:
    """A batch: when it started, where, and why it was sealed. A null job has the name "-"."""

    at_s: float
    instance: int
    jobs: tuple[Job, ...]
    reason: SealReason

    @property
    def names(self) -> list[str]:
        return ["-" if isinstance(job, NullJob) else job.id for job in self.jobs]


class Slots:
    """The slots of a batcher, and the mail between them: what actors do."""

    def __init__(self, core: SequenceBatcher) -> None:
        self._core = core
        self._mail: deque[tuple[SlotCore, SlotMessage]] = deque()
        self.alive: dict[SlotCore, None] = {}
        self._places: dict[SlotCore, Slot] = {}
        core.use_slots(self._start)

    def _start(self, slot: Slot, core: SlotCore) -> Callable[[SlotMessage], None]:
        self.alive[core] = None
        self._places[core] = slot
        return lambda message: self._mail.append((core, message))

    @property
    def idle_s(self) -> float:
        """When the next of them has something to say."""
        return min([core.idle_s for core in self.alive], default=math.inf)

    def die(self, number: int, now: float) -> None:
        """A slot dies, and the mail to it is lost."""
        core = list(self.alive)[number % len(self.alive)]
        del self.alive[core]
        self._mail = deque([(to, message) for to, message in self._mail if to is not core])
        self._core.hear(Failed(self._places[core]), now)

    def deliver(self, now: float) -> bool:
        """Deliver what is there, both ways; whether there was anything."""
        touched = {core: None for core in self.alive if core.idle_s <= now}
        reports: list[SlotReport | None] = []
        while self._mail:
            core, message = self._mail.popleft()
            if isinstance(message, Dismiss):
                self.alive.pop(core, None)
                touched.pop(core, None)
            else:
                touched[core] = None
                reports.append(core.receive(message, now))
        for core in touched:
            while (report := core.next_report(now)) is not None:
                reports.append(report)
        for report in filter(None, reports):
            self._core.hear(report, now)
        return bool(touched or reports)


@dataclass
class World:
    """One batcher and its instances, numbered from 0.

    Attributes:
        batches: all that were executed, in order.
        running: the batches of each instance that are not over.
        rejected: id and error of each job that left the queue unexecuted, in order.
    """

    core: SequenceBatcher
    slots: Slots
    now: float = 0.0
    batches: list[Executed] = field(default_factory=list)
    running: dict[int, list[Executed]] = field(default_factory=dict)
    rejected: list[tuple[str, TriremeError]] = field(default_factory=list)

    @classmethod
    def of(cls, plan: SequencePlan, instances: int = 1) -> World:
        """A world in which so many instances are idle."""
        core = SequenceBatcher(plan)
        world = cls(core, Slots(core))
        for instance in range(instances):
            world.core.instance_idle(instance)
        return world

    def ask(self, *arguments: object, **options: object) -> Job:
        """Make a job (see `sequence_job`) and enqueue it."""
        job = sequence_job(*arguments, **options)  # pyright: ignore[reportArgumentType]
        self.core.enqueue(job, self.now)
        return job

    def act(self) -> Wait | WaitUntil:
        """Do what the core says until it has nothing more to say."""
        while True:
            action = self.core.next_action(self.now)
            if isinstance(action, Await):
                assert self.slots.deliver(self.now), "what is awaited must come"
            elif isinstance(action, Dispatch):
                batch = Executed(self.now, action.instance, tuple(action.jobs), action.reason)
                self.batches.append(batch)
                self.running.setdefault(action.instance, []).append(batch)
            elif isinstance(action, Reject):
                self.rejected.append((action.job.id, action.error))
            elif not self.slots.deliver(self.now):
                assert self.core.next_action(self.now) == action, "asking again must change nothing"
                if isinstance(action, WaitUntil):
                    assert action.when_s > self.now, "a core must not ask to be woken at once"
                return action

    def settle(self, instance: int = 0, rescheduled: Collection[Job] = (), idle: bool = True) -> None:
        """The oldest running batch of an instance is over."""
        batch = self.running[instance].pop(0)
        self.core.settle(batch.jobs, self.now, rescheduled)
        if idle:
            self.core.instance_idle(instance)

    def die(self, instance: int) -> None:
        """An instance dies: what it executed is answered, and it is gone."""
        for batch in self.running.pop(instance, []):
            self.core.settle(batch.jobs, self.now)
        self.core.instance_gone(instance)

    def run(self, batch_s: float = 0.0) -> None:
        """Let instances execute until nothing more happens, each batch taking so long; idle times do not pass."""
        self.act()
        while any(self.running.values()):
            self.now += batch_s
            for instance in sorted(self.running):
                if self.running[instance]:
                    self.settle(instance)
            self.act()

    def wait(self, seconds: float) -> None:
        """Let time pass, acting when the core wants to be woken."""
        until_s = self.now + seconds
        while True:
            rest = self.act()
            next_s = min(self.slots.idle_s, rest.when_s if isinstance(rest, WaitUntil) else math.inf)
            if next_s > until_s:
                break
            self.now = next_s
        self.now = until_s
        self.act()

    @property
    def names(self) -> list[list[str]]:
        """The names of the jobs of each batch."""
        return [batch.names for batch in self.batches]

    @property
    def rejections(self) -> list[str]:
        return [name for name, _ in self.rejected]


def real(jobs: Iterable[Job]) -> list[Job]:
    """Without the null jobs."""
    return [job for job in jobs if not isinstance(job, NullJob)]
