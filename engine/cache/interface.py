"""The interface of a response cache: a map from keys to bytes that may forget whatever it likes.

A cache is a class found by name; those that do not come with Trireme through the entry-point group ``trireme.caches``.
There is one object for the whole server. Its methods may be called from several threads at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

from prometheus_client.metrics_core import Metric

from ..clock import Clock
from ..errors import InternalError


class CacheError(InternalError):
    """The cache could not do what it was asked to; the request goes on without it."""


class EntryTooLargeError(CacheError):
    """The cache is well, but this entry will never fit."""


class ResponseCache(ABC):
    """Where responses are kept.

    Args:
        settings: ``--cache-config``, by name of the setting.
        clock: for measurements.

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

    def families(self) -> Iterable[Metric]:
        """What the metrics show about this cache; called on the event loop."""
        return ()

    def close(self) -> None:
        """Give back what the cache holds. Called once, after the last model has gone."""
