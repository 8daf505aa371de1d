"""Swarm runs of the core that decides which models are in memory, alone: everything that may happen to it is drawn.

Each decision is held against `oracle.residency`. A run ends with a phase in which nothing new comes, loads succeed and
all that is in flight is answered: then every request that waited must have been released or refused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from ..engine.errors import InternalError, UnavailableError
from ..engine.repository.residents import Drains, Leaves, Loads, Residence
from .drawn_run import DrawnRun
from .oracle.residency import WatchedResidency

LOADS_FAIL = "loads fail"
WITHOUT_END = 1_000
"""So many events are enough for everything to be answered."""


@dataclass(eq=False)
class _Asked:
    """A request: one that waits, or is in flight."""

    name: str
    parent: _Asked | None = None
    children: int = 0

    @property
    def callers(self) -> tuple[str, ...]:
        found: list[str] = []
        at = self.parent
        while at is not None:
            found.append(at.name)
            at = at.parent
        return tuple(found)


def play_residency(seed: int, events: int = 150) -> DrawnRun:
    """Play one run to its end, or to the first violation."""
    run = _Run(Random(f"residency {seed}"))
    try:
        for number in range(events + WITHOUT_END):
            run.calm = number >= events
            if run.run.violation or (run.calm and run.quiet):
                return run.run
            run.step()
    except AssertionError as error:
        run.run.complain(f"raised: {error}")
    run.run.complain(f"requests wait without end: {Counter(each.name for each in run.waiting)}")
    return run.run


class _Run:
    """A run in the making."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self.run = DrawnRun()
        self.calm = False
        self.waiting: list[_Asked] = []
        self._in_flight: list[_Asked] = []
        self._loading: list[tuple[str, tuple[str, ...], float]] = []
        self._leaving: list[str] = []
        self._sequences: Counter[str] = Counter()
        self._now_s = 0.0
        count = draw.randint(2, 10)
        equal = draw.random() < 0.4
        self._sizes = {f"m{number}": 10 if equal else draw.randint(1, 30) for number in range(count)}
        largest = max(self._sizes.values())
        self._core = WatchedResidency(
            draw.randint(largest // 2, max(largest, sum(self._sizes.values()) * 2 // 3)),
            draw.choice((3, 10, 100)),
            draw.choice((1, 2, 4)),
            complain=self.run.complain,
        )
        self._has = {
            feature: draw.random() < share
            for feature, share in {
                "pins": 0.3,
                "priorities": 0.4,
                "needs": 0.4,
                "calls": 0.4,
                "sequences": 0.3,
                "hands": 0.5,
                "sizes": 0.4,
                LOADS_FAIL: 0.5,
            }.items()
        }
        self._hot = draw.sample(list(self._sizes), max(1, count // 2))
        self._needs: dict[str, tuple[str, ...]] = {}
        names = list(self._sizes)
        for number, name in enumerate(names):
            if self._has["needs"] and number > 1 and draw.random() < 0.4:
                direct = draw.sample(names[:number], draw.randint(1, 2))
                needs = (need for each in direct for need in (*self._needs.get(each, ()), each))
                self._needs[name] = tuple(dict.fromkeys(needs))
        self._pins = {name: self._has["pins"] and draw.random() < 0.2 for name in names}
        self._priorities = {name: draw.randint(-1, 2) if self._has["priorities"] else 0 for name in names}
        for name in names:
            self._know(name)

    @property
    def quiet(self) -> bool:
        return not (self.waiting or self._in_flight or self._loading or self._leaving)

    def step(self) -> None:
        """One event, and what is to be done after it."""
        if self._draw.random() < 0.6:
            longest_s = 4.0 if self.calm or self._draw.random() < 0.1 else 0.3
            self._now_s += self._draw.random() * longest_s
        kinds = {
            self._arrive: 0 if self.calm else 5,
            self._call: 0 if self.calm else 2 * self._has["calls"],
            self._depart: 4,
            self._end_load: 2,
            self._end_unload: 2,
            self._give_up: 0 if self.calm else 0.7,
            self._by_hand: 0 if self.calm else 0.7 * self._has["hands"],
            self._change: 0 if self.calm else 0.3,
            self._end_sequence: 1,
            self._pass: 1,
        }
        self._draw.choices(list(kinds), list(kinds.values()))[0]()
        self._act()

    def _act(self) -> None:
        now_s, core = self._now_s, self._core
        for action in core.actions(now_s, lambda name: self._sequences[name] > 0):
            self.run.counts[type(action).__name__] += 1
            match action:
                case Loads(name, needs):
                    self._loading.append((name, needs, now_s))
                case Leaves(name):
                    if self._sequences[name] and not core[name].by_hand:
                        self.run.complain(f"'{name}' leaves with {self._sequences[name]} sequences")
                    self._leaving.append(name)
                case Drains():
                    pass
                case _:
                    self._end_waits(action.name, refused=True)
        loading = Counter(each for name, needs, _ in self._loading for each in (name, *needs))
        if loading and max(loading.values()) > 1:
            self.run.complain(f"a model is loaded twice at a time: {loading}")
        if core.waiting != len(self.waiting):
            self.run.complain(f"{core.waiting} requests are said to wait, there are {len(self.waiting)}")
        if (due_s := core.next_s(now_s)) is not None and due_s < now_s:
            self.run.complain(f"at {now_s} there was something to do at {due_s}")

    # ---- events ----

    def _pass(self) -> None:
        if (due_s := self._core.next_s(self._now_s)) is not None:
            self._now_s = max(self._now_s, due_s)

    def _know(self, name: str) -> None:
        users = [name, *(user for user, needs in self._needs.items() if name in needs)]
        pinned = any(self._pins[each] for each in users)
        priority = max(self._priorities[each] for each in users)
        self._core.know(name, self._sizes[name], pinned=pinned, priority=priority, needs=self._needs.get(name, ()))

    def _ask(self, asked: _Asked, *, by_hand: bool = False, continues: bool = False) -> None:
        try:
            hit = self._core.arrive(
                asked.name, self._now_s, by_hand=by_hand, callers=asked.callers, continues=continues
            )
        except UnavailableError:
            self.run.counts["refused"] += 1
            return
        self.run.counts["hits" if hit else "waits"] += 1
        if asked.parent is not None:
            asked.parent.children += 1
        (self._in_flight if hit else self.waiting).append(asked)

    def _arrive(self) -> None:
        name = self._draw.choice(self._hot if self._draw.random() < 0.6 else list(self._sizes))
        self._ask(_Asked(name), continues=self._sequences[name] > 0 and self._draw.random() < 0.7)

    def _call(self) -> None:
        if self._in_flight:
            self._ask(_Asked(self._draw.choice(list(self._sizes)), self._draw.choice(self._in_flight)))

    def _depart(self) -> None:
        free = [each for each in self._in_flight if not each.children]
        if not free:
            return
        asked = self._draw.choice(free)
        self._in_flight.remove(asked)
        self._over(asked)
        self._core.depart(asked.name, self._now_s)
        if self._has["sequences"] and not self.calm and self._draw.random() < 0.2 and self._resides(asked.name):
            self._sequences[asked.name] += 1

    def _resides(self, name: str) -> bool:
        return self._core[name].state in (Residence.RESIDENT, Residence.DRAINING)

    def _over(self, asked: _Asked) -> None:
        if asked.parent is not None:
            asked.parent.children -= 1

    def _end_waits(self, name: str, *, refused: bool) -> int:
        ended = [each for each in self.waiting if each.name == name]
        self.waiting = [each for each in self.waiting if each.name != name]
        if refused:
            for asked in ended:
                self._over(asked)
        else:
            self._in_flight += ended
        return len(ended)

    def _end_load(self) -> None:
        if not self._loading:
            return
        name, needs, since_s = self._loading.pop(self._draw.randrange(len(self._loading)))
        took_s = self._now_s - since_s
        fails = self._has[LOADS_FAIL] and not self.calm and self._draw.random() < 0.3
        guilty = self._draw.choice((name, *needs)) if fails else ""
        failed = False
        for each in (*needs, name):
            if guilty and (each in (name, guilty) or self._draw.random() < 0.5):
                failed = True
                own = each in (guilty, name)
                released = self._core.failed(each, InternalError("x") if own else None, self._now_s)
                ended = self._end_waits(each, refused=True) if own else 0
            else:
                nbytes = self._sizes[each]
                if self._has["sizes"] and not self.calm:
                    nbytes = max(1, round(nbytes * self._draw.choice((0.5, 0.9, 1, 1.1, 1.5))))
                released = self._core.loaded(each, nbytes, took_s, self._now_s)
                ended = self._end_waits(each, refused=False)
            if released != ended:
                self.run.complain(f"{released} requests for '{each}' are released, {ended} waited")
        self.run.counts["failed loads" if failed else "good loads"] += 1

    def _end_unload(self) -> None:
        if not self._leaving:
            return
        name = self._leaving.pop(self._draw.randrange(len(self._leaving)))
        self._sequences[name] = 0
        self._core.unloaded(name)

    def _give_up(self) -> None:
        if self.waiting:
            asked = self.waiting.pop(self._draw.randrange(len(self.waiting)))
            self._over(asked)
            self._core.give_up(asked.name, asked.callers)

    def _by_hand(self) -> None:
        name = self._draw.choice(list(self._sizes))
        if self._draw.random() < 0.5:
            self._ask(_Asked(name), by_hand=True)
        elif self._core.unload(name):
            self.run.counts["by hand"] += 1

    def _change(self) -> None:
        name = self._draw.choice(list(self._sizes))
        if self._has["sizes"] and self._draw.random() < 0.5 and self._resides(name):
            self._core.resized(name, self._draw.randint(1, 40))
        else:
            self._pins[name] = self._has["pins"] and self._draw.random() < 0.2
            for each in (*self._needs.get(name, ()), name):
                self._know(each)

    def _end_sequence(self) -> None:
        live = [name for name, count in self._sequences.items() if count]
        if live:
            self._sequences[self._draw.choice(live)] -= 1
