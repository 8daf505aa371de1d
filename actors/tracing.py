"""The traces of a server: the tracer that front ends ask, and what takes away what it has collected: the writer of
trace files, or the exporter of spans to an OpenTelemetry collector, by OTLP over HTTP.

The library's own batch processor is not used: it has a thread of its own that nothing here could supervise, wait for in
a shutdown, or see. Its exporter is, from a thread that is lent to it for each export.

Rules:
 1. No request waits for a disk or a collector. Both are reached from threads; what comes faster than they take it is
    dropped, counted and logged, and so is what they fail to take.
 2. An export begins when a full batch waits, or when the schedule's time is over. There is one export at a time.
 3. An export that fails (after what the library retries) is lost.
 4. At the end what waits is exported, until that fails, `CLOSE_LIMIT_S` is over, or the time of the whole shutdown.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

import trio

from ..engine.clock import Clock
from ..engine.plugins import import_package
from ..engine.tracing import TraceConfig, TraceMode, Tracer
from ..engine.tracing.files import TraceFiles, TraceWrite, write_traces
from ..engine.tracing.record import Identities, Trace
from ..engine.tracing.settings import ExportOptions, TraceSetting

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

logger = logging.getLogger("trireme.tracing")

MAX_UNWRITTEN = 32_768
"""Traces on their way to files from which on more are dropped."""

CLOSE_LIMIT_S = 5.0
"""However long the server may take to stop: a collector that is not there should not hold it up for so long."""


class TraceOutput(ABC):
    """An `engine.tracing.tracer.TraceSink` with a task.

    Args:
        what: it takes, for people.

    Attributes:
        taken, failed, dropped: traces or spans that were written or exported, that could not be, and that were dropped
            because too many were waiting.
    """

    def __init__(self, what: str) -> None:
        self.taken = self.failed = self.dropped = 0
        self._what = what
        self._unreported_drops = 0
        self._stopped = trio.Event()

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How many are on their way."""

    def _drop(self, count: int, why: str, where: str) -> None:
        if not self._unreported_drops:
            logger.warning(why, where)
        self.dropped += count
        self._unreported_drops += count

    def _report_drops(self, bound: int) -> None:
        """Say how many were dropped, once half of what may wait is free."""
        if self._unreported_drops and self.waiting <= bound // 2:
            logger.warning("%d %s were dropped", self._unreported_drops, self._what)
            self._unreported_drops = 0


class TraceWriter(TraceOutput):
    """Makes files.

    Args:
        path: of the file, and the beginning of the names of those with an index.
        max_unwritten: see `MAX_UNWRITTEN`.
    """

    def __init__(self, path: str, max_unwritten: int = MAX_UNWRITTEN) -> None:
        super().__init__("traces")
        self._files = TraceFiles(path)
        self._send, self._receive = trio.open_memory_channel[TraceWrite](max_unwritten + 1)
        self._max_unwritten = max_unwritten
        self._waiting = 0
        self._complaint = ""

    @property
    def waiting(self) -> int:
        return self._waiting

    # What the tracer does.

    def collect(self, trace: Trace) -> None:
        self._post(self._files.collect(trace))

    def retire(self, setting: TraceSetting) -> None:
        self._post(self._files.retire(setting))

    def _post(self, write: TraceWrite | None) -> None:
        if write is None:
            return
        count = len(write.traces)
        if self._waiting and self._waiting + count > self._max_unwritten:
            self._drop(count, "traces are dropped: they come faster than they are written to %s", write.path)
            return
        self._waiting += count
        self._send.send_nowait(write)

    # The task.

    async def run(self) -> None:
        async for write in self._receive:
            await self._write(write)
        self._stopped.set()

    async def close(self) -> None:
        """Write what is waiting, and end the task."""
        for write in self._files.close():
            self._waiting += len(write.traces)
            await self._send.send(write)
        self._send.close()
        await self._stopped.wait()

    async def _write(self, write: TraceWrite) -> None:
        count = len(write.traces)
        try:
            await trio.to_thread.run_sync(write_traces, write)
        except (OSError, RuntimeError, ValueError) as error:  # no file, no thread, no such text
            self.failed += count
            reason = str(getattr(error, "strerror", None) or error)
            if reason != self._complaint:  # a directory that is not there is told of once
                self._complaint = reason
                logger.error("cannot write traces to %s: %s", write.path, reason)
        else:
            self.taken += count
            self._complaint = ""
        self._waiting -= count
        self._report_drops(self._max_unwritten)


class TraceExporter(TraceOutput):
    """Sends spans.

    Args:
        clock: that of the times in traces.

    Attributes:
        identities: of traces and spans.

    Raises:
        UnavailableError: the library is not installed.
    """

    def __init__(self, options: ExportOptions, clock: Clock) -> None:
        # Only here: importing the library takes longer than starting a server, and not everyone has it.
        for package in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
            import_package(package, "the trace mode 'opentelemetry' needs", "tracing")
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        from ..engine.tracing.spans import SpanExport

        super().__init__("spans")
        self._options = options
        ids = RandomIdGenerator()
        self.identities = Identities(ids.generate_trace_id, ids.generate_span_id)
        self._exporter = SpanExport(options, clock, self.identities)
        self._queue: deque[ReadableSpan] = deque(maxlen=options.max_queue_size)
        self._news = trio.lowlevel.ParkingLot()
        self._closing = False

    @property
    def waiting(self) -> int:
        return len(self._queue)

    # What the tracer does.

    def collect(self, trace: Trace) -> None:
        spans = self._exporter.spans_of(trace)
        if len(self._queue) + len(spans) > self._options.max_queue_size:
            self._drop(len(spans), "spans are dropped: they come faster than %s takes them", self._options.url)
            return
        self._queue.extend(spans)
        if len(self._queue) >= self._options.max_export_batch_size:
            self._news.unpark_all()

    def retire(self, setting: TraceSetting) -> None:
        """Spans wait for nothing but the schedule."""

    # The task.

    async def run(self) -> None:
        went_well = True
        while not self._closing:
            if len(self._queue) < self._options.max_export_batch_size:
                with trio.move_on_after(self._options.schedule_delay_ms / 1000):
                    await self._news.park()
            went_well = await self._export_all()
        if went_well:
            await self._export_all()
        self._stopped.set()

    async def close(self) -> None:
        """Export what is waiting, and end the task. Cancelling this gives up an export that is under way."""
        self._closing = True
        self._news.unpark_all()  # unless an export is under way, after which the task sees it by itself
        try:
            with trio.move_on_after(CLOSE_LIMIT_S):
                await self._stopped.wait()
        finally:
            self._exporter.shutdown()

    async def _export_all(self) -> bool:
        """Export what waits, until that fails; whether it did not."""
        while self._queue:
            if not await self._export():
                return False
        return True

    async def _export(self) -> bool:
        """Export a batch; whether that went well."""
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._options.max_export_batch_size))]
        try:
            went_well = await trio.to_thread.run_sync(self._exporter.send, batch, abandon_on_cancel=True)
        except RuntimeError as error:  # no thread can be started
            logger.error("cannot export spans: %s", error)
            went_well = False
        if went_well:
            self.taken += len(batch)
        else:
            self.failed += len(batch)
            logger.error("%d spans could not be exported to %s", len(batch), self._options.url)
        self._report_drops(self._options.max_queue_size)
        return went_well


class Tracing:
    """Owns the tracer and its sink.

    Attributes:
        tracer: decides what is traced. It is there from the first moment; what it collects is taken away from `start`
            on.
    """

    def __init__(self, config: TraceConfig, clock: Clock) -> None:
        if config.mode is TraceMode.OPENTELEMETRY:
            exporter = TraceExporter(config.export, clock)
            self._output: TraceExporter | TraceWriter = exporter
            self._is_needed = True
            self.tracer = Tracer(config, clock, exporter, exporter.identities)
        else:
            self._output = TraceWriter(config.file)
            self._is_needed = bool(config.file)
            self.tracer = Tracer(config, clock, self._output)
        self._runs = False

    def start(self, nursery: trio.Nursery) -> None:
        """Start the actor, if there can ever be work for it."""
        if self._is_needed:
            self._runs = True
            nursery.start_soon(self._output.run)

    async def close(self, limit_s: float) -> None:
        """Take no more traces, and put those that were taken where they belong, for at most `limit_s` seconds."""
        self.tracer.close()
        if self._runs:
            with trio.move_on_after(limit_s):
                await self._output.close()
