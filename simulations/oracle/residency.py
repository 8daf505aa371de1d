"""What is in memory, stated naively: each decision of `engine.repository.residency` worked out from scratch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from ...engine.errors import TriremeError, UnavailableError
from ...engine.repository.residency import Residency
from ...engine.repository.residents import Drains, Leaves, Loads, Refuses, ResidencyAction

PATIENCE_S = 1.0
LEVEL_S = 10.0
SHORTEST_STAY_S = 0.1
LOOK_S = 0.5
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 300.0


@dataclass
class _Model:
    nbytes: int
    pinned: bool = False
    priority: int = 0
    needs: tuple[str, ...] = ()
    state: str = "cold"
    waiting: list[tuple[str, ...]] = field(default_factory=list)
    """The callers of each request that waits."""
    wanted: tuple[float, int] = (0.0, 0)
    """When the first one came of those that wait, and by which number it began to be wanted."""
    in_flight: int = 0
    used: int = 0
    stays_until_s: float = 0.0
    retry_s: float = 0.0
    wait_s: float = FIRST_RETRY_S
    measured: bool = False
    by_hand: bool = False

    @property
    def here(self) -> bool:
        return self.state in ("loading", "resident", "draining", "leaving")

    @property
    def stays(self) -> bool:
        return self.state in ("loading", "resident")


class NaiveResidency:
    """The rules, one after the other, without anything remembered that could be worked out."""

    def __init__(self, limit_bytes: int, most_waiting: int, most_loads: int) -> None:
        self.loads: set[str] = set()
        self._most_loads = most_loads
        self.models: dict[str, _Model] = {}
        self._limit = limit_bytes
        self._most = most_waiting
        self._number = 0
        self._over_s: float | None = None
        self._in_sequence: dict[str, float] = {}

    # ---- what happens ----

    def know(self, name: str, nbytes: int, pinned: bool, priority: int, needs: Sequence[str]) -> None:
        model = self.models.setdefault(name, _Model(nbytes))
        if not model.measured and not model.here:
            model.nbytes = nbytes
        model.pinned, model.priority, model.needs = pinned, priority, tuple(needs)
        if model.state == "wanted":
            model.wanted = (model.wanted[0], self._next())

    def resized(self, name: str, nbytes: int) -> None:
        self.models[name].nbytes, self.models[name].measured = nbytes, True

    def arrive(self, name: str, now_s: float, by_hand: bool, callers: Sequence[str], continues: bool) -> str:
        """How a request is met: "hit", "wait" or "refused"."""
        model = self.models[name]
        if model.state == "resident" or (model.state == "draining" and (continues or callers)):
            model.in_flight += 1
            self._touch(name)
            return "hit"
        if model.state == "cold" and now_s < model.retry_s and not by_hand:
            return "refused"
        called = {*(each for each, other in self.models.items() if any(other.waiting))}
        fits = self._ever_fits(name) and (not callers or self._fits_inside(callers, name, *called))
        if model.state != "loading" and not fits:
            return "refused"
        if sum(len(each.waiting) for each in self.models.values()) >= self._most:
            return "refused"
        was_inner = any(model.waiting)
        model.waiting.append(tuple(callers))
        if len(model.waiting) == 1:
            model.wanted = (now_s, 0)
        if model.state == "cold" or (model.state == "wanted" and callers and not was_inner):
            self._want(name)
        return "wait"

    def give_up(self, name: str, callers: Sequence[str]) -> None:
        model = self.models[name]
        was_inner = any(model.waiting)
        model.waiting.remove(tuple(callers))
        if model.state != "wanted":
            return
        if not model.waiting:
            model.state = "cold"
        elif was_inner and not any(model.waiting):
            self._want(name)

    def depart(self, name: str) -> None:
        self.models[name].in_flight -= 1
        if self.models[name].here:
            self._touch(name)

    def loaded(self, name: str, nbytes: int, took_s: float, now_s: float) -> int:
        model = self.models[name]
        self.loads -= {name}
        model.state, model.nbytes, model.measured = "resident", nbytes, True
        model.retry_s, model.wait_s = 0.0, FIRST_RETRY_S
        model.stays_until_s = now_s + max(took_s, SHORTEST_STAY_S)
        released = len(model.waiting)
        model.in_flight += released
        model.waiting.clear()
        self._touch(name)
        return released

    def failed(self, name: str, error: TriremeError | None, now_s: float) -> int:
        model = self.models[name]
        model.state = "cold"
        self.loads -= {name}
        if error is None:
            if model.waiting:
                self._want(name)
            return 0
        model.retry_s = now_s + model.wait_s
        model.wait_s = min(2 * model.wait_s, LONGEST_RETRY_S)
        released = len(model.waiting)
        model.waiting.clear()
        return released

    def unload(self, name: str) -> bool:
        users_load = any(self.models[each].state == "loading" for each in self.users(name))
        if self.models[name].state not in ("resident", "draining") or users_load:
            return False
        for each in (name, *self.users(name)):
            if self.models[each].state in ("resident", "draining"):
                self.models[each].state, self.models[each].by_hand = "draining", True
        return True

    def unloaded(self, name: str) -> None:
        model = self.models[name]
        if model.state == "loading":
            return
        model.state = "cold"
        if model.waiting:
            self._want(name)

    def _want(self, name: str) -> None:
        model = self.models[name]
        model.state = "wanted"
        model.wanted = (model.wanted[0], self._next())

    def _touch(self, name: str) -> None:
        for each in (name, *self.models[name].needs):
            self.models[each].used = self._next()

    def _next(self) -> int:
        self._number += 1
        return self._number

    # ---- what is known ----

    @property
    def used_bytes(self) -> int:
        return sum(each.nbytes for each in self.models.values() if each.here)

    def users(self, name: str) -> list[str]:
        """Who is in memory and needs it."""
        return [user for user, each in self.models.items() if each.here and name in each.needs]

    def held(self, callers: Sequence[str] = ()) -> set[str]:
        """Who waits for others, and what these need."""
        calling = {caller for each in self.models.values() for inner in each.waiting for caller in inner}
        calling = {each for each in calling.union(callers) if self.models[each].here}
        return {name for each in calling for name in self._group(each) if self.models[name].here}

    def _group(self, name: str) -> list[str]:
        return [name, *self.models[name].needs]

    def _bytes(self, names: set[str]) -> int:
        return sum(self.models[each].nbytes for each in names)

    def _fixed(self) -> set[str]:
        return {name for name, each in self.models.items() if each.pinned and each.stays}

    def _ever_fits(self, name: str) -> bool:
        return self._bytes(set(self._group(name)) | self._fixed()) <= self._limit

    def _fits_inside(self, callers: Sequence[str], *names: str) -> bool:
        held = self.held(callers)
        if any(each in held and not self.models[each].stays for each in self.models[names[0]].needs):
            return False
        stays = self._fixed() | held
        return all(self._bytes(stays | set(self._group(each))) <= self._limit for each in names)

    # ---- what is right ----

    def look(self, now_s: float, has_sequences: Callable[[str], bool]) -> None:
        """Before each decision."""
        self._in_sequence |= {name: now_s for name, each in self.models.items() if each.here and has_sequences(name)}
        if self.used_bytes <= self._limit:
            self._over_s = None
        elif self._over_s is None:
            self._over_s = now_s

    def decide(self, now_s: float, has_sequences: Callable[[str], bool]) -> list[ResidencyAction]:
        """What is to be done, and counts as begun."""
        return self._decide(now_s, {name for name, each in self.models.items() if each.here and has_sequences(name)})

    def decide_lazily(self, now_s: float, has_sequences: Callable[[str], bool]) -> list[ResidencyAction]:
        """The same, as though the sequences of the last `LOOK_S` were still live; nothing counts as begun."""
        late = {name for name, at_s in self._in_sequence.items() if at_s + LOOK_S > now_s}
        in_sequence = late.union(name for name, model in self.models.items() if model.here and has_sequences(name))
        return deepcopy(self)._decide(now_s, in_sequence)

    def _decide(self, now_s: float, in_sequence: set[str]) -> list[ResidencyAction]:
        found: list[ResidencyAction] = []
        for name, model in self.models.items():
            busy = model.in_flight or self.users(name) or (name in in_sequence and not model.by_hand)
            if model.state == "draining" and not busy:
                model.state = "leaving"
                found.append(Leaves(name))
        planned: list[str] = []
        while wanted := [name for name, each in self.models.items() if each.state == "wanted" and name not in planned]:
            if len(self.loads) + len(planned) >= self._most_loads:
                break
            name = min(wanted, key=self._order)
            model = self.models[name]
            if not self._ever_fits(name) or (any(model.waiting) and not self._fits_inside((), name)):
                model.state = "cold"
                model.waiting.clear()
                found.append(Refuses(name, UnavailableError("")))
                continue
            if {self.models[each].state for each in model.needs} - {"cold", "wanted", "resident"}:
                break
            absent = {each for each in self._group(name) if not self.models[each].here}
            if not planned and self.used_bytes + self._bytes(absent) <= self._limit:
                for each in absent:
                    self.models[each].state, self.models[each].by_hand = "loading", False
                self.loads.add(name)
                found.append(Loads(name, tuple(each for each in model.needs if each in absent)))
                continue
            patient = now_s < model.wanted[0] + PATIENCE_S
            planned.append(name)
            groups = {each for one in planned for each in self._group(one)}
            room = self._room(groups, model.priority, patient, now_s, in_sequence)
            if room is None:
                break
            found += room
        if self.used_bytes > self._limit and self._over_s is not None:
            patient = now_s < self._over_s + PATIENCE_S
            found += self._room(set(), math.inf, patient, now_s, in_sequence, in_part=True) or []
        return found

    def _order(self, name: str) -> tuple[float, int]:
        model = self.models[name]
        since_s, number = model.wanted
        return (-math.inf if any(model.waiting) else since_s - LEVEL_S * model.priority, number)

    def _room(
        self,
        planned: set[str],
        priority: float,
        patient: bool,
        now_s: float,
        in_sequence: set[str],
        in_part: bool = False,
    ) -> list[ResidencyAction] | None:
        """Rules 2, 3, 8, 9 and 10: who leaves for what is planned, or None."""
        held = self.held()
        staying = {name for name, each in self.models.items() if each.stays or name in held}
        needed = self._bytes(staying | planned) - self._limit
        lower = {name for name in staying if self.models[name].stays and not self.models[name].pinned}
        enough = self._bytes({name for name in lower if self.models[name].priority <= priority}) >= needed
        leaving: list[str] = []
        while self._bytes(set(leaving)) < needed:
            free = [name for name in self.models if self._may_leave(name, held | planned, leaving, now_s)]
            ranked = [(self._rank(name, priority, in_sequence), name) for name in free]
            ranked = [each for each in ranked if not patient or each[0][0] == 0 or (each[0][0] == 2 and not enough)]
            if not ranked:
                break
            leaving.append(min(ranked)[1])
        missing = self._bytes(set(leaving)) < needed
        if missing and not in_part:
            return None
        for name in [] if missing else reversed(leaving[:]):
            rest = [each for each in leaving if each != name]
            needed_by = any(each in self.models[name].needs for each in rest)
            if self._bytes(set(rest)) >= needed and not needed_by:
                leaving = rest
        found: list[ResidencyAction] = []
        for name in leaving:
            drains = self.models[name].in_flight or self.users(name) or name in in_sequence
            self.models[name].state = "draining" if drains else "leaving"
            found.append(Drains(name) if drains else Leaves(name))
        return found

    def _may_leave(self, name: str, held: set[str], leaving: list[str], now_s: float) -> bool:
        model = self.models[name]
        users = [each for each in self.users(name) if self.models[each].stays and each not in leaving]
        free = model.state == "resident" and not model.pinned and model.stays_until_s <= now_s
        return free and name not in held and name not in leaving and not users

    def _rank(self, name: str, priority: float, in_sequence: set[str]) -> tuple[int, int, int]:
        """Idle ones first, then busy ones, then those of a higher priority."""
        model = self.models[name]
        kind = 2 * (model.priority > priority) + bool(model.in_flight or name in in_sequence)
        return kind, model.priority, model.used


class WatchedResidency(Residency):
    """Complains when it decides otherwise than the rules say.

    Args:
        complain: told what is wrong.
    """

    def __init__(
        self, limit_bytes: int, most_waiting: int = 10_000, most_loads: int = 4, *, complain: Callable[[str], None]
    ) -> None:
        super().__init__(limit_bytes, most_waiting, most_loads)
        self._naive = NaiveResidency(limit_bytes, most_waiting, most_loads)
        self._complain = complain

    def know(
        self, name: str, nbytes: int, *, pinned: bool = False, priority: int = 0, needs: Sequence[str] = ()
    ) -> None:
        super().know(name, nbytes, pinned=pinned, priority=priority, needs=needs)
        self._naive.know(name, nbytes, pinned, priority, needs)

    def resized(self, name: str, nbytes: int) -> None:
        super().resized(name, nbytes)
        self._naive.resized(name, nbytes)

    def arrive(
        self, name: str, now_s: float, *, by_hand: bool = False, callers: Sequence[str] = (), continues: bool = False
    ) -> bool:
        self[name]
        right = self._naive.arrive(name, now_s, by_hand, callers, continues)
        try:
            hit = super().arrive(name, now_s, by_hand=by_hand, callers=callers, continues=continues)
        except UnavailableError as error:
            self._compare(f"a request for '{name}' ({error})", "refused", right)
            raise
        self._compare(f"a request for '{name}'", "hit" if hit else "wait", right)
        return hit

    def give_up(self, name: str, callers: Sequence[str] = ()) -> None:
        super().give_up(name, callers)
        self._naive.give_up(name, callers)

    def depart(self, name: str, now_s: float) -> None:
        super().depart(name, now_s)
        self._naive.depart(name)

    def loaded(self, name: str, nbytes: int, took_s: float, now_s: float) -> int:
        released = super().loaded(name, nbytes, took_s, now_s)
        self._compare(f"released by '{name}'", released, self._naive.loaded(name, nbytes, took_s, now_s))
        return released

    def failed(self, name: str, error: TriremeError | None, now_s: float) -> int:
        released = super().failed(name, error, now_s)
        self._compare(f"refused by '{name}'", released, self._naive.failed(name, error, now_s))
        return released

    def unload(self, name: str) -> bool:
        leaves = super().unload(name)
        self._compare(f"'{name}' leaves by hand", leaves, self._naive.unload(name))
        return leaves

    def unloaded(self, name: str) -> None:
        super().unloaded(name)
        self._naive.unloaded(name)

    def actions(self, now_s: float, has_sequences: Callable[[str], bool] | None = None) -> list[ResidencyAction]:
        has_sequences = has_sequences or _has_none
        found = super().actions(now_s, has_sequences)
        self._naive.look(now_s, has_sequences)
        if found or self._naive.decide_lazily(now_s, has_sequences):
            right = self._naive.decide(now_s, has_sequences)
            self._compare("actions", _said(found), _said(right))
        self._compare("bytes in memory", self.used_bytes, self._naive.used_bytes)
        states = {each.name: each.state.value for each in self}
        self._compare("states", states, {name: each.state for name, each in self._naive.models.items()})
        for action in found:
            if isinstance(action, Leaves) and (why := self._in_use(action.name)):
                self._complain(f"'{action.name}' leaves though {why}")
        return found

    def _in_use(self, name: str) -> str:
        model = self[name]
        reasons = {"it has requests in flight": model.in_flight, "others need it": self._naive.users(name)}
        return " and ".join(reason for reason, true in reasons.items() if true)

    def _compare(self, what: str, found: object, right: object) -> None:
        if found != right:
            self._complain(f"{what}: {found}, but by the rules {right}")


def _said(actions: list[ResidencyAction]) -> tuple[object, ...]:
    """What is compared: the order in which models leave does not matter."""
    said = [(type(each).__name__, each.name, getattr(each, "needs", ())) for each in actions]
    leave = (Leaves.__name__, Drains.__name__)
    return sorted(each for each in said if each[0] in leave), [each for each in said if each[0] not in leave]


def _has_none(name: str) -> bool:
    del name
    return False
