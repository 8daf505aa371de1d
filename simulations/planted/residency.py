"""Bugs of what decides which models are in memory, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...engine.repository.model_memory import ModelMemory
from ...engine.repository.residency import Residency
from ...engine.repository.residents import Residence, Resident


def _forgotten_while_leaving(original: Any, core: Residency, model: Resident) -> None:
    """Requests that come for a model while it leaves are not seen when it has left."""
    del original, core, model


def _size_as_estimated(original: Any, core: Residency, name: str, nbytes: int, *rest: Any) -> int:
    """A model counts with what was estimated, whatever it takes."""
    del nbytes
    return original(core, name, core[name].nbytes, *rest)


def _thrashing(original: Any, core: Residency, name: str, nbytes: int, took_s: float, now_s: float) -> int:
    """A model may leave as soon as it is there, however long its load took."""
    del took_s
    return original(core, name, nbytes, 0.0, now_s)


def _first_in_first_out(original: Any, memory: ModelMemory, model: Resident) -> None:
    """The model loaded first leaves, however often it is used."""
    if not model.in_flight:
        return
    original(memory, model)


def _given_up_and_loaded(original: Any, core: Residency, name: str, callers: Any = ()) -> None:
    """A load that no request waits for any more is wanted as before."""
    wanted = core[name].state is Residence.WANTED
    original(core, name, callers)
    if wanted and core[name].state is Residence.COLD:
        core._want(core[name])


def _pins_taken_for_room(original: Any, core: Residency, model: Resident) -> Any:
    """Requests wait for room that pinned models have."""
    pinned, core._memory.pinned_bytes = core._memory.pinned_bytes, 0
    try:
        return original(core, model)
    finally:
        core._memory.pinned_bytes = pinned


def _tried_at_once(original: Any, core: Residency, name: str, error: Any, now_s: float) -> int:
    """A load that failed is tried again by the next request, for ever."""
    released = original(core, name, error, now_s)
    core[name].retry_s = 0.0
    return released


def _one_of_many_in_flight(original: Any, core: Residency, name: str, *rest: Any) -> int:
    """Of the requests that waited for a load only one counts as in flight."""
    released = original(core, name, *rest)
    core[name].in_flight -= max(released - 1, 0)
    return released


def _drained_unseen(original: Any, core: Residency, name: str, now_s: float) -> None:
    """That a model which is drained has nothing in flight any more is noticed when something else happens."""
    due_s = core._due_s
    original(core, name, now_s)
    core._due_s = due_s


def _inner_ones_behind(original: Any, core: Residency, model: Resident) -> None:
    """Requests that others in flight wait for stand in line like any other."""
    called, model.called_by = model.called_by, model.called_by.copy()
    model.called_by.clear()
    original(core, model)
    model.called_by = called


def _members_first(original: Any, memory: ModelMemory, model: Resident, sign: int) -> None:
    """That an ensemble needs its members does not count."""
    needs, model.needs = model.needs, ()
    original(memory, model, sign)
    model.needs = needs


RESIDENCY_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "forgotten-while-leaving": (Residency, "_settle", _forgotten_while_leaving),
    "size-as-estimated": (Residency, "loaded", _size_as_estimated),
    "thrashing": (Residency, "loaded", _thrashing),
    "first-in-first-out": (ModelMemory, "touch", _first_in_first_out),
    "given-up-and-loaded": (Residency, "give_up", _given_up_and_loaded),
    "pins-taken-for-room": (Residency, "_no_room", _pins_taken_for_room),
    "tried-at-once": (Residency, "failed", _tried_at_once),
    "one-of-many-in-flight": (Residency, "loaded", _one_of_many_in_flight),
    "drained-unseen": (Residency, "depart", _drained_unseen),
    "inner-ones-behind": (Residency, "_want", _inner_ones_behind),
    "members-first-out": (ModelMemory, "_count", _members_first),
}
"""Found by swarm runs of the core alone (`residency_swarm`)."""
