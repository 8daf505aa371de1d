"""Writes the request log: records wait in a bounded buffer, and a thread encodes and writes all of them, once a
second while there are any."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import trio

from ..engine.clock import Clock
from ..engine.logs.request_recorder import RequestRecorder, WaitingRecords
from ..engine.logs.rotation import append_lines, rotate

logger = logging.getLogger("trireme.request_log")

DEFAULT_FILE_BYTES = 64 << 20
DEFAULT_FILES = 4
_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class RequestLogSettings:
    """Where requests are logged, and how much.

    Attributes:
        file_bytes: when a file is full.
        files: full ones that are kept, as `.1` (the newest), `.2`, and so on.
        results: what comes of requests is logged, too.
    """

    path: Path
    file_bytes: int = DEFAULT_FILE_BYTES
    files: int = DEFAULT_FILES
    results: bool = False


class RequestLog:
    """The task, and the recorder whose records it writes.

    Args:
        key: see `RequestRecorder`.
    """

    def __init__(self, settings: RequestLogSettings, clock: Clock, key: bytes) -> None:
        self.recorder = RequestRecorder(clock, key, results=settings.results)
        self.recorder.on_news = self._hear
        self._settings = settings
        self._news = trio.Event()
        self._stopped = trio.Event()
        self._closing = trio.Event()
        self._complaint = ""
        self._told = 0

    def begin(self) -> None:
        """Make the file; one that was there is kept as a full one. Raises OSError if it cannot be written."""
        rotate(str(self._settings.path), self._settings.files)
        self._append(b"")

    async def run(self) -> None:
        """Write what comes, until `close`."""
        while not self._closing.is_set():
            await self._news.wait()
            with trio.move_on_after(_PERIOD_S):
                await self._closing.wait()
            self._news = trio.Event()
            await self._write()
        await self._write()
        if self.recorder.dropped:
            logger.warning("the request log lacks %d requests that there was no room for", self.recorder.dropped)
        self._stopped.set()

    async def close(self, limit_s: float) -> None:
        """Write what waits, for at most so long, and end the task."""
        self._closing.set()
        self._news.set()
        with trio.move_on_after(limit_s):
            await self._stopped.wait()

    def _hear(self) -> None:
        self._news.set()

    async def _write(self) -> None:
        waiting = self.recorder.take()
        if self.recorder.dropped and not self._told:
            logger.warning("more requests come than the request log can take; it says how many it lacks")
        self._told = self.recorder.dropped
        if not waiting.arrivals and not waiting.dropped:
            return
        try:
            await trio.to_thread.run_sync(self._encode_and_append, waiting)
        except (OSError, RuntimeError) as error:  # the disk is full, or no thread can be started
            self.recorder.lost(waiting)
            reason = str(getattr(error, "strerror", None) or error)
            if reason != self._complaint:
                self._complaint = reason
                logger.error("cannot write the request log '%s': %s", self._settings.path, reason)
        else:
            self._complaint = ""

    def _encode_and_append(self, waiting: WaitingRecords) -> None:
        self._append(b"".join(self.recorder.encode(waiting)))

    def _append(self, data: bytes) -> None:
        settings = self._settings
        append_lines(str(settings.path), data, settings.file_bytes, settings.files, self.recorder.head)
