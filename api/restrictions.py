"""Calls that need a key: ``--http-restricted-api`` and ``--grpc-restricted-protocol`` (http.md §8, grpc.md §7)."""

from __future__ import annotations

from dataclasses import dataclass

RESTRICTABLE = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
"""Categories of calls that a restriction can name."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """Calls of these categories need this header with this value."""

    categories: tuple[str, ...]
    key: str
    value: str
