"""What both protocols answer where a feature is switched off."""

from __future__ import annotations

from ..engine.errors import UnsupportedError


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
