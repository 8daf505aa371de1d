"""The world as its history tells it: what waits in which order, and what instances are at.

The order of a queue is kept here in the plainest way that could be right, as the specification says it
(docs/reference/scheduling.md), so that the schedulers' own queues can be held to it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ...engine.config.model import DynamicBatching, ModelConfig, TimeoutAction
from ...engine.config.sequence import SequenceBatching, sequence_batching
from ..events import (
    DONE,
    NEVER_NS,
    AnswerFound,
    BatchSealed,
    CancelHeard,
    ChangeAsked,
    ChangeDone,
    ExecutionEnded,
    InstanceAttached,
    InstanceDetached,
    ModelStateChanged,
    RequestAnswered,
    RequestDropped,
    RequestIsolated,
    RequestQueued,
    RequestRejected,
    RequestRescheduled,
    RequestSubmitted,
    SchedulerStopped,
)
from ..generations import model_of
from ..history import Handlers
from ..plan import RESIZED_TO


@dataclass(slots=True)
class Waiting:
    """A queued request. `cancelled`: its scheduler was told."""

    number: int
    rows: int
    level: int
    queued_ns: int
    deadline_ns: int
    cancelled: bool = False


@dataclass(slots=True)
class Level:
    """A priority level: those who came in order, then those whose time was over and who were let wait."""

    fresh: dict[int, Waiting] = field(default_factory=dict)
    delayed: dict[int, Waiting] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.fresh) + len(self.delayed)


class Line:
    """What waits for a model."""

    def __init__(self, batching: DynamicBatching | None) -> None:
        self._batching = batching
        self.levels = [Level() for _ in range((batching.priority_levels if batching is not None else 0) + 1)]
        self.waiting: dict[int, Waiting] = {}  # in order of arrival
        self._arrivals = 0
        self._delays: list[tuple[int, int, int]] = []  # deadline, number of arrival, request
        self._rejections: list[tuple[int, int, int]] = []

    def join(self, event: RequestQueued) -> None:
        deadline_ns = NEVER_NS if self._batching is None else event.deadline_ns  # of a sequence: in the backlog only
        request = Waiting(event.request, event.rows, event.level, event.at_ns, deadline_ns)
        self.waiting[request.number] = request
        self.levels[request.level].fresh[request.number] = request
        if deadline_ns != NEVER_NS:
            heap = self._delays if self.waits_on(request.level) else self._rejections
            self._arrivals += 1
            heapq.heappush(heap, (deadline_ns, self._arrivals, request.number))

    def waits_on(self, level: int) -> bool:
        """Whether requests of this level stay when their time is over."""
        return self._batching is not None and self._batching.policy(level).timeout_action is TimeoutAction.DELAY

    def leave(self, number: int) -> None:
        request = self.waiting.pop(number, None)
        if request is not None:
            level = self.levels[request.level]
            if level.fresh.pop(number, None) is None:
                del level.delayed[number]

    def ordered(self, now_ns: int) -> Iterator[Waiting]:
        """All that wait, in the order in which they are to be executed."""
        self._delay(now_ns)
        for level in self.levels:
            yield from level.fresh.values()
            yield from level.delayed.values()

    def _delay(self, now_ns: int) -> None:
        """Whose time is over, and may wait on, goes behind the others of its level."""
        heap = self._delays
        while heap and heap[0][0] <= now_ns:
            number = heapq.heappop(heap)[2]
            request = self.waiting.get(number)
            if request is not None:
                level = self.levels[request.level]
                level.delayed[number] = level.fresh.pop(number)
                request.deadline_ns = NEVER_NS

    def overdue(self, now_ns: int) -> int:
        """A request that should have been rejected by now; 0 for none."""
        heap = self._rejections
        while heap and heap[0][2] not in self.waiting:
            heapq.heappop(heap)
        return heap[0][2] if heap and heap[0][0] <= now_ns else 0

    @property
    def rejects(self) -> bool:
        """Whether requests came that are to be rejected at some time."""
        return bool(self._rejections)

    @property
    def oldest_ns(self) -> int:
        """When the request was queued that has waited longest; there must be one."""
        return next(iter(self.waiting.values())).queued_ns


@dataclass(slots=True)
class ModelView:
    """A model and its parts; if it was loaded again, one of its generations.

    Attributes:
        name: in the history.
        sequences: what the configuration says of them.
        instances: by name, the batches that each attached instance has.
        credits: so many each of them may have.
        idle: how many of them have none.
        idle_since_ns: when it was last that an instance became idle. Its scheduler may hear of it a little later, at
            the same instant.
        lost: instances whose last batch did not end well.
        served: it was ready once.
        count: instances that it should have; -1 while a change of that is not over, or has failed, or leaves some for
            as long as they have sequences.
        isolated: requests that were in a batch whose process ended, and are executed again.
    """

    name: str
    config: ModelConfig
    sequences: SequenceBatching | None
    line: Line
    instances: dict[str, set[int]] = field(default_factory=dict)
    credits: int = 1
    idle: int = 0
    idle_since_ns: int = 0
    stopping: bool = False
    ready: bool = False
    lost: set[str] = field(default_factory=set)
    served: bool = False
    count: int = 0
    isolated: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, name: str, config: ModelConfig, at_once: int) -> ModelView:
        """A model that is not there yet."""
        count = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
        return cls(name, config, sequence_batching(config), Line(config.dynamic_batching), credits=at_once, count=count)

    def number_of(self, instance: str) -> int:
        """Which of the model's instances this is, counted from 0."""
        (group,) = self.config.instance_group
        return int(instance.removeprefix(f"{group.name}_").partition("~")[0].rstrip("'"))

    def device_of(self, instance: str) -> int:
        """The number of the device that an instance is on; 0 where there is none."""
        (group,) = self.config.instance_group
        return group.gpus[self.number_of(instance) // group.count] if group.gpus else 0


class WorldState:
    """All models by name, kept up to date by a history's events.

    Args:
        at_once: by model, how many batches each instance may have at once; 1 where it is not said.

        held: schedulers hold requests back, which is for the decision oracle to judge.

    Attributes:
        serving: by model, the generation that was ready last: the one that answers, if it is ready still.
        asked: by number, what clients and ensembles asked for that was neither queued nor refused yet.
        touched: models that something happened to at this instant.
        changed: those of them that entered another state, or won or lost an instance.
    """

    def __init__(
        self, configs: Iterable[ModelConfig], at_once: Mapping[str, int] = MappingProxyType({}), held: bool = False
    ) -> None:
        self._at_once = at_once
        self.held = held
        self.models = {each.name: self._view(each.name, each) for each in configs}
        self.serving = dict(self.models)
        self.asked: dict[int, RequestSubmitted] = {}
        self.touched: dict[str, ModelView] = {}
        self.changed: dict[str, ModelView] = {}
        self.running: dict[int, BatchSealed] = {}
        self._home: dict[int, ModelView] = {}  # by request, while it waits
        self.changing: Counter[str] = Counter()  # by model, changes that are not over
        self._counts: dict[str, int] = {}  # by model that was resized, instances that its files ask for
        self._unclear: set[str] = set()  # whose changes that are not over began before one that failed

    def handlers(self) -> Handlers:
        return {
            RequestSubmitted: self._submitted,
            RequestQueued: self._queued,
            AnswerFound: self._found,
            RequestAnswered: self._answered,
            CancelHeard: self._cancelled,
            RequestRejected: self._left,
            RequestDropped: self._left,
            RequestRescheduled: self._rescheduled,
            RequestIsolated: self._isolate,
            BatchSealed: self._sealed,
            ExecutionEnded: self._ended,
            InstanceAttached: self._attached,
            InstanceDetached: self._detached,
            SchedulerStopped: self._stopped,
            ModelStateChanged: self._changed,
            ChangeAsked: self._change_asked,
            ChangeDone: self._change_done,
        }

    def _view(self, name: str, config: ModelConfig) -> ModelView:
        return ModelView.of(name, config, self._at_once.get(config.name, 1))

    def home(self, request: int) -> ModelView | None:
        """The model in whose queue a request stands."""
        return self._home.get(request)

    def instant_over(self) -> None:
        self.touched.clear()
        self.changed.clear()

    def _touch(self, name: str) -> ModelView:
        view = self.touched[name] = self.models[name]
        return view

    def _change(self, name: str) -> ModelView:
        view = self.changed[name] = self._touch(name)
        return view

    def _submitted(self, event: RequestSubmitted) -> None:
        self.asked[event.request] = event

    def _answered(self, event: RequestAnswered) -> None:
        self.asked.pop(event.request, None)

    def _queued(self, event: RequestQueued) -> None:
        self.asked.pop(event.request, None)
        view = self._touch(event.model)
        if not view.config.has_ensemble_scheduling:  # its requests do not wait: their steps do
            self._home[event.request] = view
            view.line.join(event)

    def _found(self, event: AnswerFound) -> None:
        self.asked.pop(event.request, None)

    def _cancelled(self, event: CancelHeard) -> None:
        view = self._home.get(event.request)
        if view is not None:
            view.line.waiting[event.request].cancelled = True
            if not view.config.has_sequence_batching:  # out of the queue at once; its rejection follows
                self._leave(event.request)

    def _rescheduled(self, event: RequestRescheduled) -> None:
        view = self._home[event.request] = self._touch(event.model)
        view.line.join(RequestQueued(event.at_ns, event.request, event.model, 1, 0, NEVER_NS))

    def _isolate(self, event: RequestIsolated) -> None:
        self._touch(event.model).isolated.add(event.request)

    def _left(self, event: RequestRejected | RequestDropped) -> None:
        self._leave(event.request)

    def _leave(self, request: int) -> None:
        view = self._home.pop(request, None)
        if view is not None:
            self.touched[view.name] = view
            view.line.leave(request)

    def _sealed(self, event: BatchSealed) -> None:
        view = self._touch(event.model)
        for request in event.requests:
            self._home.pop(request, None)
            view.line.leave(request)
        self.running[event.batch] = event
        held = view.instances.setdefault(event.instance, set())
        held.add(event.batch)
        view.idle -= len(held) == 1

    def _ended(self, event: ExecutionEnded) -> None:
        batch = self.running.pop(event.batch)
        view = self._touch(batch.model)
        held = view.instances.get(batch.instance)
        if event.ending == DONE:
            if held is not None and event.batch in held:  # or it has gone, and ends what it still had in flight
                held.remove(event.batch)
                if not held:
                    view.idle += 1
                    view.idle_since_ns = event.at_ns
        else:
            view.lost.add(batch.instance)

    def _attached(self, event: InstanceAttached) -> None:
        view = self._change(event.model)
        view.instances[event.instance] = set()
        view.idle += 1
        view.idle_since_ns = event.at_ns
        view.lost.discard(event.instance)

    def _detached(self, event: InstanceDetached) -> None:
        view = self._change(event.model)
        held = view.instances.pop(event.instance)
        view.idle -= not held

    def _change_asked(self, event: ChangeAsked) -> None:
        self.changing[event.model] += 1
        if event.change.startswith(RESIZED_TO):
            self._counts[event.model] = int(event.change.removeprefix(RESIZED_TO))
        if event.model in self._counts:  # of each generation: of one that is being loaded, it may be carried out later
            for view in self.models.values():
                if model_of(view.name) == event.model:
                    view.count = -1

    def _change_done(self, event: ChangeDone) -> None:
        """A change that overlapped with one that failed may have read the files before they asked for what they do."""
        self.changing[event.model] -= 1
        view = self.serving[event.model]
        if event.error:
            self._unclear.add(event.model)
        if self.changing[event.model]:
            return
        if event.model in self._counts and event.model not in self._unclear and view.sequences is None:
            view.count = self._counts[event.model]
        self._unclear.discard(event.model)

    def _stopped(self, event: SchedulerStopped) -> None:
        self._touch(event.model).stopping = True

    def _changed(self, event: ModelStateChanged) -> None:
        model = model_of(event.model)
        if model not in self.serving:
            return
        if event.model not in self.models:
            view = self.models[event.model] = self._view(event.model, self.serving[model].config)
            view.count = -1 if model in self._counts else view.count
        view = self._change(event.model)
        view.ready = event.state == "READY"
        if view.ready:
            view.served = True
            view.stopping = False  # who stopped was of an earlier attempt at the same load
            self.serving[model] = view
