"""Bugs of models on demand in a whole server, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from ...actors.model_control import ModelControl
from ...actors.residents import Residents, Visit


def _unvisited(original: Any, residents: Residents, name: str, place: Any) -> Visit:
    """Requests that find their model in memory do not count as in flight."""
    del original, residents
    return Visit(None, name, place)


def _first_come_only(original: Any, residents: Residents, name: str, *error: Any) -> None:
    """Of the requests that wait for a model, the first one hears that it is there."""
    residents._waiting[name] = residents._waiting[name][:1]
    original(residents, name, *error)


def _failure_unsaid(original: Any, residents: Residents, name: str, *error: Any) -> None:
    """Requests whose model could not be loaded go on as if it were there."""
    del error
    original(residents, name)


async def _no_sense_of_time(original: Any, residents: Residents) -> None:
    """What can be done only later is done when something else happens."""
    del original, residents
    await trio.sleep_forever()


async def _members_unknown(original: Any, control: ModelControl, name: str) -> Any:
    """That an ensemble is loaded with its members is not known."""
    nbytes, _ = await original(control, name)
    return nbytes, ()


RESIDENTS_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "unvisited": (Residents, "visit", _unvisited),
    "first-come-only": (Residents, "_release", _first_come_only),
    "failure-unsaid": (Residents, "_release", _failure_unsaid),
    "no-sense-of-time": (Residents, "_keep_time", _no_sense_of_time),
    "members-unknown": (ModelControl, "read", _members_unknown),
}
"""Found by swarm runs of servers whose models are loaded on demand (`on_demand`)."""
