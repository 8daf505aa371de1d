"""Measures how long a model's batches take, on a server inside of this process, which has no sockets.

Rules:
 1. A model without sequences is measured without its batching: a request of so many rows is a batch of so many rows.
    A stateful one keeps its scheduler, and as many sequences as there are to be rows go on at once.
 2. Each point is measured until the standard error of the mean is within its bound, for at least `LEAST_BATCHES`, and
    no longer than it may take, unless there is nothing by then. The first `_WARM_UP` batches of an instance do not
    count, nor those of another size.
 3. Instances side by side are all kept busy, each by a client of its own.
 4. Processor seconds are those of all threads and child processes but the event loop's, which asks; a batch on the
    event loop takes one core.
 5. Machines are faster at one time than at another, by the work of others and by temperature. So the points that have
    as many instances are measured by turns, in `_ROUNDS` rounds of which each point gets a part of its time, at least
    `_LEAST_ROUNDS` of them: so that each has seen the same times, and the error of its mean tells of them.
 6. A batch's time does not grow evenly with its rows: seven may take as long as eight, and no longer than four did. So
    all small sizes are measured, and beyond them powers of two and those halfway; what instances side by side take
    more is measured of powers of two.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import trio

from ..actors import InferenceServer
from ..engine.clock import SystemClock
from ..engine.config.json_text import config_json
from ..engine.config.model import ModelConfig
from ..engine.errors import InvalidArgumentError, TriremeError
from ..engine.instances.executing import SHORT_NS
from ..engine.options import ControlMode, ServerOptions
from ..engine.profiles import ExecutorKind, ServicePoint, StartTimes, TimeDistribution
from ..engine.request import InferenceRequest
from .measured_executors import BatchSink, MeasuredBatch, MeasuringExecutors
from .progress import Progress
from .sample_inputs import SampleInputs

LEAST_BATCHES = 40
_SMALL = range(1, 9)
_WARM_UP = 48
"""An instance proves itself for 32 batches (`engine.instances.executing`)."""
_LOOK_EVERY = 20
_ROUNDS, _LEAST_ROUNDS = 6, 3
_PATIENCE = 20
"""A point of which there is nothing yet when its time is over gets so many times as much."""
_SEQUENCE = 64
"""Requests of a sequence."""
_WAITS_ONLY = 0.03
"""Cores; what uses less than that while it executes is taken to wait."""


@dataclass(frozen=True, slots=True)
class MeasuringPlan:
    """What is to be measured, and how well.

    Attributes:
        sizes: rows of batches; empty for powers of two up to the largest, and the preferred ones.
        side_by_side: numbers of instances; empty for one, and as many as the configuration has.
        error: bound of the standard error of a mean, as a part of it.
        most_s: seconds that one point may take.
    """

    sizes: tuple[int, ...] = ()
    side_by_side: tuple[int, ...] = ()
    error: float = 0.01
    most_s: float = 10.0


@dataclass(slots=True)
class MeasuredModel:
    """What came out."""

    config: ModelConfig
    version: int
    executor: ExecutorKind
    service: list[ServicePoint] = field(default_factory=list)
    start: TimeDistribution = field(default_factory=lambda: TimeDistribution.constant(0.0))
    notice: TimeDistribution = field(default_factory=lambda: TimeDistribution.constant(0.0))
    starting: StartTimes = field(default_factory=StartTimes)


async def measure_model(
    name: str,
    options: ServerOptions,
    plan: MeasuringPlan,
    make_inputs: Callable[[ModelConfig], SampleInputs],
    progress: Progress,
) -> MeasuredModel:
    """Measure one model.

    Args:
        options: of the server; the control mode is replaced.

    Raises:
        TriremeError: the model cannot be loaded, or fails; or a size that is asked for is none of its sizes.
    """
    clock = SystemClock(trio.lowlevel.current_clock().current_time)
    sink = BatchSink()
    server = InferenceServer(
        _explicit(options), clock=clock, executors_factory=partial(MeasuringExecutors, sink, clock)
    )
    async with server:
        began_s = clock.now_s()
        await server.load_model(name, {})
        loaded_s = clock.now_s() - began_s
        described = server.describe(name)
        config: ModelConfig = described.config
        if config.has_ensemble_scheduling:
            raise InvalidArgumentError(f"'{name}' is an ensemble: profile its members")
        inputs = make_inputs(config)
        measured = MeasuredModel(config, described.version, ExecutorKind.THREAD)
        instance_s = sum(sink.made_s) / max(1, len(sink.made_s))
        measured.starting = StartTimes(loaded_s, instance_s)
        points = list(measured_points(config, plan))
        aside: list[MeasuredBatch] = []
        ids = itertools.count(1)  # of sequences
        for count in dict.fromkeys(count for count, _ in points):
            await server.load_model(name, {"config": measured_config(config, count)})
            sizes = [rows for its, rows in points if its == count]
            if count > 1 and measured.executor is ExecutorKind.PROVING:  # not those executed on the event loop
                short = {point.rows for point in measured.service if point.time.mean_s * 1e9 < SHORT_NS}
                sizes = [rows for rows in sizes if rows not in short]
            turns = [_PointTurns(server, sink, config, inputs, rows, count, plan, ids) for rows in sizes]
            for round_number in range(_ROUNDS):
                for turn in turns:
                    done = (points.index((count, turn.rows)) + round_number / _ROUNDS) / len(points)
                    progress(f"{name}: {turn.rows} rows, {count} side by side", done)
                    await turn.measure(round_number)
            for turn in turns:
                measured.service.append(turn.point())
                measured.executor = next(reversed(sink.kinds.values()))
                aside += [batch for batch in turn.batches if batch.aside]
        measured.service.sort(key=lambda point: (point.rows, point.side_by_side))
        if aside:
            measured.start = TimeDistribution.of([batch.start_s for batch in aside])
            measured.notice = TimeDistribution.of([batch.notice_s for batch in aside])
        progress(name, 1.0)
    return measured


def _explicit(options: ServerOptions) -> ServerOptions:
    return replace(options, model_control_mode=ControlMode.EXPLICIT, startup_models=())


def measured_points(config: ModelConfig, plan: MeasuringPlan) -> Iterator[tuple[int, int]]:
    """Instances side by side, and rows (rule 6).

    Raises:
        InvalidArgumentError: a size is none of the model's, or no instance is to execute.
    """
    largest = max(1, config.max_batch_size)
    sizes = plan.sizes or usual_sizes(config)
    wrong = [size for size in sizes if not 1 <= size <= largest]
    if wrong:
        raise InvalidArgumentError(f"batches of '{config.name}' have 1 to {largest} rows, not {wrong[0]}")
    present = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
    doubled = {size for size in sizes if plan.sizes or size & (size - 1) == 0 or size == largest}
    for count in sorted({1, *(plan.side_by_side or (present,))}):
        if count < 1:
            raise InvalidArgumentError(f"at least one instance executes, not {count}")
        for rows in sorted(set(sizes) if count == 1 else doubled):
            yield count, rows


def usual_sizes(config: ModelConfig) -> tuple[int, ...]:
    """Rows of batches that are measured if nothing else is said (rule 6)."""
    largest = max(1, config.max_batch_size)
    powers = [1 << power for power in range(largest.bit_length())]
    halfway = [power + power // 2 for power in powers]
    sizes = {largest, *(size for size in (*_SMALL, *powers, *halfway) if size <= largest)}
    if config.dynamic_batching is not None:
        sizes.update(config.dynamic_batching.preferred_batch_sizes)
    return tuple(sorted(sizes))


def measured_config(config: ModelConfig, instances: int) -> str:
    """The configuration to measure with, as JSON: so many instances in one group; each request is a batch, unless it
    belongs to a sequence (rule 1)."""
    document: dict[str, Any] = json.loads(config_json(config))
    if not config.has_sequence_batching:
        document.pop("dynamic_batching", None)
    group = next(
        (each for each in document["instance_group"] if not each.get("passive")), document["instance_group"][0]
    )
    document["instance_group"] = [{**group, "count": instances, "gpus": group.get("gpus", [])[:1]}]
    document["response_cache"] = {"enable": False}
    return json.dumps(document)


class _PointTurns:
    """Measures one point in rounds (rule 5).

    Attributes:
        batches: that count.
    """

    def __init__(
        self,
        server: InferenceServer,
        sink: BatchSink,
        config: ModelConfig,
        inputs: SampleInputs,
        rows: int,
        count: int,
        plan: MeasuringPlan,
        ids: Iterator[int],
    ) -> None:
        self.rows = rows
        self.batches: list[MeasuredBatch] = []
        self._server, self._sink, self._config, self._inputs = server, sink, config, inputs
        self._count, self._plan, self._ids = count, plan, ids
        self._processors = _Processors()
        self._seen = 0

    def _exact(self) -> bool:
        enough = len(self.batches) >= LEAST_BATCHES
        return enough and TimeDistribution.of([each.took_s for each in self.batches]).relative_error <= self._plan.error

    async def measure(self, round_number: int) -> None:
        """One round; nothing if the point is known well enough."""
        if round_number >= _LEAST_ROUNDS and self._exact():
            return
        batches, processors, count = self.batches, self._processors, self._count
        done, some = trio.Event(), trio.Event()
        slice_s = self._plan.most_s / _ROUNDS
        warm_by_s = trio.current_time() + slice_s / 2
        least = LEAST_BATCHES * (round_number + 1)

        def take(batch: MeasuredBatch) -> None:
            self._seen += 1
            if self._seen <= _WARM_UP and trio.current_time() < warm_by_s:
                return
            processors.note(batch.took_s)
            if batch.rows == self.rows and (count == 1 or batch.executing >= max(2, count - 1)):
                batches.append(batch)
                some.set()
                if len(batches) >= least and len(batches) % _LOOK_EVERY == 0 and self._exact():
                    done.set()

        self._sink.take = take
        failures: list[TriremeError] = []
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                steps = _requests(self._config, self._inputs, self.rows, self._ids, done)
                nursery.start_soon(_keep_asking, self._server, steps, failures, done)
            with trio.move_on_after(slice_s):
                await done.wait()
            if not failures and not batches:
                with trio.move_on_after(_PATIENCE * self._plan.most_s):
                    await some.wait()
            self._sink.take = lambda _batch: None
            processors.end()
            done.set()
        if failures:
            raise failures[0]

    def point(self) -> ServicePoint:
        """What was measured.

        Raises:
            InvalidArgumentError: nothing was.
        """
        if not self.batches:
            raise InvalidArgumentError(f"no batch of {self.rows} rows of '{self._config.name}' was executed")
        return _point(self.rows, self._count, self.batches, self._processors)


def _requests(
    config: ModelConfig, inputs: SampleInputs, rows: int, ids: Iterator[int], done: trio.Event
) -> Iterator[list[InferenceRequest]]:
    """What one client asks, step by step, until it is done: a request of so many rows; or one of each of so many
    sequences, which it ends."""
    if not config.has_sequence_batching:
        while not done.is_set():
            yield [InferenceRequest(config.name, inputs=list(inputs.tensors(rows)))]
        return
    while not done.is_set():
        sequences = [next(ids) for _ in range(rows)]
        for position in range(_SEQUENCE):
            ends = position == _SEQUENCE - 1 or done.is_set()
            yield [
                InferenceRequest(
                    config.name,
                    inputs=list(inputs.tensors(1)),
                    correlation_id=sequence,
                    sequence_start=position == 0,
                    sequence_end=ends,
                )
                for sequence in sequences
            ]
            if ends:
                break


async def _keep_asking(
    server: InferenceServer, steps: Iterator[list[InferenceRequest]], failures: list[TriremeError], done: trio.Event
) -> None:
    """One step after the other; until a request fails, which is told."""
    try:
        for step in steps:
            with server.turn:  # what is asked together comes to the scheduler together
                replies = [server.admit_nowait(request) for request in step]
            for index, reply in enumerate(replies):
                reply = reply or await server.admit(step[index])
                async for _ in reply.responses():
                    pass
            await trio.lowlevel.checkpoint()
    except TriremeError as error:
        failures.append(error)
        done.set()


def _point(rows: int, count: int, batches: Sequence[MeasuredBatch], processors: _Processors) -> ServicePoint:
    aside = [batch for batch in batches if batch.aside]
    cores = processors.cores if 2 * len(aside) > len(batches) else 1.0
    batches = aside if 2 * len(aside) > len(batches) else [batch for batch in batches if not batch.aside]
    number = len(batches)
    took = TimeDistribution.of([batch.took_s for batch in batches])
    return ServicePoint(
        rows=rows,
        side_by_side=count,
        cores=0.0 if cores < _WAITS_ONLY else round(cores, 3),
        time=took,
        copy_in_s=sum(batch.marks[1] - batch.marks[0] for batch in batches) / number / 1e9,
        copy_out_s=sum(batch.marks[3] - batch.marks[2] for batch in batches) / number / 1e9,
    )


class _Processors:
    """What all but the event loop used of the processors (rule 4), while batches were executed."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._before_s = self._used_s = self._executed_s = 0.0
        self._running = False

    def note(self, took_s: float) -> None:
        """A batch has been executed; the first one only begins the measurement."""
        if self._running:
            self._executed_s += took_s
        else:
            self._running, self._before_s = True, self._used()

    def end(self) -> None:
        """Of a round."""
        if self._running:
            self._used_s += self._used() - self._before_s
            self._running = False

    @property
    def cores(self) -> float:
        """Processor seconds a second of one batch's execution."""
        return self._used_s / self._executed_s if self._executed_s > 0 else 1.0

    def _used(self) -> float:
        children = sum(_cpu_s(child) for child in self._process.children(recursive=True))
        return time.process_time() - time.thread_time() + children


def _cpu_s(process: psutil.Process) -> float:
    """Processor seconds of all its threads so far; 0 if it has ended."""
    try:
        files = list(Path(f"/proc/{process.pid}/task").glob("*/schedstat"))
        if files:
            return sum(int(file.read_text().split()[0]) for file in files) / 1e9
        times = process.cpu_times()
    except (OSError, psutil.Error):
        return 0.0
    return times.user + times.system
