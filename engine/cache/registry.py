"""Which cache answers to a name: Trireme's own, and the entry points of group ``trireme.caches``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points

from ..clock import Clock
from ..errors import InvalidArgumentError, UnavailableError
from .interface import ResponseCache
from .local import LocalCache
from .redis import RedisCache

ENTRY_POINT_GROUP = "trireme.caches"

_OWN: Mapping[str, type[ResponseCache]] = {"local": LocalCache, "redis": RedisCache}


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
    make: Callable[[Mapping[str, str], Clock], ResponseCache] = _OWN.get(name) or _find(name)
    return name, make(settings, clock)


def _find(name: str) -> type[ResponseCache]:
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return _import(entry_point)
    raise InvalidArgumentError(f"unable to find 'libtritoncache_{name}.so' for cache. Searched: {ENTRY_POINT_GROUP}")


def _import(entry_point: EntryPoint) -> type[ResponseCache]:
    try:
        found = entry_point.load()
    except (ImportError, AttributeError, OSError) as error:
        raise UnavailableError(
            f"cache '{entry_point.name}' cannot be imported from '{entry_point.value}': {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, ResponseCache)):
        raise UnavailableError(
            f"cache '{entry_point.name}': '{entry_point.value}' is not a subclass of the interface's ResponseCache"
        )
    return found
