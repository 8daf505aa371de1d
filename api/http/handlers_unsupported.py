"""Routes whose features this version does not have: they exist, so that clients are told so, not ``Not Found``."""

from __future__ import annotations

from ..switched_off import not_yet
from .exchange import Answer, Context, HttpRequest


async def tracing(context: Context, request: HttpRequest) -> Answer:
    """``GET`` and ``POST …/trace/setting``."""
    raise not_yet("trace settings")
