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

States of an instance, and what leads from one to the next:

    IDLE ─(request)▶ WAITING ─(next_grant)▶ GRANTED ─(release)▶ IDLE
    GRANTED ─(renew)▶ WAITING, WAITING ─(withdraw)▶ IDLE, any ─(unregister)▶ gone
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from ..config.instance_groups import RateLimit
from .resources import ExplicitResource, Pool, ResourcePools, demanded

Instance = TypeVar("Instance", bound=Hashable)


EXECUTIONS_TO_START = 2
"""Rule 2: initialisation and warm-up."""


class GrantState(enum.Enum):
    IDLE = "idle"
    WAITING = "waiting"
    GRANTED = "granted"


class _Entry:
    """What is known of an instance.

    Attributes:
        demand: units by pool.
        weight: its priority.
        executed: executions so far, those to start included, times weight.
        asked: number of its latest request.
        overtaken: how many that share a pool with it were granted since then.
    """

    __slots__ = ("asked", "demand", "executed", "overtaken", "state", "weight")

    def __init__(self, demand: dict[Pool, int], weight: int) -> None:
        self.demand = demand
        self.weight = weight
        self.executed = EXECUTIONS_TO_START * weight
        self.asked = 0
        self.overtaken = 0
        self.state = GrantState.IDLE


class RateLimiter(Generic[Instance]):
    """Grants resources to instances of all models of a server (``--rate-limit=execution_count``).

    Instances are named by any hashable values, unique over restarts.

    Args:
        explicit: what there is (``--rate-limit-resource``). If empty, each pool holds as much as the most demanding of
            the instances needs; if not, what is not named does not exist.
    """

    def __init__(self, explicit: Iterable[ExplicitResource] = ()) -> None:
        self._pools = ResourcePools(explicit)
        self._entries: dict[Instance, _Entry] = {}
        self._requests = 0

    def register(self, instance: Instance, limit: RateLimit, device: int) -> None:
        """A new instance, on this device (0 unless it is on a GPU).

        Raises:
            InvalidArgumentError: there is not enough for it or, now, for another one; nothing has changed then.
        """
        assert instance not in self._entries, f"{instance!r} is registered twice"
        demand = demanded(limit, device)
        self._pools.resize([*(entry.demand for entry in self._entries.values()), demand])
        self._entries[instance] = _Entry(demand, max(1, limit.priority))

    def unregister(self, instance: Instance) -> None:
        """An instance is gone, whatever it was doing. Unknown ones are fine."""
        entry = self._entries.pop(instance, None)
        if entry is None:
            return
        if entry.state is GrantState.GRANTED:
            self._pools.give_back(entry.demand)
        self._pools.resize([other.demand for other in self._entries.values()])

    def request(self, instance: Instance) -> None:
        """An instance has work, and wants to execute. Fine for one that waits already, or is gone."""
        entry = self._entries.get(instance)
        if entry is None or entry.state is not GrantState.IDLE:
            return
        self._requests += 1
        entry.asked = self._requests
        entry.overtaken = 0
        entry.state = GrantState.WAITING

    def withdraw(self, instance: Instance) -> None:
        """A waiting instance has no work any more. Fine for any other."""
        entry = self._entries.get(instance)
        if entry is not None and entry.state is GrantState.WAITING:
            entry.state = GrantState.IDLE

    def release(self, instance: Instance, executed: bool = True) -> None:
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

    def renew(self, instance: Instance) -> None:
        """An instance gives back what it was granted, having executed, and wants to execute again (rule 6)."""
        self.release(instance)
        self.request(instance)

    def next_grant(self) -> Instance | None:
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

    def waiting(self) -> list[Instance]:
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

    def state(self, instance: Instance) -> GrantState | None:
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
