"""Which models are in memory, where there is room for some of them only.

Rules:
 1. A request for a model that is not resident waits for it to be loaded; all that come meanwhile wait for the same
    load. Loads are wanted in the order of priority, then of the first request; the first one wanted begins as soon as
    there is room, and no later one passes it.
 2. Room is made by unloading models that are idle (nothing in flight, no request waits), not pinned, and of no higher
    priority than the one that is wanted: the lowest priority first, then the one used least recently. Nothing is
    unloaded before that makes enough room.
 3. A model that was loaded stays for at least as long as its load took, so that no more time goes into loads than into
    service, whatever comes. Until then those that want its room wait.
 4. A model that cannot fit into the limit is refused at once. A load that failed is not tried again for a while, which
    doubles up to `_LONGEST_RETRY_S`; until then requests are refused with its reason.
 5. A load that no request waits for any more, and that has not begun, is not wanted any more.
 6. A model counts with the size that it had when it was last loaded, before that with what was estimated. A size that
    turns out to be too large for the room makes others leave; it does not undo the load.
 7. At most `most_waiting` requests wait in all; the next one is refused.

States of a model:

    COLD ─ request ▶ WANTED ─ room ▶ LOADING ─ loaded ▶ RESIDENT ─ its room is wanted ▶ LEAVING ─ unloaded ▶ COLD
    WANTED ─ no request waits ▶ COLD          LOADING ─ failed ▶ COLD, refused until its next try
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import NotFoundError, TriremeError, UnavailableError

_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 300.0


class Residence(enum.Enum):
    """See above."""

    COLD = "cold"
    WANTED = "wanted"
    LOADING = "loading"
    RESIDENT = "resident"
    LEAVING = "leaving"


@dataclass(slots=True, eq=False)
class Resident:
    """What is known of one model.

    Attributes:
        nbytes: that it takes, or is supposed to.
        waiting: requests that wait for it to be loaded.
        in_flight: requests that it is executing, or that are queued there.
        used_s: when it was last used.
        stays_until_s: rule 3.
        failures: loads that have failed one after the other.
    """

    name: str
    nbytes: int
    pinned: bool = False
    priority: int = 0
    state: Residence = Residence.COLD
    waiting: int = 0
    in_flight: int = 0
    wanted_s: float = 0.0
    used_s: float = 0.0
    stays_until_s: float = 0.0
    failures: int = 0
    retry_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Loads:
    """A model is to be loaded."""

    name: str


@dataclass(frozen=True, slots=True)
class Leaves:
    """A model is to be unloaded."""

    name: str


class Residency:
    """Decides what is loaded and unloaded; told what happens, asked what to do (`actions`).

    Args:
        limit_bytes: of all models in memory.
        most_waiting: see rule 7.

    Attributes:
        hits, misses: requests that found their model resident, or did not.
    """

    def __init__(self, limit_bytes: int, most_waiting: int = 10_000) -> None:
        self.limit_bytes = limit_bytes
        self.hits = self.misses = 0
        self._most_waiting = most_waiting
        self._waiting = 0
        self._models: dict[str, Resident] = {}
        self._wanted: dict[str, Resident] = {}
        self._in_memory: dict[str, Resident] = {}  # the one used least recently first

    @property
    def used_bytes(self) -> int:
        """Of what is in memory, or on its way there or from there."""
        return sum(model.nbytes for model in self._in_memory.values())

    def __iter__(self) -> Iterator[Resident]:
        return iter(self._models.values())

    def __getitem__(self, name: str) -> Resident:
        """Raises NotFoundError: there is no such model."""
        model = self._models.get(name)
        if model is None:
            raise NotFoundError(f"there is no model '{name}'")
        return model

    # ---- what there is ----

    def know(self, name: str, nbytes: int, *, pinned: bool = False, priority: int = 0) -> None:
        """There is such a model; `nbytes` is an estimate. Of one that is known, pin and priority change."""
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = Resident(name, nbytes)
        elif model.state in (Residence.COLD, Residence.WANTED) and not model.used_s:
            model.nbytes = nbytes
        model.pinned, model.priority = pinned, priority

    # ---- requests ----

    def arrive(self, name: str, now_s: float) -> bool:
        """A request for a model has come.

        Returns:
            Whether it can be executed at once, and is in flight from now on (`depart`). Otherwise it waits; when the
            model is loaded all that wait are in flight.

        Raises:
            NotFoundError: there is no such model.
            UnavailableError: it cannot be loaded (rules 4 and 7).
        """
        model = self[name]
        if model.state is Residence.RESIDENT:
            self.hits += 1
            model.in_flight += 1
            self._touch(model, now_s)
            return True
        if model.nbytes > self.limit_bytes:
            raise UnavailableError(
                f"model '{name}' needs {model.nbytes} bytes of memory, the limit for models is {self.limit_bytes}"
            )
        if now_s < model.retry_s:
            wait_s = model.retry_s - now_s
            raise UnavailableError(f"model '{name}' was not loaded: {model.reason}; next try in {wait_s:.1f} s")
        if self._waiting >= self._most_waiting:
            raise UnavailableError(
                f"model '{name}' is not loaded, and {self._waiting} requests wait for models already"
            )
        self.misses += 1
        self._waiting += 1
        model.waiting += 1
        if model.state is Residence.COLD:
            model.state, model.wanted_s = Residence.WANTED, now_s
        if model.state in (Residence.WANTED, Residence.LEAVING):
            self._wanted.setdefault(name, model)
        return False

    def give_up(self, name: str) -> None:
        """A request that waited for its model is not wanted any more (rule 5)."""
        model = self[name]
        assert model.waiting > 0, f"no request waits for '{name}'"
        model.waiting -= 1
        self._waiting -= 1
        if not model.waiting:
            self._wanted.pop(name, None)
            if model.state is Residence.WANTED:
                model.state = Residence.COLD

    def depart(self, name: str, now_s: float) -> None:
        """A request in flight has been answered."""
        model = self[name]
        assert model.in_flight > 0, f"no request for '{name}' is in flight"
        model.in_flight -= 1
        self._touch(model, now_s)

    # ---- loads ----

    def loaded(self, name: str, nbytes: int, took_s: float, now_s: float) -> int:
        """A load has ended well; how many requests waited for it, which are in flight from now on."""
        model = self[name]
        released, model.waiting = model.waiting, 0
        self._waiting -= released
        model.state, model.nbytes = Residence.RESIDENT, nbytes
        model.in_flight += released
        model.failures, model.retry_s = 0, 0.0
        model.stays_until_s = now_s + took_s
        self._touch(model, now_s)
        return released

    def failed(self, name: str, error: TriremeError, now_s: float) -> int:
        """A load has failed; how many requests waited for it, which are to be refused (rule 4)."""
        model = self[name]
        released, model.waiting = model.waiting, 0
        self._waiting -= released
        del self._in_memory[name]
        model.state, model.reason = Residence.COLD, error.message
        model.retry_s = now_s + min(_FIRST_RETRY_S * 2**model.failures, _LONGEST_RETRY_S)
        model.failures = min(model.failures + 1, 32)
        return released

    def unloaded(self, name: str, now_s: float) -> None:
        """A model has left memory. If requests for it have come meanwhile, it is wanted again."""
        model = self[name]
        del self._in_memory[name]
        model.state = Residence.COLD
        if model.waiting:
            model.state, model.wanted_s = Residence.WANTED, now_s

    def actions(self, now_s: float) -> list[Loads | Leaves]:
        """What to do now, which counts as begun."""
        found: list[Loads | Leaves] = []
        for model in sorted(self._wanted.values(), key=lambda each: (-each.priority, each.wanted_s)):
            if model.state is Residence.LEAVING:
                break  # not to be passed
            room = self.limit_bytes - self.used_bytes
            if room < model.nbytes:
                found += self._make_room(model, model.nbytes - room, now_s)
                break
            del self._wanted[model.name]
            model.state = Residence.LOADING
            self._in_memory[model.name] = model
            found.append(Loads(model.name))
        if self.used_bytes > self.limit_bytes:
            found += self._make_room(None, self.used_bytes - self.limit_bytes, now_s)
        return found

    def next_s(self, now_s: float) -> float | None:
        """When there may be something to do if nothing else happens: a model may leave from then on."""
        if not self._wanted:
            return None
        times = [model.stays_until_s for model in self._in_memory.values() if model.stays_until_s > now_s]
        return min(times, default=None)

    def _make_room(self, wanted: Resident | None, needed: int, now_s: float) -> list[Loads | Leaves]:
        """Rules 2 and 3. What is leaving already counts as room to come."""
        needed -= sum(model.nbytes for model in self._in_memory.values() if model.state is Residence.LEAVING)
        idle = [
            model
            for model in self._in_memory.values()
            if model.state is Residence.RESIDENT
            and not (model.in_flight or model.pinned)
            and model.stays_until_s <= now_s
            and (wanted is None or model.priority <= wanted.priority)
        ]
        leaving: list[Resident] = []
        for model in sorted(idle, key=lambda each: each.priority):
            if needed <= 0:
                break
            leaving.append(model)
            needed -= model.nbytes
        if needed > 0 and wanted is not None:
            return []
        for model in leaving:
            model.state = Residence.LEAVING
        return [Leaves(model.name) for model in leaving]

    def _touch(self, model: Resident, now_s: float) -> None:
        model.used_s = now_s
        self._in_memory[model.name] = self._in_memory.pop(model.name)
