"""Routes as operators write them: a file of TOML, or one route as a table of JSON.

Both have the same keys and the same rules, and errors in the same words.
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import InvalidArgumentError
from ..strict_toml import FaultyEntryError, FileTable, placed_fault, read_strictly, read_values, shown_value
from .route import Canary, CanaryLimits, ModelRoute, RouteError, Shadow, StickyBy, Target, check_routes

_VERSIONED = re.compile(r"(.+):(\d{1,18})", re.ASCII | re.DOTALL)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_TARGET = "a model or model:version, such as 'digits:2'"
_WEIGHTS = "weights by target, such as { 'digits:1' = 90, 'digits:2' = 10 }"
_STICKY = "sequence, header:NAME, parameter:NAME or request-id"
_KINDS = {kind.value for kind in StickyBy if kind is not StickyBy.NOTHING}
_NUMBER = (int, float)


def read_routes(text: str, name: str) -> list[ModelRoute]:
    """The routes of the file of that name, in its order.

    Raises:
        InvalidArgumentError: it is faulty; the text names line and key, what was found and what is expected.
    """
    return read_strictly(text, name, _read_root)


def placed_error(text: str, name: str, error: RouteError) -> InvalidArgumentError:
    """An error that was found out later about a route of the file of that name, with its line and key."""
    return placed_fault(text, name, _faulty_entry(error))


def read_route(name: str, document: object) -> ModelRoute:
    """The route of that name, from its table.

    Raises:
        InvalidArgumentError: it is faulty; the text names the key, what was found and what is expected.
    """
    if not isinstance(document, dict):
        raise InvalidArgumentError(f"route '{name}': found {shown_value(document)}, expected an object")
    try:
        return read_values(document, lambda table: _read_table(name, table))
    except FaultyEntryError as error:
        raise InvalidArgumentError(f"route '{name}': {error}") from error


def read_target(text: str) -> Target:
    """What stands after the last colon is the version, if it is a number."""
    found = _VERSIONED.fullmatch(text)
    return Target(text) if found is None else Target(found[1], int(found[2]))


def route_document(route: ModelRoute) -> dict[str, Any]:
    """The route's table; `read_route` makes the same route of it."""
    document: dict[str, Any] = {"targets": {str(target): weight for target, weight in route.weights}}
    if route.sticky is not StickyBy.NOTHING:
        document["sticky"] = ":".join(filter(None, (route.sticky.value, route.sticky_name)))
    if route.canary is not None:
        limits = route.canary.limits
        document["canary"] = {
            "target": str(route.canary.target),
            "steps": list(route.canary.steps),
            "step-secs": route.canary.step_s,
            "errors": limits.errors,
            "p99-times": limits.p99_times,
            "queue-times": limits.queue_times,
            "slack-ms": round(limits.slack_s * 1e3, 9),  # so that 1.1 ms are not 1.1000000000000001
        }
    if route.shadow is not None:
        shadow = route.shadow
        document["shadow"] = {
            "target": str(shadow.target),
            "percent": shadow.percent,
            "tolerance": shadow.tolerance,
        }
    return document


def _read_root(root: FileTable) -> list[ModelRoute]:
    root.expect("routes")
    section = root.table("routes", "a table for each route, such as [routes.digits]")
    routes: list[ModelRoute] = []
    for name in section.keys if section is not None else ():
        assert section is not None, "it has keys"
        table = section.table(name, "a table")
        assert table is not None, "TOML has no null"
        routes.append(_read_table(name, table))
    try:
        check_routes(routes)
    except RouteError as error:
        raise _faulty_entry(error) from error
    return routes


def _faulty_entry(error: RouteError) -> FaultyEntryError:
    return FaultyEntryError(("routes", error.route, *error.key), error.problem)


def _read_table(name: str, table: FileTable) -> ModelRoute:
    table.expect("targets", "sticky", "canary", "shadow")
    sticky, sticky_name = _read_sticky(table)
    weights = table.need("targets", dict, _WEIGHTS)
    for target, weight in weights.items():
        if not isinstance(weight, int) or isinstance(weight, bool):
            raise FaultyEntryError(
                (*table.path, "targets", target), f"found {shown_value(weight)}, expected a whole percent, such as 90"
            )
        if not target:
            raise table.fault("targets", "an empty name", _TARGET)
    try:
        return ModelRoute(
            name,
            tuple((read_target(target), weight) for target, weight in weights.items()),
            sticky,
            sticky_name,
            _read_canary(table.table("canary", "a table with a target")),
            _read_shadow(table.table("shadow", "a table with a target")),
        )
    except RouteError as error:
        raise FaultyEntryError((*table.path, *error.key), error.problem) from error


def _read_sticky(table: FileTable) -> tuple[StickyBy, str]:
    text = table.get("sticky", str, _STICKY)
    if text is None:
        return StickyBy.NOTHING, ""
    kind, colon, name = text.partition(":")
    named = kind in (StickyBy.HEADER.value, StickyBy.PARAMETER.value)
    if kind not in _KINDS or named != bool(colon):
        raise table.fault("sticky", shown_value(text), _STICKY)
    if named and not (_HEADER.fullmatch(name) if kind == StickyBy.HEADER.value else name):
        raise table.fault("sticky", shown_value(text), f"the name of a {kind} after the colon")
    return StickyBy(kind), name.lower() if kind == StickyBy.HEADER.value else name


def _read_canary(table: FileTable | None) -> Canary | None:
    if table is None:
        return None
    table.expect("target", "steps", "step-secs", "errors", "p99-times", "queue-times", "slack-ms")
    usual = Canary(Target(""))
    steps = table.get("steps", list, "a list of percents, such as [1, 5, 25, 50, 100]")
    for position, step in enumerate(steps or []):
        if not isinstance(step, int) or isinstance(step, bool):
            raise FaultyEntryError(
                (*table.path, "steps", position), f"found {shown_value(step)}, expected a whole percent, such as 5"
            )
    return Canary(
        _need_target(table),
        usual.steps if steps is None else tuple(steps),
        _number(table, "step-secs", usual.step_s),
        CanaryLimits(
            _number(table, "errors", usual.limits.errors),
            _number(table, "p99-times", usual.limits.p99_times),
            _number(table, "queue-times", usual.limits.queue_times),
            round(_number(table, "slack-ms", usual.limits.slack_s * 1e3) / 1e3, 12),
        ),
    )


def _read_shadow(table: FileTable | None) -> Shadow | None:
    if table is None:
        return None
    table.expect("target", "percent", "tolerance")
    usual = Shadow(Target(""))
    percent, tolerance = (_number(table, key, getattr(usual, key)) for key in ("percent", "tolerance"))
    return Shadow(_need_target(table), percent, tolerance)


def _need_target(table: FileTable) -> Target:
    return read_target(table.need("target", str, _TARGET))


def _number(table: FileTable, key: str, usual: float) -> float:
    """Its range is checked by the route (`RouteError`)."""
    value = table.get(key, _NUMBER, "a number")
    if value is None:
        return usual
    try:
        return float(value)
    except OverflowError as error:
        raise table.fault(key, shown_value(value), "a smaller number") from error
