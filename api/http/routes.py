"""The route table, and how a path finds its route.

Paths are matched whole and as received: case counts, nothing is percent-decoded, ``//`` is not collapsed, a trailing
slash is another path, the query string is ignored (docs/reference/http.md#transport, docs/reference/http.md#routes).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

from ...engine.memo import Memo
from ...engine.request import LATEST
from .exchange import JSON, TEXT, Answer, BodyKind, Context, Handler, Match, Route
from .handlers import management, model_routes
from .handlers.generate import generate, generate_stream
from .infer.handler import admit_infer, infer

_MODEL = "/v2/models/{model}[/versions/{version}]"
_REPOSITORY = "/v2/repository[/{repository}]"
_REGION = "/v2/{kind}sharedmemory[/region/{region}]"
_PATTERNS = {
    "{model}": "(?P<name>[^/]+)",
    "{version}": "(?P<version>[0-9]+)",
    "{repository}": "(?P<repository>[^/]+)",
    "{region}": "(?P<name>[^/]+)",
    "{route}": "(?P<name>[^/]+)",
    "{kind}": "(?P<kind>system|cuda)",
    "[": "(?:",
    "]": ")?",
}

_MAX_VERSION = 2**63 - 1
_CACHED_PATHS = 2_048
_CACHED_PATH_BYTES = 512


def _route(
    template: str,
    category: str,
    error_media: bytes = JSON,
    body: BodyKind = BodyKind.MANAGEMENT,
    admit: Callable[[Context, Match], Awaitable[Answer | None]] | None = None,
    **handlers: Handler,
) -> Route:
    pattern = re.sub(r"\{\w+\}|[\[\]]", lambda part: _PATTERNS[part[0]], template)
    return Route(template, re.compile(pattern.encode()), handlers, category, error_media, body, admit)


ROUTES = (
    _route("/v2/models/stats", "statistics", GET=management.statistics),
    _route("/v2/logging", "logging", GET=management.log_settings, POST=management.change_log),
    _route(_MODEL + "/infer", "inference", TEXT, BodyKind.TENSORS, admit_infer, POST=infer),
    _route(_MODEL + "/generate", "inference", JSON, BodyKind.JSON, admit_infer, POST=generate),
    _route(_MODEL + "/generate_stream", "inference", JSON, BodyKind.JSON, admit_infer, POST=generate_stream),
    _route(_MODEL + "/ready", "health", TEXT, GET=management.model_ready),
    _route(_MODEL + "/config", "model-config", GET=management.model_config),
    _route(_MODEL + "/stats", "statistics", GET=management.statistics),
    _route(_MODEL, "metadata", GET=management.model_metadata),
    _route("/v2[/models/{model}]/trace/setting", "trace", GET=management.trace_settings, POST=management.change_trace),
    _route("/v2/health/live", "health", TEXT, GET=management.server_live),
    _route("/v2/health/ready", "health", TEXT, GET=management.server_ready),
    _route("/v2", "metadata", GET=management.server_metadata),
    _route(_REPOSITORY + "/index", "model-repository", POST=management.repository_index),
    _route(_REPOSITORY + "/models/{model}/load", "model-repository", JSON, BodyKind.FILES, POST=management.load_model),
    _route(_REPOSITORY + "/models/{model}/unload", "model-repository", POST=management.unload_model),
    _route("/v2/routes", "model-repository", GET=model_routes.list_routes),
    _route(
        "/v2/routes/{route}",
        "model-repository",
        GET=model_routes.show_route,
        PUT=model_routes.set_route,
        DELETE=model_routes.remove_route,
    ),
    _route("/v2/routes/{route}/stop", "model-repository", POST=model_routes.stop_rollout),
    _route(_REGION + "/status", "shared-memory", GET=management.region_status),
    _route(_REGION + "/register", "shared-memory", POST=management.register_region),
    _route(_REGION + "/unregister", "shared-memory", POST=management.unregister_region),
)
"""The first route whose pattern matches wins. What stands in brackets may be missing. `openapi` describes handlers."""


class Router:
    """Finds the route of a path; remembers a bounded number of paths, since clients repeat theirs."""

    def __init__(self, routes: Sequence[Route] = ROUTES) -> None:
        self._routes = routes
        self._matches: Memo[Match] = Memo(_CACHED_PATHS, _CACHED_PATH_BYTES)

    def match(self, raw_path: bytes) -> Match | None:
        """The route that `raw_path` belongs to, or None."""
        match = self._matches.get(raw_path)
        if match is None:
            match = self._search(raw_path.partition(b"?")[0])
            if match is not None:
                self._matches.remember(raw_path, match)
        return match

    def _search(self, path: bytes) -> Match | None:
        for route in self._routes:
            found = route.pattern.fullmatch(path)
            if found is not None:
                groups = {key: _text(value) for key, value in found.groupdict().items() if value is not None}
                digits = groups.pop("version", "")
                return Match(route, version_text=digits, version=_parse_version(digits) if digits else LATEST, **groups)
        return None


def _text(raw: bytes) -> str:
    # Bytes that are no UTF-8 survive, so that an error can quote the name as it came.
    return raw.decode("utf-8", "surrogateescape")


def _parse_version(digits: str) -> int | None:
    # Compare lengths first: int() refuses texts of thousands of digits.
    significant = digits.lstrip("0") or "0"
    if len(significant) > len(str(_MAX_VERSION)) or int(significant) > _MAX_VERSION:
        return None
    return int(significant)
