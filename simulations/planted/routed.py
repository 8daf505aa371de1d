"""Bugs of how requests get to routes, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...actors.routes import Routes


def _key_unread(original: Any, routes: Routes, *arguments: Any) -> None:
    """What a route is sticky by is not looked up."""
    del original, routes, arguments


def _readiness_untold(original: Any, routes: Routes, name: str) -> None:
    """A route does not hear of its targets' changes."""
    del original, routes, name


def _ends_untold(original: Any, routes: Routes, *arguments: Any) -> None:
    """Ends of requests are not heard: nothing is counted, no canary compared."""
    del original, routes, arguments


def _begun_elsewhere(original: Any, routes: Routes, request: Any) -> bool:
    """Sequences that a model has are forgotten when a route gets its name."""
    del original, routes, request
    return False


def _others_dropped(original: Any, routes: Routes) -> dict[str, Any]:
    """Who sets a route takes the others away."""
    del original, routes
    return {}


ROUTED_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "key-unread": (Routes, "_key_of", _key_unread),
    "readiness-untold": (Routes, "_model_changes", _readiness_untold),
    "ends-untold": (Routes, "_request_ended", _ends_untold),
    "begun-elsewhere": (Routes, "_began_before", _begun_elsewhere),
    "others-dropped": (Routes, "_present", _others_dropped),
}
