"""When a dead child is started again: always, after a delay that grows while it goes on dying.

Rules:
 1. The delay before restart k in a row is ``first_delay_s * 2**(k - 1)``, at most `longest_delay_s`.
 2. A child that was up for `healthy_s` has recovered: its next death is the first in a row again.
 3. After more than `limit` deaths in a row the child is failing: requests should not wait for it any more. It is until
    it has been up for `healthy_s`.

States, and what leads from one to the other:

    WELL ─(more than `limit` deaths in a row)▶ FAILING ─(a death after `healthy_s` or more)▶ WELL
"""

from __future__ import annotations

import math

_MOST_DOUBLINGS = 64


class RestartPolicy:
    """Decides about one child. All times are seconds of one clock.

    Args:
        limit: deaths in a row after which it is not failing yet.
        healthy_s: how long it has to be up before deaths are forgotten.

    Attributes:
        deaths: in a row.
    """

    __slots__ = ("_first_delay_s", "_healthy_s", "_limit", "_longest_delay_s", "_up_s", "deaths")

    def __init__(self, limit: int, healthy_s: float, first_delay_s: float = 0.1, longest_delay_s: float = 30.0) -> None:
        self._limit = limit
        self._healthy_s = healthy_s
        self._first_delay_s = first_delay_s
        self._longest_delay_s = longest_delay_s
        self._up_s = math.inf
        self.deaths = 0

    def started(self, now: float) -> None:
        """The child is up since `now`."""
        self._up_s = now

    def died(self, now: float) -> float:
        """The child died at `now`, or could not be started: seconds to wait before it is started again."""
        if now - self._up_s >= self._healthy_s:
            self.deaths = 0
        self._up_s = math.inf
        self.deaths += 1
        return min(self._first_delay_s * 2 ** min(self.deaths - 1, _MOST_DOUBLINGS), self._longest_delay_s)

    @property
    def failing(self) -> bool:
        """Rule 3; as of the last death."""
        return self.deaths > self._limit
