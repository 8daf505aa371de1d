"""What a timeline shows of a history: lanes, read from its events.

For each model, by name: its queue, then its instances with the batches that they executed, those of one instance that
overlap below each other; under an instance of a stateful model the rows of its batches with the sequences that were
executed there (with the direct strategy, a row is a slot). Then, for each GPU, its streams with the kernels and copies
that ran. Drawing is for `timeline` and `svg`.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, count

from .events import (
    BatchSealed,
    Event,
    ExecutionEnded,
    ExecutionStarted,
    KernelEnded,
    KernelStarted,
    RequestAbandoned,
    RequestAnswered,
    RequestSubmitted,
)
from .history import History


@dataclass(slots=True)
class Bar:
    """Something that took time. `batch` is whose work it was, of so many `rows`, and `reason` why it was closed; 0 and
    "" for the work of none."""

    label: str
    batch: int
    start_ns: int
    end_ns: int
    reason: str = ""
    rows: int = 0


class LaneKind(enum.Enum):
    """What the bars of a lane are."""

    BATCHES = "batches"
    ROWS = "rows"
    STREAM = "stream"


@dataclass(slots=True)
class BarLane:
    """An instance's batches (labelled with their requests), or a stream's operations; in order, side by side. `group`
    is the model, or the GPU."""

    title: str
    bars: list[Bar] = field(default_factory=list)
    group: str = ""
    kind: LaneKind = LaneKind.BATCHES


@dataclass(slots=True)
class QueueLane:
    """How many requests of a model wait to be executed: `depths` from instants on, one an instant, ascending."""

    title: str
    depths: list[tuple[int, int]] = field(default_factory=list)
    group: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """`end_ns` is when the last event happened."""

    lanes: tuple[BarLane | QueueLane, ...]
    end_ns: int


class _Reader:
    """Goes through the events once. Keys sort as the lanes are to stand."""

    def __init__(self) -> None:
        self.queues: dict[str, QueueLane] = {}
        self.instances: dict[tuple[str, int, str, int], BarLane] = {}
        self.rows: dict[tuple[str, int, str, int], BarLane] = {}
        self.streams: dict[tuple[str, int], BarLane] = {}
        self._owners: dict[tuple[str, int], str] = {}
        self._engines: dict[tuple[str, int], set[str]] = {}
        self._places: dict[int, tuple[str, int, str, int]] = {}
        self._waiting: dict[int, str] = {}
        self._sequences: dict[int, int | str] = {}
        self._sealed: dict[int, BatchSealed] = {}
        self._executing: dict[int, list[Bar]] = {}
        self._running: dict[tuple[str, int], Bar] = {}

    def read(self, event: Event) -> None:
        match event:
            case RequestSubmitted():
                self._waiting[event.request] = event.model
                if event.sequence:
                    self._sequences[event.request] = event.sequence
                self._step(event.model, event.at_ns, 1)
            case RequestAnswered() | RequestAbandoned():
                self._leave(event.request, event.at_ns)
            case BatchSealed():
                self._sealed[event.batch] = event
                for request in event.requests:
                    self._leave(request, event.at_ns)
            case ExecutionStarted():
                batch = self._sealed[event.batch]
                lane = self._place(batch)
                label = ",".join(str(request) for request in batch.requests)
                self._executing[event.batch] = [self._bar(lane, label, event), *self._row_bars(batch, event)]
            case ExecutionEnded():
                del self._places[event.batch]
                for bar in self._executing.pop(event.batch):
                    bar.end_ns = event.at_ns
            case KernelStarted():
                key = (event.gpu, event.stream)
                lane = BarLane(self._stream_title(event), group=event.gpu, kind=LaneKind.STREAM)
                lane = self.streams.setdefault(key, lane)
                self._engines.setdefault(key, set()).add(event.engine)
                self._running[key] = self._bar(lane, event.kernel, event)
            case KernelEnded():
                self._running.pop((event.gpu, event.stream)).end_ns = event.at_ns

    def _place(self, batch: BatchSealed) -> BarLane:
        """The instance's lane for a batch: the first that is free."""
        taken = self._places.values()
        keys = ((batch.model, batch.version, batch.instance, place) for place in count())
        key = self._places[batch.batch] = next(key for key in keys if key not in taken)
        title = batch.instance if key[3] == 0 else f"{batch.instance}, beside"
        return self.instances.setdefault(key, BarLane(title, group=batch.model))

    def _row_bars(self, batch: BatchSealed, event: ExecutionStarted) -> Iterator[Bar]:
        """A bar for each row with a request of a sequence."""
        for row, request in enumerate(batch.requests):
            sequence = self._sequences.get(request)
            if sequence is not None:
                key = (batch.model, batch.version, batch.instance, row)
                lane = BarLane(f"{batch.instance} row {row}", group=batch.model, kind=LaneKind.ROWS)
                yield self._bar(self.rows.setdefault(key, lane), str(sequence), event)

    def _stream_title(self, event: KernelStarted) -> str:
        """The stream, and the instance that works on it."""
        batch = self._sealed.get(event.batch)
        if batch is not None:
            self._owners[event.gpu, event.stream] = batch.instance
        return f"{event.gpu} stream {event.stream}" + (f" ({batch.instance})" if batch else "")

    def _bar(self, lane: BarLane, label: str, event: ExecutionStarted | KernelStarted) -> Bar:
        batch = self._sealed.get(event.batch)
        bar = Bar(label, event.batch, event.at_ns, event.at_ns)
        if batch is not None:
            bar.reason, bar.rows = batch.reason, batch.rows
        lane.bars.append(bar)
        return bar

    def _leave(self, request: int, at_ns: int) -> None:
        model = self._waiting.pop(request, None)
        if model is not None:
            self._step(model, at_ns, -1)

    def _step(self, model: str, at_ns: int, change: int) -> None:
        depths = self.queues.setdefault(model, QueueLane(f"{model} queue", group=model)).depths
        before = depths[-1][1] if depths else 0
        if depths and depths[-1][0] == at_ns:
            depths[-1] = (at_ns, before + change)
        else:
            depths.append((at_ns, before + change))

    def end(self, end_ns: int) -> None:
        """What still runs ends with the history. Streams of an instance that has several are told apart by what they
        are for."""
        owners = Counter(self._owners.values())
        for key, owner in self._owners.items():
            if owners[owner] > 1 and len(self._engines[key]) == 1:
                self.streams[key].title = f"{key[0]} {owner} {next(iter(self._engines[key]))}"
        for bar in (*chain.from_iterable(self._executing.values()), *self._running.values()):
            bar.end_ns = end_ns


def picture(history: History) -> Picture:
    """What a timeline of this history shows."""
    reader = _Reader()
    for event in history.events:
        reader.read(event)
    end_ns = history.events[-1].at_ns if history.events else 0
    reader.end(end_ns)
    models = sorted({*reader.queues, *(model for model, *_ in reader.instances)})
    lanes: list[BarLane | QueueLane] = []
    for model in models:
        if model in reader.queues:
            lanes.append(reader.queues[model])
        for key in sorted(key for key in reader.instances if key[0] == model):
            lanes.append(reader.instances[key])
            lanes += [reader.rows[row] for row in sorted(reader.rows) if (*row[:3], 0) == key]
    lanes += [reader.streams[key] for key in sorted(reader.streams)]
    return Picture(tuple(lanes), end_ns)
