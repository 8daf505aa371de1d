"""What the rate limiter decides: whenever it is asked who may execute next, there is one right answer
(docs/reference/scheduling.md#rate-limiter)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...actors.rate_limiter import RateLimiter as LimiterActor
from ...engine.config.instance_groups import RateLimit
from ...engine.scheduling.rate_limiter import ExplicitResource, RateLimiterCore
from ..history import Handlers, Recorder
from ..invariants.base import Complain, Invariant
from ..records import record

EXECUTIONS_TO_START = 2

DeviceResource = tuple[str, int]
"""A resource, and its device; -1 for one that all devices share."""


@record
class LimiterMade:
    explicit: tuple[ExplicitResource, ...]


@record
class LimiterTold:
    """An instance is new ("register"), gone, has work, has none any more, gives back, or gives back and asks again: the
    name of the limiter's method. `executed`: it has used what it gives back."""

    what: str
    instance: Hashable
    limit: RateLimit | None = None
    device: int = 0
    executed: bool = True


@record
class LimiterGranted:
    """The limiter was asked who is next; None for none."""

    instance: Hashable | None


def observed_core(recorder: Recorder) -> type[RateLimiterCore[Any]]:
    """The core of a rate limiter that tells the recorder what it is told, and what it grants."""

    class ObservedCore(RateLimiterCore[Any]):
        def __init__(self, explicit: Iterable[ExplicitResource] = ()) -> None:
            explicit = tuple(explicit)
            super().__init__(explicit)
            recorder.tell(LimiterMade(explicit))

        def register(self, instance: Hashable, limit: RateLimit, device: int) -> None:
            super().register(instance, limit, device)
            recorder.tell(LimiterTold("register", instance, limit, device))

        def unregister(self, instance: Hashable) -> None:
            super().unregister(instance)
            recorder.tell(LimiterTold("unregister", instance))

        def request(self, instance: Hashable) -> None:
            super().request(instance)
            recorder.tell(LimiterTold("request", instance))

        def withdraw(self, instance: Hashable) -> None:
            super().withdraw(instance)
            recorder.tell(LimiterTold("withdraw", instance))

        def release(self, instance: Hashable, executed: bool = True) -> None:
            super().release(instance, executed)
            recorder.tell(LimiterTold("release", instance, executed=executed))

        def next_grant(self) -> Any:
            instance = super().next_grant()
            recorder.tell(LimiterGranted(instance))
            return instance

    return ObservedCore


def observed_limiter(recorder: Recorder) -> type[LimiterActor]:
    """The rate limiter actor, with such a core."""

    class ObservedLimiter(LimiterActor):
        core_class = observed_core(recorder)

    return ObservedLimiter


@dataclass(slots=True)
class _Instance:
    """`asked`: the number of its request, 0 for none; `overtaken`: grants to others since then that it waited for."""

    demand: dict[DeviceResource, int]
    weight: int
    executed: int
    asked: int = 0
    granted: bool = False
    overtaken: int = 0


@dataclass(slots=True)
class _Limiter:
    explicit: tuple[ExplicitResource, ...]
    instances: dict[Hashable, _Instance] = field(default_factory=dict)
    requests: int = 0

    def size(self, resource: DeviceResource) -> int:
        """What is given, or as much as the most demanding instance needs."""
        name, device = resource
        if self.explicit:
            return max(each.count for each in self.explicit if each.name == name and each.device in (None, device))
        return max(each.demand.get(resource, 0) for each in self.instances.values())

    def free(self, demand: Mapping[DeviceResource, int]) -> bool:
        """Whether all of it is there: what those have who were granted does not count."""
        granted = [each for each in self.instances.values() if each.granted]
        return all(
            sum(each.demand.get(resource, 0) for each in granted) + count <= self.size(resource)
            for resource, count in demand.items()
        )

    def right(self) -> Hashable | None:
        """Who has executed least, by weight, is first, unless it was overtaken too often; then who asked first. The
        first that has to wait holds up those that demand something of the same."""
        waiting = [item for item in self.instances.items() if item[1].asked and not item[1].granted]
        others = len(self.instances) - 1

        def place(item: tuple[Hashable, _Instance]) -> tuple[int, int]:
            each = item[1]
            return -1 if each.overtaken > (each.weight + 1) * others else each.executed, each.asked

        awaited: set[DeviceResource] = set()
        for instance, each in sorted(waiting, key=place):
            if awaited.isdisjoint(each.demand) and self.free(each.demand):
                return instance
            awaited |= each.demand.keys()
        return None


class RightGrants(Invariant):
    """Only the instance whose turn it is is granted what it demands, and it is granted as soon as it may be."""

    name = "the rate limiter grants what the rules say"

    def __init__(self, complain: Complain) -> None:
        super().__init__(complain)
        self._limiter = _Limiter(())
        self._asked = True  # who is next, since something happened

    def handlers(self) -> Handlers:
        return {LimiterMade: self._made, LimiterTold: self._told, LimiterGranted: self._granted}

    def _made(self, event: LimiterMade) -> None:
        self._limiter = _Limiter(event.explicit)

    def _told(self, event: LimiterTold) -> None:
        self._asked = False
        limiter = self._limiter
        if event.what == "register":
            assert event.limit is not None
            demand = {(each.name, -1 if each.is_global else event.device): each.count for each in event.limit.resources}
            weight = max(1, event.limit.priority)
            limiter.instances[event.instance] = _Instance(demand, weight, EXECUTIONS_TO_START * weight)
            return
        instance = limiter.instances.get(event.instance)
        if instance is None:
            return
        match event.what:
            case "unregister":
                del limiter.instances[event.instance]
            case "request" if not instance.asked:
                limiter.requests += 1
                instance.asked, instance.overtaken = limiter.requests, 0
            case "withdraw" if not instance.granted:
                instance.asked = 0
            case "release":
                instance.asked, instance.granted = 0, False
                instance.executed += instance.weight * event.executed
            case _:
                return

    def _granted(self, event: LimiterGranted) -> None:
        limiter = self._limiter
        right = limiter.right()
        if event.instance != right:
            self.broken(f"{event.instance or 'no instance'} was granted what it demands; right is {right or 'none'}")
            return
        self._asked = right is None
        granted = limiter.instances.get(right) if right is not None else None
        if granted is None:
            return
        granted.granted = True
        for other in limiter.instances.values():
            if other.asked and not other.granted and not other.demand.keys().isdisjoint(granted.demand):
                other.overtaken += 1

    def instant_over(self, now_ns: int) -> None:
        right = None if self._asked else self._limiter.right()
        if right is not None:
            self.broken(f"{right} might be granted what it demands at {now_ns} ns, and is not")
