"""The paths of OpenAI's interface, and the application that has no others (docs/openai.md)."""

from __future__ import annotations

import re

from ...actors.facade import Facade
from ...engine.errors import RefusalReason
from ..http.app import HttpApplication
from ..http.exchange import JSON, Answer, BodyKind, Context, Exchange, Handler, HttpOptions, HttpRequest, Match, Route
from . import handlers, vectors
from .errors import openai_form, refusal

PREFIX = "/v1"
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def _route(template: str, pattern: str, category: str, body: BodyKind, **by_method: Handler) -> Route:
    answering = {method: handlers.answering(handler) for method, handler in by_method.items()}
    return Route(
        template,
        re.compile((PREFIX + pattern).encode()),
        answering,
        category,
        JSON,
        body,
        names_late=True,
        form=openai_form,
    )


def _post(path: str, handler: Handler) -> Route:
    return _route(f"{PREFIX}{path}", path, "inference", BodyKind.JSON, POST=handler)


def _unknown(exchange: Exchange) -> Answer:
    path = exchange.path.partition(b"?")[0].decode("utf-8", "replace")
    return refusal(404, f"Unknown request URL: {exchange.method} {path}", code="unknown_url")


async def _show_unknown(context: Context, request: HttpRequest) -> Answer:
    """Any other path below the prefix, of OpenAI's interface or not."""
    context.server.note_refusal(RefusalReason.INVALID)
    return _unknown(request.exchange)


OPENAI_ROUTES = (
    _route(f"{PREFIX}/models", "/models", "metadata", BodyKind.MANAGEMENT, GET=handlers.list_models),
    _route(
        f"{PREFIX}/models/{{model}}", "/models/(?P<name>.+)", "metadata", BodyKind.MANAGEMENT, GET=handlers.show_model
    ),
    _post("/chat/completions", handlers.chat_completions),
    _post("/completions", handlers.completions),
    _post("/embeddings", vectors.embeddings),
    _post("/rerank", vectors.rerank),
    _route(f"{PREFIX}/…", "/.*", "inference", BodyKind.MANAGEMENT, **dict.fromkeys(_METHODS, _show_unknown)),
)
"""As in `api.http.routes.ROUTES`."""


class OpenAiApplication(HttpApplication):
    """The front end at a port of its own."""

    def __init__(self, server: Facade, options: HttpOptions) -> None:
        super().__init__(server, options, routes=OPENAI_ROUTES)
        self.immediate = None

    def find(self, exchange: Exchange) -> Match | Answer:
        match = super().find(exchange)
        return _unknown(exchange) if isinstance(match, Answer) else match
