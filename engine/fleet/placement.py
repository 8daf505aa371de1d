"""Which models of a repository lie on which replicas of a fleet, by memory.

Rules:
 1. The models of a replica never need more memory than it has room for.
 2. What lies somewhere stays there, as long as the replica is there and rule 1 holds. If models have grown, the
    smallest one that makes enough room moves.
 3. What has to be placed is placed largest first, each copy on the replica with the most room left that has no copy of
    it; of equals on the first by name. First copies come before second ones.
 4. If a first copy finds no place, further copies leave the replica on which that makes room for it; where several do,
    the one where fewest bytes leave. If that is not enough, everything is placed anew if that places more models:
    rule 2 yields to serving a model at all.
 5. What finds no place is named, with what it needs and what there is.
 6. Room that is left is for more copies, if wanted: first of the models with fewest copies, of those first of the
    one with most to do. They are further copies as to rule 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

ModelNames = frozenset[str]


@dataclass(frozen=True, slots=True)
class ModelNeed:
    """Attributes:
    nbytes: of memory for each copy.
    copies: on so many replicas, if there is room.
    """

    nbytes: int
    copies: int = 1


@dataclass(frozen=True, slots=True)
class FleetLayout:
    """Attributes:
    on: the models of each replica.
    unplaced: why a model has no copy, by its name.
    short: the models that have fewer copies than they should have, but one.
    """

    on: Mapping[str, ModelNames]
    unplaced: Mapping[str, str] = field(default_factory=dict)
    short: ModelNames = frozenset()

    def replicas_of(self, model: str) -> list[str]:
        """Where a model lies, by name."""
        return sorted(name for name, models in self.on.items() if model in models)


def replicas_needed(needs: Mapping[str, ModelNeed], room: int) -> int:
    """On how many replicas with so much room, bytes, each model finds a place by the rules above, but those that need
    more than that. With more replicas each finds one as well, since by rule 3 none is fuller then."""
    fitting = {model: ModelNeed(need.nbytes) for model, need in needs.items() if need.nbytes <= room}
    if not fitting:
        return 0
    count = max(-(-sum(need.nbytes for need in fitting.values()) // max(room, 1)), 1)
    while place_models(fitting, dict.fromkeys(map(str, range(count)), room)).unplaced:
        count += 1
    return count


def place_models(
    needs: Mapping[str, ModelNeed],
    rooms: Mapping[str, int],
    before: Mapping[str, Set[str]] | None = None,
    loads: Mapping[str, float] | None = None,
) -> FleetLayout:
    """Place models on replicas.

    Args:
        needs: of each model.
        rooms: of each replica, bytes.
        before: where models lie now; of models and replicas that are not there any more it may still tell.
        loads: what models have to do, for rule 6: those that are left out have nothing. None if room is to be left.
    """
    kept = _Layout(needs, rooms, before or {}, spreads=loads is not None)
    kept.fill()
    if kept.missing():
        kept.displace()
        kept.fill()
    if kept.missing():
        anew = _Layout(needs, rooms, {})
        anew.fill()
        if len(anew.missing()) < len(kept.missing()):
            kept = anew
    if loads is not None:
        kept.spread(loads)
    return kept.placement()


class _Layout:
    """A placement that is being made."""

    def __init__(
        self,
        needs: Mapping[str, ModelNeed],
        rooms: Mapping[str, int],
        before: Mapping[str, Set[str]],
        *,
        spreads: bool = False,
    ) -> None:
        self._needs = needs
        self._rooms = rooms
        self._on = {name: {model for model in before.get(name, ()) if model in needs} for name in sorted(rooms)}
        self._left = {name: room - self._sum(self._on[name]) for name, room in rooms.items()}
        self._by_size = sorted(needs, key=lambda model: (-needs[model].nbytes, model))
        for name in self._on:
            self._shrink(name)
        for model in [] if spreads else needs:
            for name in self._holders(model)[max(needs[model].copies, 1) :]:
                self._remove(name, model)

    def _sum(self, models: Iterable[str]) -> int:
        return sum(self._needs[model].nbytes for model in models)

    def _holders(self, model: str) -> list[str]:
        return [name for name, models in self._on.items() if model in models]

    def _remove(self, name: str, model: str) -> None:
        self._on[name].discard(model)
        self._left[name] += self._needs[model].nbytes

    def _shrink(self, name: str) -> None:
        """Rule 2, for a replica whose models need more than it has."""
        while self._left[name] < 0:
            by_size = sorted(self._on[name], key=lambda model: (self._needs[model].nbytes, model))
            enough = [model for model in by_size if self._needs[model].nbytes >= -self._left[name]]
            self._remove(name, (enough or by_size[-1:])[0])

    def fill(self) -> None:
        """Rule 3."""
        for copy in range(1, max([need.copies for need in self._needs.values()], default=1) + 1):
            for model in self._by_size:
                holders = self._holders(model)
                if len(holders) < copy <= max(self._needs[model].copies, 1):
                    self._add(model, holders)

    def spread(self, loads: Mapping[str, float]) -> None:
        """Rule 6."""
        open_to = {model for model in self._needs if self._holders(model)}
        while open_to:
            model = min(open_to, key=lambda each: (len(self._holders(each)), -loads.get(each, 0.0), each))
            if not self._add(model, self._holders(model)):
                open_to.discard(model)

    def _add(self, model: str, holders: list[str]) -> bool:
        nbytes = self._needs[model].nbytes
        names = [name for name in self._on if name not in holders and self._left[name] >= nbytes]
        if names:
            name = max(names, key=lambda each: self._left[each])  # the first of equals
            self._on[name].add(model)
            self._left[name] -= nbytes
        return bool(names)

    def displace(self) -> None:
        """Rule 4, the first half."""
        for model in [each for each in self._by_size if not self._holders(each)]:
            options = [(self._leaving(name, self._needs[model].nbytes), name) for name in self._on]
            able = [(self._sum(leaving), name, leaving) for leaving, name in options if leaving is not None]
            if able:
                _, name, leaving = min(able)
                for each in leaving:
                    self._remove(name, each)
                self._add(model, [other for other in self._on if other != name])

    def _leaving(self, name: str, nbytes: int) -> list[str] | None:
        """The further copies that would leave a replica for so many bytes; None if there are not enough."""
        further = [model for model in self._on[name] if len(self._holders(model)) > 1]
        leaving: list[str] = []
        for model in sorted(further, key=lambda each: (-self._needs[each].nbytes, each)):
            if self._left[name] + self._sum(leaving) >= nbytes:
                break
            leaving.append(model)
        return leaving if self._left[name] + self._sum(leaving) >= nbytes else None

    def missing(self) -> list[str]:
        return [model for model in self._needs if not self._holders(model)]

    def placement(self) -> FleetLayout:
        widest = max(self._left.values(), default=0)
        unplaced = {
            model: f"model '{model}' needs {self._needs[model].nbytes} bytes, "
            + (f"no replica has more than {widest} left" if self._rooms else "there is no replica")
            for model in self.missing()
        }
        short = {
            model
            for model, need in self._needs.items()
            if model not in unplaced and len(self._holders(model)) < need.copies
        }
        return FleetLayout({name: frozenset(models) for name, models in self._on.items()}, unplaced, frozenset(short))
