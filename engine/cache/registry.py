"""Which cache answers to a name: Trireme's own, and the entry points of group ``trireme.caches``."""

from __future__ import annotations

from collections.abc import Mapping

from ..clock import Clock
from ..errors import InvalidArgumentError
from ..plugins import Plugins
from .interface import ResponseCache
from .local import LocalCache
from .redis import RedisCache

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
