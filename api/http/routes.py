"""The route table, and how a path finds its route.

Paths are matched whole and as received: case counts, nothing is percent-decoded, ``//`` is not collapsed, a trailing
slash is another path, the query string is ignored (docs/reference/http.md#transport, docs/reference/http.md#routes).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ...engine.request import LATEST
from ..memo import Memo
from .exchange import JSON, TEXT, Answer, BodyKind, Context, Handler, Match, Route
from .handlers import about, repository, settings, shared_memory
from .handlers.generate import admit_generate, generate, generate_stream
from .infer.handler import admit_infer, infer

_MODEL = rb"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
_REPOSITORY = rb"/v2/repository(?:/(?P<repository>[^/]+))?"
_MANAGED = _REPOSITORY + rb"/models/(?P<name>[^/]+)"
_REGION = rb"/v2/(?P<kind>system|cuda)sharedmemory(?:/region/(?P<name>[^/]+))?"

_MAX_VERSION = 2**63 - 1
_CACHED_PATHS = 1024
_CACHED_PATH_BYTES = 512


def _route(
    pattern: bytes,
    category: str,
    error_media: bytes = JSON,
    body: BodyKind = BodyKind.MANAGEMENT,
    admit: Callable[[Context, Match], Answer | None] | None = None,
    **handlers: Handler,
) -> Route:
    return Route(re.compile(pattern), handlers, category, error_media, body, admit)


ROUTES = (
    _route(rb"/v2/models/stats", "statistics", GET=about.statistics),
    _route(rb"/v2/logging", "logging", GET=settings.log_settings, POST=settings.change_log),
    _route(_MODEL + rb"/infer", "inference", TEXT, BodyKind.TENSORS, admit_infer, POST=infer),
    _route(_MODEL + rb"/generate", "inference", JSON, BodyKind.JSON, admit_generate, POST=generate),
    _route(_MODEL + rb"/generate_stream", "inference", JSON, BodyKind.JSON, admit_generate, POST=generate_stream),
    _route(_MODEL + rb"/ready", "health", TEXT, GET=about.model_ready),
    _route(_MODEL + rb"/config", "model-config", GET=about.model_config),
    _route(_MODEL + rb"/stats", "statistics", GET=about.statistics),
    _route(_MODEL, "metadata", GET=about.model_metadata),
    _route(
        rb"/v2(?:/models/(?P<name>[^/]+))?/trace/setting",
        "trace",
        GET=settings.trace_settings,
        POST=settings.change_trace,
    ),
    _route(rb"/v2/health/live", "health", TEXT, GET=about.server_live),
    _route(rb"/v2/health/ready", "health", TEXT, GET=about.server_ready),
    _route(rb"/v2", "metadata", GET=about.server_metadata),
    _route(_REPOSITORY + rb"/index", "model-repository", POST=repository.index),
    _route(_MANAGED + rb"/load", "model-repository", JSON, BodyKind.FILES, POST=repository.load),
    _route(_MANAGED + rb"/unload", "model-repository", POST=repository.unload),
    _route(_REGION + rb"/status", "shared-memory", GET=shared_memory.status),
    _route(_REGION + rb"/register", "shared-memory", POST=shared_memory.register),
    _route(_REGION + rb"/unregister", "shared-memory", POST=shared_memory.unregister),
)
"""The first route whose pattern matches wins."""


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
