"""The traces of a server: the tracer that front ends ask, and the actors that take what it has collected away, to files
or to a collector (`trace_exporter`).

The trace writer writes trace files, on a thread, so that no request waits for a disk.

What it cannot write (a full disk, a directory that is not there) is lost, and logged; what comes faster than it writes
is dropped, counted and logged. Nothing of that is felt by a request.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import trio

from ..engine.clock import Clock
from ..engine.tracing import TraceConfig, TraceMode, Tracer
from ..engine.tracing.files import TraceFiles, TraceWrite, write_traces
from ..engine.tracing.record import Trace
from ..engine.tracing.settings import TraceSetting

logger = logging.getLogger("trireme.tracing")

MAX_UNWRITTEN = 32_768
"""Traces on their way to files from which on more are dropped."""


@dataclass(frozen=True, slots=True)
class TraceWriterStatistics:
    """Traces that were written, that could not be, and that were dropped because too many were waiting."""

    written: int
    failed: int
    dropped: int
    waiting: int


class TraceWriter:
    """A `engine.tracing.tracer.TraceSink` that makes files.

    Args:
        path: of the file, and the beginning of the names of those with an index.
        max_unwritten: see `MAX_UNWRITTEN`.
    """

    def __init__(self, path: str, max_unwritten: int = MAX_UNWRITTEN) -> None:
        self._files = TraceFiles(path)
        self._send, self._receive = trio.open_memory_channel[TraceWrite](max_unwritten + 1)
        self._max_unwritten = max_unwritten
        self._written = self._failed = self._dropped = self._waiting = 0
        self._unreported_drops = 0
        self._complaint = ""
        self._stopped = trio.Event()

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
            if not self._unreported_drops:
                logger.warning("traces are dropped: they come faster than they are written to %s", write.path)
            self._dropped += count
            self._unreported_drops += count
            return
        self._waiting += count
        self._send.send_nowait(write)

    # The task.

    async def run(self) -> None:
        """Write until `close`."""
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
            self._failed += count
            reason = str(getattr(error, "strerror", None) or error)
            if reason != self._complaint:  # a directory that is not there is told of once
                self._complaint = reason
                logger.error("cannot write traces to %s: %s", write.path, reason)
        else:
            self._written += count
            self._complaint = ""
        self._waiting -= count
        if self._unreported_drops and self._waiting < self._max_unwritten // 2:
            logger.warning("%d traces were dropped", self._unreported_drops)
            self._unreported_drops = 0

    def statistics(self) -> TraceWriterStatistics:
        return TraceWriterStatistics(self._written, self._failed, self._dropped, self._waiting)

    def __repr__(self) -> str:
        return f"<TraceWriter: {self._waiting} traces to write, {self._written} written, {self._failed} failed>"


class Tracing:
    """Owns the tracer and its sink.

    Attributes:
        tracer: decides what is traced. It is there from the first moment; what it collects is taken away from `start`
            on.
    """

    def __init__(self, config: TraceConfig, clock: Clock) -> None:
        if config.mode is TraceMode.OPENTELEMETRY:
            # Only here: importing the library takes longer than starting a server.
            from .trace_exporter import TraceExporter

            exporter = TraceExporter(config.export, clock)
            self._output: TraceWriter | TraceExporter = exporter
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
