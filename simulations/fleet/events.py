"""Virtual time for a fleet: what happens, in order. Calls that are due at the same time are made in the order given."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Calendar:
    """Attributes:
    now_s: virtual seconds.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def after(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Have something called later."""
        self._number += 1
        heapq.heappush(self._calls, (self.now_s + delay_s, self._number, call, arguments))

    def at(self, time_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Have something called at a time, which may be now."""
        self._number += 1
        heapq.heappush(self._calls, (max(time_s, self.now_s), self._number, call, arguments))

    def run(self, until_s: float, going: Callable[[], bool]) -> None:
        """Let time pass until nothing is left to happen, or `going` says that it is over."""
        calls, pop = self._calls, heapq.heappop
        while calls and going() and calls[0][0] <= until_s:
            self.now_s, _, call, arguments = pop(calls)
            call(*arguments)
