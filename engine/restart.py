"""When a dead child is started again, and when no more: Erlang's restart intensity, with a growing delay.

Rule 1: a child may die `limit` times within `window_s`; one death more and it is given up.
Rule 2: the delay before restart k (counted within the window) is ``first_delay_s * 2**(k - 1)``, at most
`longest_delay_s`.
"""

from __future__ import annotations

from collections import deque


class RestartPolicy:
    """Decides about one child.

    Args:
        limit: deaths within the window that are forgiven.
        window_s: how long a death counts.
    """

    __slots__ = ("_deaths_s", "_first_delay_s", "_limit", "_longest_delay_s", "_window_s")

    def __init__(self, limit: int, window_s: float, first_delay_s: float = 0.1, longest_delay_s: float = 10.0) -> None:
        self._limit = limit
        self._window_s = window_s
        self._first_delay_s = first_delay_s
        self._longest_delay_s = longest_delay_s
        self._deaths_s: deque[float] = deque(maxlen=limit + 1)

    def died(self, now: float) -> float | None:
        """The child died at `now`: seconds to wait before it is started again, or None to give it up."""
        while self._deaths_s and now - self._deaths_s[0] > self._window_s:
            self._deaths_s.popleft()
        self._deaths_s.append(now)
        deaths = len(self._deaths_s)
        if deaths > self._limit:
            return None
        return min(self._first_delay_s * 2 ** (deaths - 1), self._longest_delay_s)
