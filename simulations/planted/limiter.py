"""Bugs of the rate limiter, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...actors.rate_limiter import RateLimiter, Told
from ...engine.scheduling.rate_limiter import GrantState, RateLimiterCore


def _resource_dies_with_its_holder(original: Any, limiter: RateLimiter, message: Any) -> None:
    """What an instance had been granted is not given back when it dies."""
    if not (isinstance(message, Told) and message.event == "unregister"):
        original(limiter, message)


def _stays_in_line(original: Any, limiter: RateLimiter, message: Any) -> None:
    """An instance whose work has expired goes on waiting for its resources, and holds up others."""
    if not (isinstance(message, Told) and message.event == "withdraw"):
        original(limiter, message)


def _priorities_ignored(original: Any, limiter: RateLimiterCore[Any], instance: Any, executed: bool = True) -> None:
    """An execution counts as one, whatever the priority."""
    original(limiter, instance, executed)
    entry = limiter._entries.get(instance)
    if entry is not None and executed:
        entry.executed += 1 - entry.weight


def _small_demands_first(original: Any, limiter: RateLimiterCore[Any]) -> Any:
    """Who can be granted is, also before one that waits for more of the same."""
    del original
    for instance in limiter.waiting():
        entry = limiter._entries[instance]
        if limiter._pools.take(entry.demand):
            entry.state = GrantState.GRANTED
            limiter._overtake(entry)
            return instance
    return None


LIMITER_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "resource-dies-with-its-holder": (RateLimiter, "receive", _resource_dies_with_its_holder),
    "stays-in-line": (RateLimiter, "receive", _stays_in_line),
    "priorities-ignored": (RateLimiterCore, "release", _priorities_ignored),
    "small-demands-first": (RateLimiterCore, "next_grant", _small_demands_first),
}
