"""What both protocols answer where a feature is switched off, or is not there yet."""

from __future__ import annotations

from ..engine.errors import NotFoundError, UnsupportedError


def not_yet(features: str) -> UnsupportedError:
    """`features`, a plural, is what this version has not got."""
    return UnsupportedError(f"{features} are not supported by this version of the server yet")


def region_change_refused(allow_client_shm: bool) -> UnsupportedError:
    """Why a client cannot register or unregister shared memory (http.md §6, grpc.md §2)."""
    if allow_client_shm:
        return not_yet("shared-memory regions")
    return UnsupportedError(
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    )


def no_such_region(kind: str, name: str) -> NotFoundError:
    """The answer to a question about a shared-memory region: there are none, as long as none can be registered.

    Args:
        kind: ``system`` or ``cuda``.
    """
    return NotFoundError(f"Unable to find {kind} shared memory region: '{name}'")
