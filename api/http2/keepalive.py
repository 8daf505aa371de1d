"""Is the client still there, and is the connection too old? gRPC's rules (proposals A8, A9), with time as an argument.

Rule 1: After `time_s` without anything received, a PING asks for a sign of life; without open streams only if
        `permit_without_calls`. Anything received is an answer. No answer for `timeout_s`: DEAD.
Rule 2: At most `max_pings_without_data` such PINGs between two frames with data or headers of ours.
Rule 3: A client's PING that comes too early is a strike; more than `max_ping_strikes` are too many. Data or headers
        sent wipe out the strikes, since many clients measure bandwidth by a PING for each piece of data.
Rule 4: After `max_connection_age_s`: OLD. The grace later: OVERDUE.

    QUIET ──time_s without anything──▶ ASKED ──timeout_s without anything──▶ GONE (Due.DEAD)
      ▲                                  │
      └──────── anything received ───────┘

Timers are lazy: receiving only notes when, and a timer that fires too early looks again later.
"""

from __future__ import annotations

import math
from enum import Enum

from .limits import KeepaliveOptions

_IDLE_PING_INTERVAL_S = 7200.0


class Due(Enum):
    """What time demands of the connection."""

    PING = "ping"
    DEAD = "dead"
    OLD = "old"
    OVERDUE = "overdue"


class Keepalive:
    """The clockwork of one connection.

    Attributes:
        heard_s: when something was last received; set by the receiver.
        asked: a PING was sent, and nothing has come since.
    """

    def __init__(self, options: KeepaliveOptions, now_s: float) -> None:
        self._options = options
        self.heard_s = now_s
        self.asked = False
        self._quiet_due_s = now_s + options.time_s
        self._age_due_s = now_s + options.max_connection_age_s
        self._overdue_s = math.inf
        self._pings_sent = 0
        self._strikes = 0
        self._last_ping_s = -math.inf

    @property
    def next_timer_s(self) -> float:
        """When `due` wants to be asked; math.inf for never."""
        return min(self._quiet_due_s, self._age_due_s, self._overdue_s)

    def payload_sent(self) -> None:
        """Data or headers went out since this was last said."""
        self._pings_sent = 0
        self._strikes = 0
        self._last_ping_s = -math.inf

    def is_one_ping_too_many(self, now_s: float, open_streams: int) -> bool:
        """A client's PING has come: is it one strike too many?"""
        options = self._options
        idle = not open_streams and not options.permit_without_calls
        interval_s = _IDLE_PING_INTERVAL_S if idle else options.min_recv_ping_interval_without_data_s
        is_early = now_s < self._last_ping_s + interval_s
        self._last_ping_s = now_s
        if not is_early:
            return False
        self._strikes += 1
        return 0 < options.max_ping_strikes < self._strikes

    def due(self, now_s: float, open_streams: int) -> list[Due]:
        """What is due by now, in order."""
        found: list[Due] = []
        if now_s >= self._quiet_due_s and (due := self._look(now_s, open_streams)) is not None:
            found.append(due)
        if now_s >= self._age_due_s:
            self._age_due_s = math.inf
            self._overdue_s = now_s + self._options.max_connection_age_grace_s
            found.append(Due.OLD)
        if now_s >= self._overdue_s:
            self._overdue_s = math.inf
            found.append(Due.OVERDUE)
        return found

    def _look(self, now_s: float, open_streams: int) -> Due | None:
        """Silence is allowed while no PING may be sent (rules 1 and 2). A client that was asked has no such excuse."""
        options = self._options
        if self.asked and self.heard_s == -math.inf:
            self._quiet_due_s = math.inf
            return Due.DEAD
        spent = 0 < options.max_pings_without_data <= self._pings_sent
        may_ask = not spent and (open_streams > 0 or options.permit_without_calls)
        heard = self.asked or self.heard_s + options.time_s > now_s
        self.asked = may_ask and not heard
        if self.asked:
            self._pings_sent += 1
            self._quiet_due_s = now_s + options.timeout_s
            self.heard_s = -math.inf  # what counts from now on is what is heard after this PING
            return Due.PING
        quiet_since_s = self.heard_s if self.heard_s + options.time_s > now_s else now_s
        self._quiet_due_s = quiet_since_s + options.time_s
        return None
