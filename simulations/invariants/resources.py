"""Resources: what executes at one time holds no more than there is (docs/reference/scheduling.md#rate-limiter)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..events import BatchSealed, ExecutionEnded, InstanceDetached
from ..generations import model_of
from ..history import Handlers
from .base import Complain, Invariant
from .state import ModelView, WorldState

Demands = Mapping[str, Mapping[str, int]]
"""By model, what each of its instances holds while it executes."""


Resource = tuple[str, int]
"""A resource of a device; there is as much of it on each."""


class ResourceLimits(Invariant):
    """No resource is held by more than there are of it.

    Args:
        pools: how many there are on each device, by name.
    """

    name = "no resource is oversubscribed"

    def __init__(self, complain: Complain, state: WorldState, demands: Demands, pools: Mapping[str, int]) -> None:
        super().__init__(complain)
        self._state = state
        self._demands = demands
        self._pools = pools
        self._held: Counter[Resource] = Counter()
        self._freed_ns: dict[Resource, int] = {}
        self._batches: dict[int, BatchSealed] = {}  # those that hold what their model needs

    def available(self, view: ModelView, before_ns: int) -> bool:
        """Whether an idle instance of this model must be granted what it needs: there is enough of it, none of it was
        given back as late as `before_ns`, and no other model for which something waits needs any of the same."""
        demand = self._demands.get(view.config.name, {})
        if not demand:
            return True
        idle = [view.device_of(name) for name, held in view.instances.items() if len(held) < view.credits]
        if not all(self._has(demand, device, before_ns) for device in idle):
            return False  # who stands first blocks the others, also those on another device
        for other in self._state.models.values():
            contends = other is not view and other.line.waiting
            if contends and not demand.keys().isdisjoint(self._demands.get(other.config.name, {})):
                return False
        return True

    def _has(self, demand: Mapping[str, int], device: int, before_ns: int) -> bool:
        """Whether there is enough on a device, and has been since before that time."""
        return all(
            self._held[name, device] + count <= self._pools[name] and self._freed_ns.get((name, device), -1) < before_ns
            for name, count in demand.items()
        )

    def _device(self, batch: BatchSealed) -> int:
        return self._state.models[batch.model].device_of(batch.instance)

    def handlers(self) -> Handlers:
        if not self._demands:
            return {}
        return {BatchSealed: self._sealed, ExecutionEnded: self._ended, InstanceDetached: self._detached}

    def _sealed(self, batch: BatchSealed) -> None:
        self._batches[batch.batch] = batch
        device = self._device(batch)
        for name, count in self._demands.get(model_of(batch.model), {}).items():
            self._held[name, device] += count
            if self._held[name, device] > self._pools[name]:
                self.broken(f"batch {batch.batch} takes {name} to {self._held[name, device]} of {self._pools[name]}")

    def _ended(self, event: ExecutionEnded) -> None:
        if event.batch in self._batches:
            self._free(self._batches.pop(event.batch), event.at_ns)

    def _detached(self, event: InstanceDetached) -> None:
        """A server whose time is up ends instances that have a batch, and have not begun with it."""
        for batch in [each for each in self._batches.values() if each.instance == event.instance]:
            if batch.model == event.model:
                self._free(self._batches.pop(batch.batch), event.at_ns)

    def _free(self, batch: BatchSealed, now_ns: int) -> None:
        device = self._device(batch)
        for name, count in self._demands.get(model_of(batch.model), {}).items():
            self._held[name, device] -= count
            self._freed_ns[name, device] = now_ns
