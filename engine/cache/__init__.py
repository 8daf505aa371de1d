"""The response cache: answers kept by what was asked (docs/reference/response-cache.md)."""

from .entry import pack_outputs, request_key, unpack_outputs
from .interface import CacheError, CacheGuard, EntryTooLargeError, ResponseCache
from .local import LocalCache
from .registry import open_cache

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
