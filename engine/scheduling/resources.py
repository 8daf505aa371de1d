"""Pools of resources that instances share: how much there is of each, and how much is taken
(docs/reference/scheduling.md#rate-limiter).

A global resource is one pool for the whole server; any other is one pool for each device. A pool is as large as the
most demanding instance needs, or, once any resource is given explicitly, as large as that says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..config.instance_groups import RateLimit
from ..errors import InvalidArgumentError

GLOBAL = -1
"""Stands for the device of a global resource."""


@dataclass(frozen=True, slots=True)
class ExplicitResource:
    """``--rate-limit-resource=<name>:<count>[:<device>]``; without a device, each device has so many."""

    name: str
    count: int
    device: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Pool:
    """A resource on a device, or on `GLOBAL`. Pools are checked in their order: global ones first, then by device."""

    device: int
    name: str


def demanded(limit: RateLimit, device: int) -> dict[Pool, int]:
    """Units by pool that an instance on this device demands, if any. Of a resource listed twice, the last counts."""
    demand = {Pool(GLOBAL if item.is_global else device, item.name): item.count for item in limit.resources}
    return {pool: count for pool, count in demand.items() if count}


class ResourcePools:
    """All pools of a server.

    Attributes:
        sizes: units by pool.
        taken: units that are given out, by pool.
    """

    def __init__(self, explicit: Iterable[ExplicitResource] = ()) -> None:
        self.sizes: Mapping[Pool, int] = {}
        self.taken: dict[Pool, int] = {}
        self._explicit = tuple(explicit)

    def resize(self, demands: Iterable[Mapping[Pool, int]]) -> None:
        """Make the pools as large as all these demands make them.

        What is taken stays taken, also where a pool becomes smaller than that.

        Raises:
            InvalidArgumentError: there is less than one of them needs, or a resource is both global and of a device;
                nothing has changed then.
        """
        sizes: dict[Pool, int] = {}
        for demand in demands:
            for pool, count in demand.items():
                sizes[pool] = max(count, sizes.get(pool, 0))
        if self._explicit:
            for pool in sorted(sizes):
                sizes[pool] = self._given(pool, sizes[pool])
        for pool in sorted(sizes):
            if pool.device != GLOBAL and Pool(GLOBAL, pool.name) in sizes:
                raise InvalidArgumentError(
                    f'Resource "{pool.name}" is present as both global and device-specific resource in the model '
                    "configuration."
                )
        self.sizes = sizes

    def _given(self, pool: Pool, needed: int) -> int:
        """The explicit size of a pool. The device of a global resource is not looked at."""
        counts = [
            item.count
            for item in self._explicit
            if item.name == pool.name and (pool.device == GLOBAL or item.device in (None, pool.device))
        ]
        given = max(counts, default=0)
        if given < needed:
            raise InvalidArgumentError(
                f'Resource count for "{pool.name}" is limited to {given} which will prevent scheduling of one or more '
                f"model instances, the minimum required count is {needed}"
            )
        return given

    def take(self, demand: Mapping[Pool, int]) -> bool:
        """Take all of it, or nothing if some of it is not there."""
        if any(self.taken.get(pool, 0) + count > self.sizes[pool] for pool, count in demand.items()):
            return False
        for pool, count in demand.items():
            self.taken[pool] = self.taken.get(pool, 0) + count
        return True

    def give_back(self, demand: Mapping[Pool, int]) -> None:
        """Undo a `take`."""
        for pool, count in demand.items():
            left = self.taken[pool] - count
            assert left >= 0, f"more of {pool} was given back than taken"
            if left:
                self.taken[pool] = left
            else:
                del self.taken[pool]
