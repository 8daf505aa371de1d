"""Response caches that take time to answer, or fail, in virtual time.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import ClassVar, TypeVar

import outcome
import trio

from ..actors.cache_access import CacheAccess
from ..engine.cache import CacheError, LocalCache, ResponseCache
from ..engine.clock import Clock
from .plan import Plan

SHARE = 0.6
"""Of the runs with a cache."""

LATE, FAILS = 7, 13
"""One in so many calls comes too late, or fails, if any may."""

T = TypeVar("T")


def slowed(plan: Plan) -> Plan:
    """The plan, whose cache takes its time; not where ensembles use it, or the budget is small, which would hide when
    requests reach their door."""
    chance = Random(f"slow cache {plan.seed}")
    hidden = any(model.steps and model.cached for model in plan.models) or plan.max_inflight_bytes
    if chance.random() >= SHARE or not plan.cache_bytes or hidden or len(plan.requests) > plan.max_inflight_requests:
        return plan
    shortest_ns = min(model.fixed_ns for model in plan.models)
    cache_ns = round(shortest_ns * math.exp(chance.uniform(math.log(0.01), math.log(2.0))))
    return replace(plan, cache_ns=max(1_000, cache_ns), cache_fails=chance.random() < 0.3)


class SlowCache(LocalCache):
    """A map in memory that says that it may block."""

    blocking: ClassVar[bool] = True


class SlowCacheAccess(CacheAccess):
    """The server's way to it: what a thread would do takes virtual time."""

    def __init__(self, plan: Plan, name: str, cache: ResponseCache, clock: Clock) -> None:
        slow = SlowCache(cache.settings, clock)
        slow.calls_at_once = 1 + plan.seed % 4
        slow.wait_s, slow.timeout_s = plan.cache_ns * 2e-9, plan.cache_ns * 6e-9
        super().__init__(name, slow, clock)
        self._call_s = plan.cache_ns / 1e9
        self._fails = plan.cache_fails
        self._calls = itertools.count()

    async def _on_thread(self, work: Callable[[], T], nbytes: int) -> outcome.Outcome[T] | None:
        call = object()
        try:
            with trio.move_on_after(self.cache.wait_s) as line:
                await self._threads.acquire_on_behalf_of(call)
        finally:
            self._waiting -= 1
        if line.cancelled_caught:
            return None
        number = next(self._calls)
        try:
            if self._fails and number % LATE == LATE - 1:
                await trio.sleep(self.cache.timeout_s)
                return outcome.Error(TimeoutError("no answer"))
            await trio.sleep(self._call_s * (1 + number % 3))
            if self._fails and number % FAILS == FAILS - 1:
                return outcome.Error(CacheError("it fails"))
            return outcome.capture(work)
        finally:
            self._threads.release_on_behalf_of(call)
