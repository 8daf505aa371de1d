"""Server health and server metadata (docs/reference/http.md#health, docs/reference/http.md#server-metadata)."""

from __future__ import annotations

from ...engine.errors import UnavailableError
from . import json_writer
from .exchange import JSON, TEXT, Answer, Context, HttpRequest


async def live(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/health/live``."""
    refuse_when_exiting(context)
    return Answer(200 if context.server.live() else 400, TEXT)


async def ready(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2/health/ready``."""
    refuse_when_exiting(context)
    return Answer(200 if await context.server.check_ready() else 400, TEXT)


async def metadata(context: Context, request: HttpRequest) -> Answer:
    """``GET /v2``."""
    about = context.server.metadata()
    body = {"name": about.name, "version": about.version, "extensions": list(about.extensions)}
    return Answer(200, JSON, json_writer.dumps(body))


def refuse_when_exiting(context: Context) -> None:
    """Health questions are refused once the server shuts down.

    Raises:
        UnavailableError: it does.
    """
    if context.server.exiting:
        raise UnavailableError("Server exiting")
