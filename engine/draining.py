"""From the signal that ends a server to the moment in which it begins to stop.

In between it may drain: it says that it is not ready, serves what comes all the same, and has its clients connect
anew, so that who balances load between servers has the time to notice, and sends them elsewhere.

Rules:
 1. The first signal begins the drain. How long that takes is set for each signal; if it is 0, the server stops at once.
 2. A second signal ends the drain.
 3. Else it ends when its time is over, and not sooner: that no connection is open, or that a client was told that the
    server is not ready, does not show that all balancers have heard of it.

States, and what leads from one to the other:

    SERVING ─(rule 1)▶ DRAINING ─(rule 2, rule 3)▶ STOPPING
       └─────────(rule 1, without a drain)────────────▲
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Ending(Enum):
    """How far the end of a server has come."""

    SERVING = "serving"
    DRAINING = "draining"
    STOPPING = "stopping"


@dataclass(slots=True, eq=False)
class Draining:
    """Decides when a server drains, and when it stops. All times are seconds of one clock.

    Args:
        drain_s: how long the drain takes, by the number of the signal; of others, 0.

    Attributes:
        until_s: when the drain is over; infinite before and after it.
    """

    drain_s: Mapping[int, float]
    state: Ending = field(default=Ending.SERVING, init=False)
    until_s: float = field(default=math.inf, init=False)

    def signalled(self, number: int, now: float) -> None:
        """A signal has come; rules 1 and 2."""
        drain_s = self.drain_s.get(number, 0.0) if self.state is Ending.SERVING else 0.0
        if drain_s > 0:
            self.state, self.until_s = Ending.DRAINING, now + drain_s
        else:
            self._stop()

    def tick(self, now: float) -> None:
        """Rule 3; to be called at `until_s`, and harmless at any other time."""
        if now >= self.until_s:
            self._stop()

    def _stop(self) -> None:
        self.state, self.until_s = Ending.STOPPING, math.inf
