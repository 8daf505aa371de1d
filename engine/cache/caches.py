"""The caches that come with Trireme, and which cache answers to a name: one of these, or an entry point of the group
``trireme.caches``.

The local cache is in this server's memory, shared by its models; what was not used for the longest time goes first.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import ClassVar

from ..clock import Clock
from ..errors import InvalidArgumentError
from ..metrics.family import MetricFamily
from ..plugins import Plugins, import_package
from .interface import CacheError, EntryTooLargeError, ResponseCache

OVERHEAD_BYTES = 320
"""What an entry takes besides its own bytes: its key, its place in the order, the objects around them."""

_SMALLEST_BYTES = 128
"""What Triton's cache takes before it holds anything. In one that is hardly larger nothing fits; the log says so."""

_LOCAL = "Failed to initialize LocalCache"


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

    def families(self) -> Iterator[MetricFamily]:
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
            yield MetricFamily(f"nv_cache_{name}", description, "gauge", value)

    def close(self) -> None:
        with self._lock:
            self._entries.clear()
            self._used = 0


def _size(settings: Mapping[str, str]) -> int:
    for name in settings:
        if name != "size":
            raise InvalidArgumentError(f"{_LOCAL}: it has no setting '{name}', only 'size'")
    text = settings.get("size")
    if text is None:
        raise InvalidArgumentError(f"{_LOCAL}: config didn't contain a valid 'size' field.")
    try:
        size = int(text)
    except ValueError:
        raise InvalidArgumentError(f"{_LOCAL}: 'size' is a number of bytes, not '{text}'") from None
    if size < _SMALLEST_BYTES:
        raise InvalidArgumentError(f"{_LOCAL}: 'size' is at least {_SMALLEST_BYTES} bytes, got {size}")
    return size


# The Redis cache is shared by all servers that use the same one, and there after a restart. It takes the settings of
# Triton's. Nothing expires by itself: Redis is to be given a limit (``maxmemory``) and a policy, such as
# ``allkeys-lru``, by which it makes room. Triton waits for ever for a Redis that does not answer, unless it is told
# otherwise; here no call takes longer than `DEFAULT_TIMEOUT_MS` by default.


DEFAULT_TIMEOUT_MS = 1000
DEFAULT_WAIT_MS = 100
_PREFIX = "trireme:response:"
_LARGEST_VALUE = 512 << 20
_REDIS = "Failed to initialize RedisCache"

_NUMBERS = {"port": 0, "db": 0, "connect_timeout": 0, "socket_timeout": 0, "pool_size": 1, "wait_timeout": 0}
"""Settings that are numbers, and the smallest each may be."""
_TLS_FILES = {
    "tls_cert": "ssl_certfile",
    "tls_key": "ssl_keyfile",
    "tls_cacert": "ssl_ca_certs",
    "tls_cacert_dir": "ssl_ca_path",
}
"""By our names of the settings, the library's."""
_TEXTS = ("host", "user", "password", "tls_enabled", *_TLS_FILES)


class RedisCache(ResponseCache):
    """A client of one Redis server.

    Args:
        settings: ``host``, ``port``; ``user`` and ``password``, or else the environment's
            ``TRITONCACHE_REDIS_USERNAME`` and ``TRITONCACHE_REDIS_PASSWORD``; ``db``; ``pool_size``, connections and
            calls at once (4); in milliseconds ``connect_timeout`` and ``socket_timeout`` (1000; 0 means that too) and
            ``wait_timeout`` for a connection to be free (100); ``tls_enabled`` (true), ``tls_cert``, ``tls_key``,
            ``tls_cacert``, ``tls_cacert_dir``.

    Raises:
        InvalidArgumentError: one is missing, unknown or no number.
        UnavailableError: redis-py is not installed.
    """

    def __init__(self, settings: Mapping[str, str], clock: Clock) -> None:
        super().__init__(settings, clock)
        numbers, tls = _numbers(settings), _tls(settings)
        self._library = import_package("redis", "the cache 'redis' needs", "redis")
        connect_ms = numbers.get("connect_timeout") or DEFAULT_TIMEOUT_MS
        socket_ms = numbers.get("socket_timeout") or DEFAULT_TIMEOUT_MS
        self.calls_at_once = numbers.get("pool_size", type(self).calls_at_once)
        self.wait_s = numbers.get("wait_timeout", DEFAULT_WAIT_MS) / 1000
        self.timeout_s = (connect_ms + socket_ms) / 1000
        self.largest_entry = _LARGEST_VALUE
        pool = self._library.BlockingConnectionPool(
            connection_class=self._library.SSLConnection if tls else self._library.Connection,
            max_connections=self.calls_at_once,
            timeout=self.wait_s,
            host=settings["host"],
            port=numbers["port"],
            db=numbers.get("db", 0),
            username=settings.get("user") or os.environ.get("TRITONCACHE_REDIS_USERNAME"),
            password=settings.get("password") or os.environ.get("TRITONCACHE_REDIS_PASSWORD"),
            socket_connect_timeout=connect_ms / 1000,
            socket_timeout=socket_ms / 1000,
            protocol=2,  # which every Redis speaks
            retry=self._library.retry.Retry(self._library.backoff.NoBackoff(), 0),
            **{theirs: settings[ours] for ours, theirs in _TLS_FILES.items() if tls and ours in settings},
        )
        self._client = self._library.Redis(connection_pool=pool)

    def lookup(self, key: str) -> bytes | None:
        try:
            return self._client.get(_PREFIX + key)
        except (self._library.RedisError, OSError) as error:
            raise CacheError(f"{type(error).__name__}: {error}") from error

    def insert(self, key: str, entry: bytes) -> bool:
        if len(entry) > _LARGEST_VALUE:
            raise EntryTooLargeError(f"Requested byte_size: {len(entry)} is greater than {_LARGEST_VALUE}")
        try:
            return bool(self._client.set(_PREFIX + key, entry, nx=True))
        except (self._library.RedisError, OSError) as error:
            raise CacheError(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        self._client.close()
        self._client.connection_pool.disconnect()


def _numbers(settings: Mapping[str, str]) -> dict[str, int]:
    """The settings that are numbers; all others are known."""
    known = (*_NUMBERS, *_TEXTS)
    numbers: dict[str, int] = {}
    for name, text in settings.items():
        if name not in known:
            raise InvalidArgumentError(f"{_REDIS}: it has no setting '{name}', only {', '.join(sorted(known))}")
        if name in _NUMBERS:
            if not (text.isascii() and text.isdigit()) or int(text) < _NUMBERS[name]:
                raise InvalidArgumentError(
                    f"{_REDIS}: '{name}' is a whole number, at least {_NUMBERS[name]}, not '{text}'"
                )
            numbers[name] = int(text)
    for name in ("host", "port"):
        if name not in settings:
            raise InvalidArgumentError(f"{_REDIS}: the setting '{name}' is missing")
    return numbers


def _tls(settings: Mapping[str, str]) -> bool:
    text = settings.get("tls_enabled", "false").lower()
    if text not in ("true", "false"):
        raise InvalidArgumentError(f"{_REDIS}: 'tls_enabled' is true or false, not '{settings['tls_enabled']}'")
    return text == "true"


ENTRY_POINT_GROUP = "trireme.caches"

_CACHES: Plugins[ResponseCache] = Plugins(
    ENTRY_POINT_GROUP, "cache", ResponseCache, {"local": LocalCache, "redis": RedisCache}
)


def open_cache(config: Mapping[str, Mapping[str, str]], clock: Clock) -> tuple[str, ResponseCache] | None:
    """Make the cache that a server is to use, and say its name; None if it is to use none.

    Args:
        config: settings by name of the cache.

    Raises:
        InvalidArgumentError: there is no such cache, or several are asked for.
        UnavailableError: it is installed, but cannot be imported.
        TriremeError: it does not like its settings.
    """
    if not config:
        return None
    if len(config) > 1:
        raise InvalidArgumentError(
            "found multiple cache configurations, but only a single cache is currently supported"
        )
    ((name, settings),) = config.items()
    missing = f"unable to find 'libtritoncache_{name}.so' for cache. Searched: {ENTRY_POINT_GROUP}"
    return name, _CACHES.get(name, missing)(settings, clock)
