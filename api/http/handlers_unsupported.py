"""Routes whose features this version does not have: they exist, so that clients are told so, not ``Not Found``."""

from __future__ import annotations

from ...engine.errors import NotFoundError, UnsupportedError
from .exchange import JSON, Answer, Context, HttpRequest


async def generate(context: Context, request: HttpRequest) -> Answer:
    """``POST …/generate`` and ``POST …/generate_stream``."""
    raise UnsupportedError("the generate extension is not supported by this version of the server yet")


async def tracing(context: Context, request: HttpRequest) -> Answer:
    """``GET`` and ``POST …/trace/setting``."""
    raise UnsupportedError("trace settings are not supported by this version of the server yet")


async def logging_settings(context: Context, request: HttpRequest) -> Answer:
    """``GET`` and ``POST /v2/logging``."""
    raise UnsupportedError("log settings are not supported by this version of the server yet")


async def region_status(context: Context, request: HttpRequest) -> Answer:
    """``GET …/status``: there are no regions, as long as none can be registered (http.md §6)."""
    match = request.match
    if match.name:
        raise NotFoundError(f"Unable to find {match.kind} shared memory region: '{match.name}'")
    return Answer(200, JSON, b"[]")


async def change_regions(context: Context, request: HttpRequest) -> Answer:
    """``POST …/register`` and ``POST …/unregister``."""
    if not context.options.allow_client_shm:
        raise UnsupportedError(
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
        )
    raise UnsupportedError("shared-memory regions are not supported by this version of the server yet")
