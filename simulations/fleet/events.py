"""Virtual time of a simulated fleet: a heap of things that happen, in one order for one seed."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

Happening = Callable[[], None]


class FleetTime:
    """Calls what is due, in the order of time, and of the order in which it was planned."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Happening]] = []
        self._planned = 0

    def after(self, delay_s: float, happening: Happening) -> None:
        """Have something happen later."""
        self.at(self.now_s + delay_s, happening)

    def at(self, due_s: float, happening: Happening) -> None:
        """The same, at a time."""
        self._planned += 1
        heappush(self._heap, (due_s, self._planned, happening))

    def run(self, until_s: float) -> bool:
        """Go on until a time, or until nothing is planned; whether something still is."""
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, happening = heappop(self._heap)
            happening()
        return bool(self._heap)
