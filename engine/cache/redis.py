"""The Redis cache: shared by all servers that use the same one, and there after a restart.

It takes the settings of Triton's. Nothing expires by itself: Redis is to be given a limit (``maxmemory``) and a policy,
such as ``allkeys-lru``, by which it makes room. Triton waits for ever for a Redis that does not answer, unless it is
told otherwise; here no call takes longer than `DEFAULT_TIMEOUT_MS` by default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..clock import Clock
from ..errors import InvalidArgumentError
from ..plugins import import_package
from .interface import CacheError, EntryTooLargeError, ResponseCache

DEFAULT_TIMEOUT_MS = 1000
DEFAULT_WAIT_MS = 100
_PREFIX = "trireme:response:"
_LARGEST_VALUE = 512 << 20
_NAME = "Failed to initialize RedisCache"

_REQUIRED = ("host", "port")
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
        numbers = _numbers(settings)
        self._library = import_package("redis", "the cache 'redis' needs", "redis")
        connect_ms = numbers.get("connect_timeout") or DEFAULT_TIMEOUT_MS
        socket_ms = numbers.get("socket_timeout") or DEFAULT_TIMEOUT_MS
        self.calls_at_once = numbers.get("pool_size", type(self).calls_at_once)
        self.wait_s = numbers.get("wait_timeout", DEFAULT_WAIT_MS) / 1000
        self.timeout_s = (connect_ms + socket_ms) / 1000
        self.largest_entry = _LARGEST_VALUE
        pool = self._library.BlockingConnectionPool(
            connection_class=self._library.SSLConnection if _tls(settings) else self._library.Connection,
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
            **_tls_files(settings),
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

    def __repr__(self) -> str:
        return f"<RedisCache at {self.settings['host']}:{self.settings['port']}>"


def _numbers(settings: Mapping[str, str]) -> dict[str, int]:
    """The settings that are numbers; all others are known."""
    known = (*_NUMBERS, *_TEXTS)
    numbers: dict[str, int] = {}
    for name, text in settings.items():
        if name not in known:
            raise InvalidArgumentError(f"{_NAME}: it has no setting '{name}', only {', '.join(sorted(known))}")
        if name in _NUMBERS:
            if not (text.isascii() and text.isdigit()) or int(text) < _NUMBERS[name]:
                raise InvalidArgumentError(
                    f"{_NAME}: '{name}' is a whole number, at least {_NUMBERS[name]}, not '{text}'"
                )
            numbers[name] = int(text)
    for name in _REQUIRED:
        if name not in settings:
            raise InvalidArgumentError(f"{_NAME}: the setting '{name}' is missing")
    return numbers


def _tls(settings: Mapping[str, str]) -> bool:
    text = settings.get("tls_enabled", "false").lower()
    if text not in ("true", "false"):
        raise InvalidArgumentError(f"{_NAME}: 'tls_enabled' is true or false, not '{settings['tls_enabled']}'")
    return text == "true"


def _tls_files(settings: Mapping[str, str]) -> dict[str, str]:
    if not _tls(settings):
        return {}
    return {theirs: settings[ours] for ours, theirs in _TLS_FILES.items() if ours in settings}
