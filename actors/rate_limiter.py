"""The rate limiter: one for all models of a server, and each scheduler's dealings with it
(docs/reference/scheduling.md#rate-limiter).

With ``--rate-limit=execution_count`` an instance that is idle is not free to execute: it rests until there is work,
asks, and gets its batch when it is granted what its group demands. So the batch is formed as late as without a limiter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..engine.config.instance_groups import RateLimit
from ..engine.scheduling.core import InstanceId
from ..engine.scheduling.rate_limiter import GrantState
from ..engine.scheduling.rate_limiter import RateLimiter as RateLimiterCore
from ..engine.scheduling.resources import ExplicitResource

Key = tuple[int, InstanceId]
"""An instance of any model: the number of its scheduler's `Member`, and its identity there."""


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

    def withdraw(self, key: Key) -> None:
        """An instance has no work any more, and holds up no other from now on; if it has been granted, that stands."""
        if self._core.state(key) is GrantState.WAITING:
            self._core.withdraw(key)
            self._grant()

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


class Member:
    """One scheduler's dealings with it. See `Permits`, which says when."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter
        self._number = limiter.join()

    def register(self, instance: InstanceId, limit: RateLimit, device: int, granted: Callable[[], None]) -> None:
        """See `RateLimiter.register`.

        Raises:
            InvalidArgumentError: there is not enough for it.
        """
        self._limiter.register((self._number, instance), limit, device, granted)

    def unregister(self, instance: InstanceId) -> None:
        self._limiter.unregister((self._number, instance))

    def request(self, instance: InstanceId) -> None:
        self._limiter.request((self._number, instance))

    def withdraw(self, instance: InstanceId) -> None:
        self._limiter.withdraw((self._number, instance))

    def renew(self, instance: InstanceId) -> None:
        self._limiter.renew((self._number, instance))

    def release(self, instance: InstanceId, executed: bool) -> None:
        self._limiter.release((self._number, instance), executed=executed)
