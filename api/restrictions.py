"""Calls that need a key: ``--http-restricted-api`` and ``--grpc-restricted-protocol``
(docs/reference/http.md#restricted-apis, docs/reference/grpc.md#restricted-protocols)."""

from __future__ import annotations

import hmac
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

    def admits(self, given: bytes | None) -> bool:
        """Whether this is the value; how long that takes does not tell how much of it is right.

        Args:
            given: of the header; None if there is none.
        """
        return given is not None and hmac.compare_digest(given, self.value.encode("utf-8", "surrogateescape"))
