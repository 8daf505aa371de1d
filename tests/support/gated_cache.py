"""A response cache that answers when the test says so, for the entry-point group ``trireme.caches``."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest

from trireme.engine import plugins
from trireme.engine.cache.caches import ENTRY_POINT_GROUP
from trireme.engine.cache.interface import ResponseCache
from trireme.engine.clock import Clock

PATIENCE_S = 20.0


class GatedCache(ResponseCache):
    """Answers while its gate is open, and raises what it is told to.

    Attributes:
        latest: the cache made last.
        asked: lookups begun.
    """

    latest: ClassVar[GatedCache]
    calls_at_once = 2
    wait_s = PATIENCE_S
    timeout_s = PATIENCE_S

    def __init__(self, settings: Mapping[str, str], clock: Clock) -> None:
        super().__init__(settings, clock)
        self.gate = threading.Event()
        self.error: Exception | None = None
        self.asked = 0
        self.entries: dict[str, bytes] = {}
        self.closed = False
        type(self).latest = self

    def lookup(self, key: str) -> bytes | None:
        self.asked += 1
        assert self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        return self.entries.get(key)

    def insert(self, key: str, entry: bytes) -> bool:
        if self.error is not None:
            raise self.error
        new = key not in self.entries
        self.entries.setdefault(key, entry)
        return new

    def close(self) -> None:
        self.closed = True


def install_gated_cache(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """Have it found by its name; the configuration that asks for it."""
    entry = EntryPoint("gated", f"{__name__}:GatedCache", ENTRY_POINT_GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group, name: [entry] if name == entry.name else [])
    return {"gated": {}}
