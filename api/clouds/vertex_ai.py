"""The front end for Vertex AI: one path for predictions and one for health, which the platform names; by a header, a
prediction asks for another call of the HTTP interface (docs/reference/cloud-front-ends.md#vertex-ai)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...actors.facade import Facade
from ...engine.access.callers import Right
from ...engine.description import IndexEntry
from ...engine.errors import InvalidArgumentError
from ..access import needed
from ..http.exchange import TEXT, Answer, BodyKind, Context, Exchange, HttpOptions, HttpRequest, Match, Route
from ..http.infer.handler import infer
from ..http.routes import Router
from .application import REDIRECT, CloudApplication, binary_media, health_route, no_such_path, route_to

_MEDIA = binary_media("vertex-ai")
_METRICS = b"metrics"
_READ = frozenset(("health", "metadata", "model-config", "statistics"))
"""Categories of routes that a redirection leads to as GET."""

Metrics = Callable[[], bytes]
"""The page of metrics."""


@dataclass(frozen=True, slots=True)
class VertexAiOptions:
    """What the platform sets in the environment, and the command line.

    Attributes:
        predict, health: regular expressions (RE2) that whole paths must match.
        default_model: empty for the only model that is ready.
    """

    predict: str
    health: str
    default_model: str = ""


def default_model(wanted: str, ready: Sequence[IndexEntry]) -> str:
    """The model that predictions are for.

    Args:
        wanted: empty for the only one.
        ready: the versions that are ready.

    Raises:
        InvalidArgumentError: it is not ready; or there is not exactly one version.
    """
    if wanted:
        if all(entry.name != wanted for entry in ready):
            raise InvalidArgumentError(f"Expect the default model '{wanted}' is loaded")
        return wanted
    if len(ready) != 1:
        raise InvalidArgumentError(
            "Expect the model repository contains only a single model if default model is not specified"
        )
    return ready[0].name


class VertexAiApplication(CloudApplication):
    """See the module.

    Args:
        model: what predictions are for; see `default_model`.
        metrics: None if there are none.

    Raises:
        InvalidArgumentError: a path is not named, or is no regular expression.
    """

    def __init__(
        self, server: Facade, options: HttpOptions, settings: VertexAiOptions, model: str, metrics: Metrics | None
    ) -> None:
        super().__init__(server, options, _MEDIA, self._find_default)
        self._is_health, self._is_predict = _paths(settings)
        self._metrics = metrics
        self._kserve = Router()
        self._health = health_route(settings.health)
        self._predict = Match(route_to(infer, settings.predict), model)
        self._page = route_to(self._show_metrics, "/metrics", "metrics", BodyKind.MANAGEMENT)

    def needs(self, match: Match, method: str) -> tuple[Right, str, bool]:
        """Metrics are asked for by POST here."""
        return needed("metrics") if match.route is self._page else super().needs(match, method)

    def _find_default(self, target: bytes) -> Match | None:
        path = target.partition(b"?")[0]
        return self._predict if self._is_predict(path) and not self._is_health(path) else None

    def find(self, exchange: Exchange) -> Match | Answer:
        path = exchange.path
        if self._is_health(path):
            return self.matched(exchange, self._health)
        if not self._is_predict(path):
            return no_such_path()
        wanted = next((value for name, value in exchange.headers if name == REDIRECT), None)
        if wanted is None:
            return self.matched(exchange, self._predict.route, self._predict.name)
        if exchange.method != "POST":
            return Answer(405, TEXT)
        if wanted == _METRICS:
            return self.matched(exchange, self._page)
        return self._redirected(exchange, b"/" + wanted)

    def _redirected(self, exchange: Exchange, path: bytes) -> Match | Answer:
        match = None if b"?" in path else self._kserve.match(path)
        if match is None:
            return no_such_path()
        route = match.route
        if route.category in _READ or _ends(route, "/status"):
            exchange.method = "GET"
            return match
        if _ends(route, "/index"):
            return match
        if route.category == "inference" and route.body is BodyKind.TENSORS:
            translated = self.matched(exchange, route)
            return translated if isinstance(translated, Answer) else match
        if route.category in ("shared-memory", "model-repository"):
            return Answer(403, TEXT)
        return no_such_path()

    async def _show_metrics(self, context: Context, request: HttpRequest) -> Answer:
        return Answer(400, TEXT) if self._metrics is None else Answer(200, TEXT, self._metrics())


def _ends(route: Route, end: str) -> bool:
    return route.template.endswith(end)


def _paths(settings: VertexAiOptions) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
    """What health paths and what prediction paths match."""
    if not settings.predict:
        raise InvalidArgumentError("API_PREDICT_ROUTE is not defined for Vertex AI endpoint")
    if not settings.health:
        raise InvalidArgumentError("AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint")
    return _pattern("AIP_HEALTH_ROUTE", settings.health), _pattern("AIP_PREDICT_ROUTE", settings.predict)


def _pattern(name: str, text: str) -> Callable[[bytes], Any]:
    import re2  # only this front end, and servers that forward headers, need it

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text.encode(), options).fullmatch
    except re2.error as error:
        reason = error.args[0]
        shown = reason.decode() if isinstance(reason, bytes) else reason
        raise InvalidArgumentError(f"{name} is no regular expression: {text}: {shown}") from error
