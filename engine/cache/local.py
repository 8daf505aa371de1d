"""The local cache: in this server's memory, shared by its models; what was not used for the longest time goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import ClassVar

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from ..clock import Clock
from ..errors import InvalidArgumentError
from .interface import EntryTooLargeError, ResponseCache

OVERHEAD_BYTES = 320
"""What an entry takes besides its own bytes: its key, its place in the order, the objects around them."""

_SMALLEST_BYTES = 128
"""What Triton's cache takes before it holds anything. In one that is hardly larger nothing fits; the log says so."""

_NAME = "Failed to initialize LocalCache"


class LocalCache(ResponseCache):
    """A map with a limit to its bytes.

    Args:
        settings: ``size``, in bytes.

    Raises:
        InvalidArgumentError: there is no such setting, or another one, or it is too small.
    """

    blocking: ClassVar[bool] = False
    shared: ClassVar[bool] = False
    wait_s = 1.0

    def __init__(self, settings: Mapping[str, str], clock: Clock) -> None:
        super().__init__(settings, clock)
        self.size = _size(settings)
        self.largest_entry = max(0, self.size - OVERHEAD_BYTES)
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._used = 0
        self._hits = 0
        self._misses = 0
        self._evictions = 0
        self._lookup_ns = 0
        self._insertion_ns = 0

    def lookup(self, key: str) -> bytes | None:
        began_ns = self.clock.now_ns()
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
            else:
                self._hits += 1
                self._entries.move_to_end(key)
            self._lookup_ns += self.clock.now_ns() - began_ns
            return entry

    def insert(self, key: str, entry: bytes) -> bool:
        began_ns = self.clock.now_ns()
        needed = len(entry) + OVERHEAD_BYTES
        if needed > self.size:
            raise EntryTooLargeError(f"Requested byte_size: {needed} is greater than total cache size: {self.size}")
        with self._lock:
            if key in self._entries:
                return False
            while self._used + needed > self.size:
                _, oldest = self._entries.popitem(last=False)
                self._used -= len(oldest) + OVERHEAD_BYTES
                self._evictions += 1
            self._entries[key] = entry
            self._used += needed
            self._insertion_ns += self.clock.now_ns() - began_ns
            return True

    def families(self) -> Iterator[Metric]:
        """Triton's gauges of its local cache (docs/reference/response-cache.md#metrics-of-the-local-cache)."""
        with self._lock:
            values = {
                "util": ("Cache utilization [0.0 - 1.0]", self._used / self.size),
                "num_entries": ("Number of responses stored in response cache", len(self._entries)),
                "num_hits": ("Number of cache hits in response cache", self._hits),
                "num_misses": ("Number of cache misses in response cache", self._misses),
                "num_lookups": ("Number of cache lookups in response cache", self._hits + self._misses),
                "num_evictions": ("Number of cache evictions in response cache", self._evictions),
                "lookup_duration": (
                    "Total cache lookup duration (hit and miss), in microseconds",
                    self._lookup_ns // 1000,
                ),
                "insertion_duration": (
                    "Total cache insertion duration, in microseconds",
                    self._insertion_ns // 1000,
                ),
            }
        for name, (description, value) in values.items():
            yield GaugeMetricFamily(f"nv_cache_{name}", description, value=value)

    def close(self) -> None:
        with self._lock:
            self._entries.clear()
            self._used = 0

    def __repr__(self) -> str:
        return f"<LocalCache: {len(self._entries)} entries, {self._used} of {self.size} bytes>"


def _size(settings: Mapping[str, str]) -> int:
    for name in settings:
        if name != "size":
            raise InvalidArgumentError(f"{_NAME}: it has no setting '{name}', only 'size'")
    text = settings.get("size")
    if text is None:
        raise InvalidArgumentError(f"{_NAME}: config didn't contain a valid 'size' field.")
    try:
        size = int(text)
    except ValueError:
        raise InvalidArgumentError(f"{_NAME}: 'size' is a number of bytes, not '{text}'") from None
    if size < _SMALLEST_BYTES:
        raise InvalidArgumentError(f"{_NAME}: 'size' is at least {_SMALLEST_BYTES} bytes, got {size}")
    return size
