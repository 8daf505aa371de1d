"""The rate limiter: one for all models of a server, and each scheduler's dealings with it
(docs/reference/scheduling.md#rate-limiter).

With ``--rate-limit=execution_count`` an instance that is idle is not free to execute: it rests until there is work,
asks, and gets its batch when it is granted what its group demands. So the batch is formed as late as without a limiter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..engine.config.instance_groups import RateLimit
from ..engine.scheduling.core import InstanceId, SchedulerCore
from ..engine.scheduling.rate_limiter import GrantState
from ..engine.scheduling.rate_limiter import RateLimiter as RateLimiterCore
from ..engine.scheduling.resources import ExplicitResource

Key = tuple[int, InstanceId]
"""An instance of any model: the number of its scheduler's `Permits`, and its identity there."""


class RateLimiter:
    """Grants resources. Synchronous, so nothing can come between a decision and its being told.

    Args:
        explicit: ``--rate-limit-resource``.
    """

    def __init__(self, explicit: Iterable[ExplicitResource] = ()) -> None:
        self._core: RateLimiterCore[Key] = RateLimiterCore(explicit)
        self._granted: dict[Key, Callable[[], None]] = {}
        self._members = 0

    def join(self) -> int:
        """A number for a scheduler."""
        self._members += 1
        return self._members

    def register(self, key: Key, limit: RateLimit, device: int, granted: Callable[[], None]) -> None:
        """A new instance; `granted` is called each time it may execute.

        Raises:
            InvalidArgumentError: there is not enough for it.
        """
        self._core.register(key, limit, device)
        self._granted[key] = granted

    def unregister(self, key: Key) -> None:
        """An instance is gone."""
        self._granted.pop(key, None)
        self._core.unregister(key)
        self._grant()

    def request(self, key: Key) -> None:
        """An instance has work."""
        self._core.request(key)
        self._grant()

    def withdraw(self, key: Key) -> bool:
        """An instance has no work any more, and holds up no other from now on. False if it has been granted already."""
        if self._core.state(key) is not GrantState.WAITING:
            return False
        self._core.withdraw(key)
        self._grant()
        return True

    def renew(self, key: Key) -> None:
        """An instance has executed and has more work: it gives back what it was granted, and asks again."""
        self._core.renew(key)
        self._grant()

    def release(self, key: Key, *, executed: bool) -> None:
        """An instance gives back what it was granted."""
        self._core.release(key, executed)
        self._grant()

    def _grant(self) -> None:
        while (key := self._core.next_grant()) is not None:
            self._granted[key]()

    def __repr__(self) -> str:
        return repr(self._core)


class Permits:
    """Which of one scheduler's instances may take a batch.

    An instance that is idle is *resting*; when there is work for it it is *asking*, then *granted*. A granted one that
    gets no batch (the queue waits for its delay) gives the grant back at once, and asks again when something has
    changed. One that asks for nothing any more (its request expired) says so: it might hold up others.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter
        self._number = limiter.join()
        self._resting: dict[InstanceId, None] = {}
        self._asking: dict[InstanceId, None] = {}
        self._granted: dict[InstanceId, None] = {}
        self._executing: set[InstanceId] = set()

    def attach(self, instance: InstanceId, limit: RateLimit, device: int, granted: Callable[[], None]) -> None:
        """A new instance.

        Raises:
            InvalidArgumentError: there is not enough for it.
        """
        self._limiter.register((self._number, instance), limit, device, granted)

    def detach(self, instance: InstanceId) -> None:
        """An instance takes no more batches."""
        self._resting.pop(instance, None)
        self._granted.pop(instance, None)
        self._asking.pop(instance, None)
        self._executing.discard(instance)
        self._limiter.unregister((self._number, instance))

    def idle(self, instance: InstanceId, core: SchedulerCore) -> None:
        """An instance is new, or done with its batch. If there is more work for it, it asks again at once."""
        if instance not in self._executing:
            self._resting[instance] = None
            return
        self._executing.remove(instance)
        if core.wants(instance, len(self._granted) + len(self._asking)):
            self._asking[instance] = None
            self._limiter.renew((self._number, instance))
        else:
            self._resting[instance] = None
            self._limiter.release((self._number, instance), executed=True)

    def ask(self, core: SchedulerCore, news: bool) -> None:
        """Withdraw instances that have no work any more, and ask for those that have some, if that has changed."""
        others = len(self._granted)
        resting = list(self._resting) if news else []
        for instance in list(self._asking):
            if not core.wants(instance, others) and self._limiter.withdraw((self._number, instance)):
                del self._asking[instance]
                self._resting[instance] = None
            else:
                others += 1
        for instance in resting:
            if core.wants(instance, others):
                others += 1
                del self._resting[instance]
                self._asking[instance] = None
                self._limiter.request((self._number, instance))

    def grant(self, instance: InstanceId) -> bool:
        """An instance was granted what it asked for; False if it has gone in the meantime."""
        if instance not in self._asking:
            return False
        del self._asking[instance]
        self._granted[instance] = None
        return True

    def use(self, instance: InstanceId) -> None:
        """A granted instance has got a batch."""
        del self._granted[instance]
        self._executing.add(instance)

    def give_back(self, core: SchedulerCore) -> None:
        """Instances that were granted and got no batch rest again."""
        while self._granted:
            instance, _ = self._granted.popitem()
            core.instance_paused(instance)
            self._resting[instance] = None
            self._limiter.release((self._number, instance), executed=False)
