"""The rate limiter: which instances may execute now, given the resources that they share
(docs/reference/scheduling.md#rate-limiter).

The actor feeds events (`register`, `request`, `release` …) and then calls `next_grant` until it gives None.

Rules:
 1. An instance that has work asks, waits until it is granted everything that it demands at once, and gives it all back
    when it is done. No pool ever gives out more than it has.
 2. Who has executed least, weighted by priority, is first: each execution moves an instance back by its priority, so an
    instance of priority 2 gets half as many executions as one of priority 1. Of equals, who asked first is first. To be
    initialised and to be warmed up count as an execution each, whether there are samples or not.
 3. An instance that has been overtaken, by those that demand something from one of its pools, more often than
    priorities explain goes before all that have not: one that is new, or had no work for long, may not make up for all
    the executions that it did not have.
 4. The first that cannot be granted holds up only those that demand something from one of its pools: these wait behind
    it. So a large demand is met in the end, and what no instance ahead demands is never left idle.
 5. An instance that is gone holds and awaits nothing.
 6. An instance that is done, and has more work, asks again before what it gave back is granted to anybody (`renew`):
    otherwise the others would always come first, whatever the priorities.
 7. A global resource is one pool for the whole server; any other is one pool for each device. A pool is as large as the
    most demanding instance needs, or, once any resource is given explicitly, as large as that says.

States of an instance, and what leads from one to the next:

    IDLE ─(request)▶ WAITING ─(next_grant)▶ GRANTED ─(release)▶ IDLE
    GRANTED ─(renew)▶ WAITING, WAITING ─(withdraw)▶ IDLE, any ─(unregister)▶ gone
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..config.instance_groups import RateLimit
from ..errors import InvalidArgumentError

InstanceKey = TypeVar("InstanceKey", bound=Hashable)


EXECUTIONS_TO_START = 2
"""Rule 2: initialisation and warm-up."""


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


class GrantState(enum.Enum):
    IDLE = "idle"
    WAITING = "waiting"
    GRANTED = "granted"


@dataclass(slots=True, eq=False)
class _Entry:
    """What is known of an instance.

    Attributes:
        demand: units by pool.
        weight: its priority.
        executed: executions so far, those to start included, times weight.
        asked: number of its latest request.
        overtaken: how many that share a pool with it were granted since then.
    """

    demand: dict[Pool, int]
    weight: int
    executed: int
    asked: int = 0
    overtaken: int = 0
    state: GrantState = GrantState.IDLE


class RateLimiterCore(Generic[InstanceKey]):
    """Grants resources to instances of all models of a server (``--rate-limit=execution_count``).

    Instances are named by any hashable values, unique over restarts.

    Args:
        explicit: what there is (``--rate-limit-resource``). If empty, each pool holds as much as the most demanding of
            the instances needs; if not, what is not named does not exist.
    """

    def __init__(self, explicit: Iterable[ExplicitResource] = ()) -> None:
        self._pools = ResourcePools(explicit)
        self._entries: dict[InstanceKey, _Entry] = {}
        self._requests = 0

    def register(self, instance: InstanceKey, limit: RateLimit, device: int) -> None:
        """A new instance, on this device (0 unless it is on a GPU).

        Raises:
            InvalidArgumentError: there is not enough for it or, now, for another one; nothing has changed then.
        """
        assert instance not in self._entries, f"{instance!r} is registered twice"
        demand = demanded(limit, device)
        self._pools.resize([*(entry.demand for entry in self._entries.values()), demand])
        weight = max(1, limit.priority)
        self._entries[instance] = _Entry(demand, weight, EXECUTIONS_TO_START * weight)

    def unregister(self, instance: InstanceKey) -> None:
        """An instance is gone, whatever it was doing. Unknown ones are fine."""
        entry = self._entries.pop(instance, None)
        if entry is None:
            return
        if entry.state is GrantState.GRANTED:
            self._pools.give_back(entry.demand)
        self._pools.resize([other.demand for other in self._entries.values()])

    def request(self, instance: InstanceKey) -> None:
        """An instance has work, and wants to execute. Fine for one that waits already, or is gone."""
        entry = self._entries.get(instance)
        if entry is None or entry.state is not GrantState.IDLE:
            return
        self._requests += 1
        entry.asked = self._requests
        entry.overtaken = 0
        entry.state = GrantState.WAITING

    def withdraw(self, instance: InstanceKey) -> None:
        """A waiting instance has no work any more. Fine for any other."""
        entry = self._entries.get(instance)
        if entry is not None and entry.state is GrantState.WAITING:
            entry.state = GrantState.IDLE

    def release(self, instance: InstanceKey, executed: bool = True) -> None:
        """An instance gives back what it was granted. Fine for one that is gone.

        Args:
            executed: False if it had no use for the grant; that costs it nothing.
        """
        entry = self._entries.get(instance)
        if entry is None:
            return
        assert entry.state is GrantState.GRANTED, f"{instance!r} has nothing to give back"
        entry.state = GrantState.IDLE
        self._pools.give_back(entry.demand)
        if executed:
            entry.executed += entry.weight

    def renew(self, instance: InstanceKey) -> None:
        """An instance gives back what it was granted, having executed, and wants to execute again (rule 6)."""
        self.release(instance)
        self.request(instance)

    def next_grant(self) -> InstanceKey | None:
        """The next instance that may execute; None for none before the next event."""
        awaited: set[Pool] = set()
        for instance in self.waiting():
            entry = self._entries[instance]
            if awaited.isdisjoint(entry.demand) and self._pools.take(entry.demand):
                entry.state = GrantState.GRANTED
                self._overtake(entry)
                return instance
            awaited.update(entry.demand)
        return None

    def waiting(self) -> list[InstanceKey]:
        """Who waits, first come those who go first."""
        waiting = [item for item in self._entries.items() if item[1].state is GrantState.WAITING]
        waiting.sort(key=lambda item: self._place(item[1]))
        return [instance for instance, _ in waiting]

    def _place(self, entry: _Entry) -> tuple[int, int]:
        """Rules 2 and 3. While each goes in its turn, another one goes first at most weight + 1 times."""
        patience = (entry.weight + 1) * (len(self._entries) - 1)
        return (-1 if entry.overtaken > patience else entry.executed), entry.asked

    def _overtake(self, granted: _Entry) -> None:
        for other in self._entries.values():
            if other.state is GrantState.WAITING and not granted.demand.keys().isdisjoint(other.demand):
                other.overtaken += 1

    def state(self, instance: InstanceKey) -> GrantState | None:
        """What an instance is doing; None if it is not there."""
        entry = self._entries.get(instance)
        return None if entry is None else entry.state

    @property
    def pools(self) -> ResourcePools:
        """What there is, and what is taken: to look at."""
        return self._pools

    def __repr__(self) -> str:
        states = [entry.state for entry in self._entries.values()]
        granted, waiting = states.count(GrantState.GRANTED), states.count(GrantState.WAITING)
        return f"<RateLimiter: {len(states)} instances, {granted} granted, {waiting} waiting>"
