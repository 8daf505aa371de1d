"""Routes whose features this version does not have: they exist, so that clients are told so, not ``Not Found``."""

from __future__ import annotations

from ...engine.errors import UnsupportedError
from ..switched_off import no_such_region, not_yet, region_change_refused
from .exchange import JSON, Answer, Context, HttpRequest


async def generate(context: Context, request: HttpRequest) -> Answer:
    """``POST …/generate`` and ``POST …/generate_stream``."""
    raise UnsupportedError("the generate extension is not supported by this version of the server yet")


async def tracing(context: Context, request: HttpRequest) -> Answer:
    """``GET`` and ``POST …/trace/setting``."""
    raise not_yet("trace settings")


async def region_status(context: Context, request: HttpRequest) -> Answer:
    """``GET …/status``: there are no regions, as long as none can be registered (http.md §6)."""
    match = request.match
    if match.name:
        raise no_such_region(match.kind, match.name)
    return Answer(200, JSON, b"[]")


async def change_regions(context: Context, request: HttpRequest) -> Answer:
    """``POST …/register`` and ``POST …/unregister``."""
    raise region_change_refused(context.options.allow_client_shm)
