"""Resources: what executes at one time holds no more than there is (scheduling.md §8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..events import BatchSealed, ExecutionEnded
from ..history import Handlers
from .base import Complain, Invariant

Demands = Mapping[str, Mapping[str, int]]
"""By model, what each of its instances holds while it executes."""


class ResourceLimits(Invariant):
    """No resource is held by more than there are of it.

    Args:
        pools: how many there are, by name.
    """

    name = "no resource is oversubscribed"

    def __init__(self, complain: Complain, demands: Demands, pools: Mapping[str, int]) -> None:
        super().__init__(complain)
        self._demands = demands
        self._pools = pools
        self._held: Counter[str] = Counter()
        self._batches: dict[int, str] = {}

    def handlers(self) -> Handlers:
        return {BatchSealed: self._sealed, ExecutionEnded: self._ended} if self._demands else {}

    def _sealed(self, batch: BatchSealed) -> None:
        self._batches[batch.batch] = batch.model
        for name, count in self._demands.get(batch.model, {}).items():
            self._held[name] += count
            if self._held[name] > self._pools[name]:
                self.broken(f"batch {batch.batch} takes {name} to {self._held[name]} of {self._pools[name]}")

    def _ended(self, event: ExecutionEnded) -> None:
        for name, count in self._demands.get(self._batches.pop(event.batch), {}).items():
            self._held[name] -= count
