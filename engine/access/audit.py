"""The audit log: who has managed the server, and what was refused (docs/access.md#the-audit-log).

Rules:
 1. Calls that change the server are noted, and whatever access rules have refused. A line is a JSON object.
 2. Clients can cause refusals as fast as they like: `REFUSALS_PER_S` of them are noted, after a burst.
 3. What waits to be written is bounded by `MAX_WAITING_BYTES`. What is left out for rule 2 or 3 is counted, and the
    next line that is noted says how many there were.
 4. Files are bounded and rotated (`engine.logs.rotation`): `MAX_FILE_BYTES` each, `FILES_KEPT` beside the one in use.
"""

from __future__ import annotations

import json

from ..clock import utc_text
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
        record: dict[str, str | int] = {"time": utc_text(wall_ms)}
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
