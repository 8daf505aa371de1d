"""The trace writer: an actor that writes trace files, on a thread, so that no request waits for a disk.

What it cannot write (a full disk, a directory that is not there) is lost, and logged; what comes faster than it writes
is dropped, counted and logged. Nothing of that is felt by a request.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from io import RawIOBase

import trio

from ..engine.tracing.files import TraceFiles, TraceWrite, format_traces
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


def write_traces(write: TraceWrite) -> None:
    """Write a trace file: one JSON array on one line. Whatever happens, no half of one is left.

    Raises:
        OSError: it cannot be written.
    """
    text = format_traces(write.traces).encode(errors="backslashreplace")
    if write.extend:
        with contextlib.suppress(FileNotFoundError), open(write.path, "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if file.read() == b"]":
                _put(file, size - 1, (b"," if text and size > 2 else b"") + text + b"]", b"]")
                return
    with open(write.path, "wb", buffering=0) as file:
        _put(file, 0, b"[" + text + b"]", b"")


def _put(file: RawIOBase, position: int, data: bytes, instead: bytes) -> None:
    """Put `data` at `position`, or, if it does not fit on the disk, what was there."""
    try:
        file.seek(position)
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(position)
            file.seek(position)
            file.write(instead)
        raise
