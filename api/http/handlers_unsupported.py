"""Routes whose features this version does not have: they exist, so that clients are told so, not ``Not Found``."""

from __future__ import annotations

from ...engine.errors import UnsupportedError
from ..switched_off import not_yet
from .exchange import Answer, Context, HttpRequest


async def generate(context: Context, request: HttpRequest) -> Answer:
    """``POST …/generate`` and ``POST …/generate_stream``."""
    raise UnsupportedError("the generate extension is not supported by this version of the server yet")


async def tracing(context: Context, request: HttpRequest) -> Answer:
    """``GET`` and ``POST …/trace/setting``."""
    raise not_yet("trace settings")
