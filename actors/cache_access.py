"""The server's way to its response cache: what keeps a slow or broken one from holding anybody up.

Rules:
 1. No request fails because of the cache. Whatever a cache raises is a failure of the cache, which its `CacheGuard`
    hears of, and to the request it is as if there were no entry.
 2. A cache that may block is asked on threads, `calls_at_once` of them. A request waits for a free one for `wait_s` at
    most, and at most `MOST_WAITING` do; then for its answer, for `timeout_s`. Who does not get it goes on without the
    cache. A thread that is not waited for any more counts until it comes back.
 3. Large inputs are hashed on threads as well.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import TypeVar

import outcome
import trio

from ..engine.cache import CacheError, CacheGuard, EntryTooLargeError, ResponseCache
from ..engine.clock import Clock

logger = logging.getLogger("trireme.cache")

INLINE_BYTES = 64 * 1024
"""Inputs up to this size are hashed on the event loop: that takes less time than a change of threads."""

MOST_WAITING = 1024
"""Calls that may wait for a thread."""

BYTES_PER_S = 100_000_000
"""What a thread has to do with large data gets so much more time."""

T = TypeVar("T")


class CacheAccess:
    """One server's. To be used on the event loop.

    Args:
        name: the cache's, for people.
    """

    def __init__(self, name: str, cache: ResponseCache, clock: Clock) -> None:
        self.cache = cache
        self._guard = CacheGuard(name)
        self._clock = clock
        self._threads = trio.CapacityLimiter(cache.calls_at_once)
        self._waiting = 0
        self._loads = itertools.count(1)
        self._token = trio.lowlevel.current_trio_token()

    def next_load(self) -> int:
        """A number for each load of a model, by which it does not find what an earlier one has left in this cache."""
        return next(self._loads)

    def at_once(self, nbytes: int) -> bool:
        """Whether a request with inputs of this size is looked up on the spot."""
        return not self.cache.blocking and nbytes <= INLINE_BYTES

    def claim(self) -> bool:
        """A place in the line for a thread, for one call of a method that needs one; False if there is none left, or
        the cache is not well."""
        if self._waiting >= MOST_WAITING or not self._guard.admits(self._clock.now_s()):
            return False
        self._waiting += 1
        return True

    def lookup(self, key: str) -> bytes | None:
        """The entry of this key; None also if the cache fails."""
        return self._heard(outcome.capture(self.cache.lookup, key), None)

    def insert(self, key: str, entry: bytes) -> bool:
        """Keep an entry; whether that counts as a miss: it is new, or will never fit."""
        return self._inserted(key, outcome.capture(self.cache.insert, key, entry))

    async def lookup_on_thread(self, make_key: Callable[[], str], nbytes: int) -> tuple[str, bytes | None] | None:
        """Make a key of so many bytes and look it up, on a thread for which a place in the line is claimed; None if
        there was no thread in time, or it took too long, or the cache fails."""

        def look_up() -> tuple[str, bytes | None]:
            key = make_key()
            return key, self.cache.lookup(key)

        result = await self._on_thread(look_up, nbytes)
        return None if result is None else self._heard(result, None)

    async def insert_on_thread(self, key: str, entry: bytes) -> bool:
        """See `insert`; False also if there was no thread in time."""
        if not self.claim():
            return False
        result = await self._on_thread(lambda: self.cache.insert(key, entry), len(entry))
        return False if result is None else self._inserted(key, result)

    def refuse(self, key: str, nbytes: int) -> bool:
        """Whether an entry is too large, and said so in the log."""
        largest = self.cache.largest_entry
        if nbytes > largest:
            self._say(key, f"Requested byte_size: {nbytes} is greater than total cache size: {largest}")
        return nbytes > largest

    def _say(self, key: str, reason: str) -> None:
        logger.error("Failed to insert key [%s] into response cache: %s", key, reason)

    def _inserted(self, key: str, result: outcome.Outcome[bool]) -> bool:
        if isinstance(result, outcome.Error) and isinstance(result.error, EntryTooLargeError):
            self._say(key, str(result.error))
            return True
        return self._heard(result, False)

    def _heard(self, result: outcome.Outcome[T], otherwise: T) -> T:
        """What a call came to, with rule 1 applied."""
        if isinstance(result, outcome.Value):
            self._guard.worked()
            return result.value
        assert isinstance(result, outcome.Error), "a call returns or raises"
        error = result.error
        if not isinstance(error, Exception):
            raise error
        known = isinstance(error, CacheError | TimeoutError)
        self._guard.failed(str(error) if known else f"{type(error).__name__}: {error}", self._clock.now_s())
        return otherwise

    async def _on_thread(self, work: Callable[[], T], nbytes: int) -> outcome.Outcome[T] | None:
        """What `work`, on so many bytes, comes to on a thread; an error if it takes too long, None if none was free."""
        call = object()
        waiting: list[trio.lowlevel.Task] = []

        def came_back(result: outcome.Outcome[T]) -> None:
            self._threads.release_on_behalf_of(call)
            if waiting:
                trio.lowlevel.reschedule(waiting.pop(), outcome.Value(result))

        def abandon(_raise_cancel: object) -> trio.lowlevel.Abort:
            waiting.clear()
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            with trio.move_on_after(self.cache.wait_s) as line:
                await self._threads.acquire_on_behalf_of(call)
        finally:
            self._waiting -= 1
        if line.cancelled_caught:
            return None

        def deliver(result: outcome.Outcome[T]) -> None:
            with contextlib.suppress(trio.RunFinishedError):  # the server is gone, and the waiting request with it
                self._token.run_sync_soon(came_back, result)

        waiting.append(trio.lowlevel.current_task())
        try:
            trio.lowlevel.start_thread_soon(work, deliver, "response cache")
        except RuntimeError as error:  # there are too many threads on the machine
            self._threads.release_on_behalf_of(call)
            return outcome.Error(error)
        limit_s = self.cache.timeout_s + nbytes // BYTES_PER_S
        with trio.move_on_after(limit_s):
            return await trio.lowlevel.wait_task_rescheduled(abandon)
        return outcome.Error(TimeoutError(f"no answer within {limit_s:g} s"))
