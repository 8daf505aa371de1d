"""The interface of a response cache: a map from keys to bytes that may forget whatever it likes.

A cache is a class found by name; those that do not come with Trireme through the entry-point group ``trireme.caches``.
There is one object for the whole server. Its methods may be called from several threads at a time.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

from ..clock import Clock
from ..errors import InternalError
from ..metrics.family import MetricFamily


class CacheError(InternalError):
    """The cache could not do what it was asked to; the request goes on without it."""


class EntryTooLargeError(CacheError):
    """The cache is well, but this entry will never fit."""


class ResponseCache(ABC):
    """Where responses are kept.

    Args:
        settings: ``--cache-config``, by name of the setting.

    Attributes:
        blocking: a call may take longer than looking something up in memory, so it is made on a thread.
        shared: entries may come from another server, or from this one before it was started.
        calls_at_once: most calls of a blocking cache in flight.
        wait_s: most seconds that a request waits for one of these to be free; then it goes on without the cache.
        timeout_s: most seconds that it waits for the answer; then it goes on, and the cache counts as having failed.
        largest_entry: most bytes of an entry.

    Raises:
        TriremeError: the settings are wrong, or a library is missing.
    """

    blocking: ClassVar[bool] = True
    shared: ClassVar[bool] = True
    calls_at_once: int = 4
    wait_s: float = 0.1
    timeout_s: float = 1.0
    largest_entry: int = 1 << 62

    def __init__(self, settings: Mapping[str, str], clock: Clock) -> None:
        self.settings = dict(settings)
        self.clock = clock

    @abstractmethod
    def lookup(self, key: str) -> bytes | None:
        """The entry of this key, None if there is none.

        Raises:
            CacheError: the cache cannot tell.
        """

    @abstractmethod
    def insert(self, key: str, entry: bytes) -> bool:
        """Keep an entry; False, and nothing changes, if the key has one.

        Raises:
            EntryTooLargeError: it is larger than the cache.
            CacheError: it is not kept, for another reason.
        """

    def families(self) -> Iterable[MetricFamily]:
        """What the metrics show about this cache; called on the event loop."""
        return ()

    def close(self) -> None:
        """Give back what the cache holds. Called once, after the last model has gone."""


# Whether to ask a cache at all, after it has failed.
#
# Rules:
#  1. A cache that works is asked.
#  2. One that has failed is left alone for `RETRY_S`; then one request asks, and the others only when that one got an
#     answer.
#  3. The log says once that it is gone, and once that it is back.
#
# States: WORKING ─(failed)▶ RESTING ─(`RETRY_S` over, a request comes)▶ TRYING ─(worked)▶ WORKING or ─(failed)▶
# RESTING. TRYING is RESTING begun anew, so a try without a result costs another `RETRY_S`.


logger = logging.getLogger("trireme.cache")

RETRY_S = 1.0


class CacheGuard:
    """One cache's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rests_until_s: float | None = None

    def admits(self, now_s: float) -> bool:
        """Whether the request at hand may ask the cache."""
        if self._rests_until_s is None:
            return True
        if now_s < self._rests_until_s:
            return False
        self._rests_until_s = now_s + RETRY_S
        return True

    def worked(self) -> None:
        """The cache has answered."""
        if self._rests_until_s is not None:
            self._rests_until_s = None
            logger.info("response cache '%s' answers again", self._name)

    def failed(self, reason: str, now_s: float) -> None:
        """It has not, for this reason."""
        if self._rests_until_s is None:
            logger.error("response cache '%s' fails, requests go on without it: %s", self._name, reason)
        self._rests_until_s = now_s + RETRY_S
