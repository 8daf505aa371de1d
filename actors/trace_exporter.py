"""The trace exporter: an actor that sends spans to an OpenTelemetry collector, by OTLP over HTTP.

The library's own batch processor is not used: it has a thread of its own that nothing here could supervise, wait for in
a shutdown, or see. Its exporter is, from a thread that this actor lends it for each export.

Rules:
 1. Spans wait in a queue of bounded size. What comes while it is full is dropped, and counted: a collector that is
    slow, or not there, is felt by no request.
 2. An export begins when a full batch waits, or when the schedule's time is over. There is one export at a time.
 3. An export that fails (after what the library retries) is lost, and counted.
 4. At the end what waits is exported, until that fails, `CLOSE_LIMIT_S` is over, or the time of the whole shutdown.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

import trio
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

from ..engine.clock import Clock
from ..engine.tracing.otlp import SpanExport
from ..engine.tracing.record import Identities, Trace
from ..engine.tracing.settings import ExportOptions, TraceSetting
from ..engine.tracing.spans import Span, spans_of

logger = logging.getLogger("trireme.tracing")

CLOSE_LIMIT_S = 5.0
"""However long the server may take to stop: a collector that is not there should not hold it up for so long."""


@dataclass(frozen=True, slots=True)
class TraceExporterStatistics:
    """Spans that were exported, whose export failed, that were dropped at the bound, and that wait."""

    exported: int
    failed: int
    dropped: int
    waiting: int


class TraceExporter:
    """A `engine.tracing.tracer.TraceSink` that sends spans.

    Args:
        clock: that of the times in traces.
        ids: gives new identities.

    Attributes:
        identities: the same, in the tracer's terms.
    """

    def __init__(self, options: ExportOptions, clock: Clock, ids: IdGenerator | None = None) -> None:
        self._options = options
        ids = RandomIdGenerator() if ids is None else ids
        self.identities = Identities(ids.generate_trace_id, ids.generate_span_id)
        self._exporter = SpanExport(options, clock)
        self._queue: deque[Span] = deque(maxlen=options.max_queue_size)
        self._news = trio.lowlevel.ParkingLot()
        self._exported = self._failed = self._dropped = 0
        self._unreported_drops = 0
        self._closing = False
        self._stopped = trio.Event()

    # What the tracer does.

    def collect(self, trace: Trace) -> None:
        spans = spans_of(trace, self.identities)
        if len(self._queue) + len(spans) > self._options.max_queue_size:
            if not self._unreported_drops:
                logger.warning("spans are dropped: they come faster than %s takes them", self._options.url)
            self._dropped += len(spans)
            self._unreported_drops += len(spans)
            return
        self._queue.extend(spans)
        if len(self._queue) >= self._options.max_export_batch_size:
            self._news.unpark_all()

    def retire(self, setting: TraceSetting) -> None:
        """Spans wait for nothing but the schedule."""

    # The task.

    async def run(self) -> None:
        """Export until `close`."""
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
            went_well = await trio.to_thread.run_sync(self._send, batch, abandon_on_cancel=True)
        except RuntimeError as error:  # no thread can be started
            logger.error("cannot export spans: %s", error)
            went_well = False
        if went_well:
            self._exported += len(batch)
        else:
            self._failed += len(batch)
            logger.error("%d spans could not be exported to %s", len(batch), self._options.url)
        if self._unreported_drops and len(self._queue) <= self._options.max_queue_size // 2:
            logger.warning("%d spans were dropped", self._unreported_drops)
            self._unreported_drops = 0
        return went_well

    def _send(self, batch: list[Span]) -> bool:
        """On a thread."""
        return self._exporter.send(batch)

    def statistics(self) -> TraceExporterStatistics:
        return TraceExporterStatistics(self._exported, self._failed, self._dropped, len(self._queue))

    def __repr__(self) -> str:
        return f"<TraceExporter to {self._options.url}: {len(self._queue)} spans wait, {self._exported} exported>"
