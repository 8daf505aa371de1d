"""What clients are not allowed to do, in both protocols: changes of shared memory, and calls that need a key
(``--http-restricted-api`` and ``--grpc-restricted-protocol``: docs/reference/http.md#restricted-apis,
docs/reference/grpc.md#restricted-protocols).
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from ..engine.errors import UnsupportedError

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


def refuse_region_changes(allow_client_shm: bool) -> None:
    """Clients register and unregister shared memory only where they are allowed to
    (docs/reference/shared-memory.md#regions).

    Raises:
        UnsupportedError: they are not.
    """
    if not allow_client_shm:
        raise UnsupportedError(
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
        )
