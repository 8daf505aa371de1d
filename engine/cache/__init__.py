"""The response cache: answers kept by what was asked (docs/reference/response-cache.md)."""

from .caches import LocalCache, open_cache
from .entry import pack_outputs, request_key, unpack_outputs
from .interface import CacheError, CacheGuard, EntryTooLargeError, ResponseCache

__all__ = [
    "CacheError",
    "CacheGuard",
    "EntryTooLargeError",
    "LocalCache",
    "ResponseCache",
    "open_cache",
    "pack_outputs",
    "request_key",
    "unpack_outputs",
]
