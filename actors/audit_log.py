"""Writes the audit log: lines wait in a bounded buffer, and a thread takes all of them at once."""

from __future__ import annotations

import logging
from pathlib import Path

import trio

from ..engine.access.audit import FILES_KEPT, MAX_FILE_BYTES, AuditLines
from ..engine.clock import Clock
from ..engine.logs.rotation import append_lines

logger = logging.getLogger("trireme.access")


class AuditLog:
    """The task, and what is noted with it. On the event loop.

    Args:
        path: of the file, which need not be there yet.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self.lines = AuditLines(clock.now_s())
        self._news = trio.Event()
        self._stopped = trio.Event()
        self._closing = False
        self._complaint = ""

    def check(self) -> None:
        """Make the file, if it is not there yet. Raises OSError if it cannot be written."""
        self._append(b"")

    def note(
        self, *, caller: str, protocol: str, address: str, call: str, model: str, outcome: str, reason: str = ""
    ) -> None:
        """Note a call, now; what is empty is left out.

        Args:
            address: of the client.
            outcome: `audit.ALLOWED` or `audit.REFUSED`.
            reason: of a refusal, or of a failure.
        """
        fields = {
            "caller": caller,
            "protocol": protocol,
            "address": address,
            "call": call,
            "model": model,
            "outcome": outcome,
            "reason": reason,
        }
        if self.lines.note(fields, self._clock.now_s(), self._clock.wall_ms()):
            self._news.set()

    async def run(self) -> None:
        """Write what comes, until `close`."""
        while not self._closing:
            await self._news.wait()
            self._news = trio.Event()
            await self._write()
        await self._write()
        self._stopped.set()

    async def close(self, limit_s: float) -> None:
        """Write what waits, for at most so long, and end the task."""
        self._closing = True
        self._news.set()
        with trio.move_on_after(limit_s):
            await self._stopped.wait()

    def _append(self, data: bytes) -> None:
        append_lines(str(self._path), data, MAX_FILE_BYTES, FILES_KEPT)

    async def _write(self) -> None:
        data = self.lines.take()
        if not data:
            return
        try:
            await trio.to_thread.run_sync(self._append, data)
        except (OSError, RuntimeError) as error:  # the disk is full, or no thread can be started
            self.lines.dropped += data.count(b"\n")
            reason = str(getattr(error, "strerror", None) or error)
            if reason != self._complaint:
                self._complaint = reason
                logger.error("cannot write the audit log %s: %s", self._path, reason)
        else:
            self._complaint = ""
