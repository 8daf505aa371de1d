"""The audit log: who has managed the server, and what was refused (docs/access.md#the-audit-log).

Rules:
 1. Calls that change the server are noted, and whatever access rules have refused. A line is a JSON object.
 2. Clients can cause refusals as fast as they like: `REFUSALS_PER_S` of them are noted, after a burst.
 3. What waits to be written is bounded by `MAX_WAITING_BYTES`. What is left out for rule 2 or 3 is counted, and the
    next line that is noted says how many there were.
 4. A file that would grow beyond its bound is renamed before (`.1`, that one `.2`, and so on); the oldest is deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
from datetime import UTC, datetime

from ..errors import shown
from .limits import TokenBucket

MAX_WAITING_BYTES = 4 << 20
MAX_FILE_BYTES = 64 << 20
FILES_KEPT = 4
REFUSALS_PER_S = 100.0
_REFUSALS_BURST = 1000.0

ALLOWED, REFUSED = "allowed", "refused"


class AuditLines:
    """Makes lines, and holds them until they are written.

    Attributes:
        noted, dropped: how many there were, and how many were left out.
    """

    def __init__(self, now_s: float) -> None:
        self.noted = self.dropped = 0
        self._unreported = 0
        self._lines: list[bytes] = []
        self._nbytes = 0
        self._refusals = TokenBucket(REFUSALS_PER_S, _REFUSALS_BURST, now_s)

    def note(self, fields: dict[str, str], now_s: float, wall_ms: int) -> bool:
        """Note a call, unless that is too much. Whether it is the first line that waits."""
        if fields["outcome"] == REFUSED:
            self._refusals.refill(now_s)
            if self._refusals.tokens < 1:
                self._drop()
                return False
            self._refusals.tokens -= 1
        record: dict[str, str | int] = {"time": _time(wall_ms)}
        record |= {name: shown(value) for name, value in fields.items() if value}
        if self._unreported:
            record["dropped"] = self._unreported
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if self._nbytes + len(line) > MAX_WAITING_BYTES:
            self._drop()
            return False
        self._unreported = 0
        self.noted += 1
        self._lines.append(line)
        self._nbytes += len(line)
        return len(self._lines) == 1

    def take(self) -> bytes:
        """All that waits."""
        data = b"".join(self._lines)
        self._lines.clear()
        self._nbytes = 0
        return data

    def _drop(self) -> None:
        self.dropped += 1
        self._unreported += 1


def append_lines(path: str, data: bytes, max_bytes: int = MAX_FILE_BYTES, kept: int = FILES_KEPT) -> None:
    """Write lines at the end of a file that only its owner may read (rule 4).

    Raises:
        OSError: it cannot be written.
    """
    with contextlib.suppress(FileNotFoundError):
        size = os.stat(path).st_size
        if size and size + len(data) > max_bytes:
            for number in range(kept - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{path}.{number}", f"{path}.{number + 1}")
            os.replace(path, f"{path}.1")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def _time(wall_ms: int) -> str:
    moment = datetime.fromtimestamp(wall_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ms % 1000:03d}Z"
