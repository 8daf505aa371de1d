"""Who belongs to a fleet on Ray, and which models each replica is to hold; kept by one small actor.

Rules:
 1. Replicas and gateways tell of themselves every second. One that has not been heard of for `silent_s` does not belong
    to the fleet any more. So nothing is lost with the actor: when it is started again, all tell it within a second. In
    its first `settle_s` it does not know of all: gateways keep those that they know, and nothing is planned.
 2. Where replicas have room for some of the models only, each is told which ones to hold (`placement`).
    It is planned anew when a replica has come or gone, or models have changed; room that is left is for further copies
    of those with most to do then.
    A replica keeps what it has and what was planned for it; if that is too much, since models move, what was planned.
 3. A model that is to move is loaded in its new place first: its old one is told to unload it when it has been ready
    there for `heard_s`, so that all gateways know.
 4. A replica that drains gets nothing new. Its models are planned for the others, and it keeps them until they are
    ready there; also one that has no place, as another replica may be about to come, unless none of those that stay has
    it in its repository.
 5. A replica is told to load a model when it has room for that beside all that it has in memory, the models included
    that it is to unload: those that are ready nowhere first. Only if nothing has moved for `silent_s` and `heard_s`,
    since each waits for another one's room, one replica gets what it is to have without it.
 6. While one release takes the place of another, replicas of the earlier one keep what they have, and that needs no
    place on others until they drain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from .placement import FleetLayout, ModelNeed, place_models

SILENT_S = 6.0
SETTLE_S = 3.0
HEARD_S = 3.0


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What the settings of a fleet say of a model.

    Attributes:
        nbytes: of memory; None for what the files of the model take.
        copies: on so many replicas.
    """

    nbytes: int | None = None
    copies: int | None = None


def model_needs(sizes: Mapping[str, int], settings: Mapping[str, ModelSettings], copies: int) -> dict[str, ModelNeed]:
    """What models need.

    Args:
        sizes: bytes of each model's files.
        copies: of each model, unless its settings say otherwise.
    """
    needs: dict[str, ModelNeed] = {}
    for model, nbytes in sizes.items():
        own = settings.get(model, ModelSettings())
        needs[model] = ModelNeed(
            nbytes if own.nbytes is None else own.nbytes, copies if own.copies is None else own.copies
        )
    return needs


@dataclass(frozen=True, slots=True)
class ReplicaTold:
    """What a replica tells of itself.

    Attributes:
        address: host and port of its gRPC service.
        sizes: bytes of each model of its repository, as far as is known; empty if it holds all of them.
        ready: the models that it has in memory.
        rates: requests a second of each model, as far as is known.
        draining: it is about to end.
        release: of the fleet's settings; a later one has a higher number.
        node, process: where it runs, and the number of its process; for people.
        failed: the models that it was to load and could not, with the reasons.
        changing: the models that it is loading or unloading, or is about to load: they may take memory.
    """

    address: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    ready: frozenset[str] = frozenset()
    rates: Mapping[str, float] = field(default_factory=dict)
    draining: bool = False
    release: float = 0.0
    node: str = ""
    process: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    changing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GatewayTold:
    """What a gateway tells of itself.

    Attributes:
        listening: its addresses, by service.
        linked: the members that it can send requests to.
    """

    listening: Mapping[str, str]
    linked: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Member:
    """Attributes:
    heard_s: when it last told.
    ready_s: since when each of its models is ready.
    """

    told: ReplicaTold
    heard_s: float
    ready_s: Mapping[str, float]


class FleetRoster:
    """The members of one fleet.

    Args:
        room: bytes for models on each replica; None if each holds all models.
        copies: of each model, unless `models` says otherwise.

    Attributes:
        layout: where models are to be.
    """

    def __init__(
        self,
        room: int | None = None,
        copies: int = 1,
        models: Mapping[str, ModelSettings] | None = None,
        silent_s: float = SILENT_S,
        settle_s: float = SETTLE_S,
        heard_s: float = HEARD_S,
    ) -> None:
        self.layout = FleetLayout({})
        self.configure(room, copies, models or {})
        self._silent_s = silent_s
        self._settle_s = settle_s
        self._heard_s = heard_s
        self._began_s = math.inf
        self._moved_s = -math.inf  # when a replica has last told of something new, or the plan was another one
        self._members: dict[str, _Member] = {}
        self._gateways: dict[str, tuple[GatewayTold, float]] = {}

    def configure(
        self, room: int | None, copies: int, models: Mapping[str, ModelSettings], release: float = 0.0
    ) -> None:
        """Plan so from now on, for replicas of this release; other arguments as for the class."""
        self._room = room
        self._copies = copies
        self._settings = models
        self._release = release
        self._planned_for: object = None

    def tell(self, name: str, told: ReplicaTold, now_s: float) -> frozenset[str] | None:
        """A replica tells of itself; which models it is to hold, or None if that is for itself to know."""
        before = self._members.get(name)
        since_s = before.ready_s if before is not None else {}
        if before is None or before.told.ready != told.ready or told.changing:
            self._moved_s = now_s
        self._members[name] = _Member(told, now_s, {model: since_s.get(model, now_s) for model in told.ready})
        self._forget(now_s)
        is_settled = self._is_settled(now_s)
        if self._room is None:
            return None
        if not is_settled or (told.release < self._release and not told.draining):
            return told.ready
        self._plan(now_s)
        wanted = frozenset() if told.draining else self.layout.on.get(name, frozenset())
        staying = {model for model in told.ready - wanted if not self._is_replaced(model, told, now_s)}
        return self._with_room(wanted, told, now_s) | staying

    def tell_gateway(self, name: str, told: GatewayTold, now_s: float) -> tuple[dict[str, ReplicaTold], bool]:
        """A gateway tells of itself; the members of the fleet, and whether these are all."""
        self._gateways[name] = (told, now_s)
        return self.members(now_s), self._is_settled(now_s)

    def gateways(self, now_s: float) -> dict[str, GatewayTold]:
        """What each gateway has told."""
        self._forget(now_s)
        return {name: told for name, (told, _) in sorted(self._gateways.items())}

    def leave(self, name: str, now_s: float) -> None:
        """A replica, or a gateway, has ended."""
        self._members.pop(name, None)
        self._gateways.pop(name, None)
        self._forget(now_s)

    def members(self, now_s: float) -> dict[str, ReplicaTold]:
        """Those that belong to the fleet."""
        self._forget(now_s)
        return {name: member.told for name, member in sorted(self._members.items())}

    def _is_settled(self, now_s: float) -> bool:
        self._began_s = min(self._began_s, now_s)
        return now_s >= self._began_s + self._settle_s

    def _forget(self, now_s: float) -> None:
        for name, member in list(self._members.items()):
            if now_s - member.heard_s > self._silent_s:
                del self._members[name]
        for name, (_, heard_s) in list(self._gateways.items()):
            if now_s - heard_s > self._silent_s:
                del self._gateways[name]

    def _plan(self, now_s: float) -> None:
        assert self._room is not None, "there is something to plan"
        staying = {name: member.told for name, member in self._members.items() if not member.told.draining}
        earlier = [told for told in staying.values() if told.release < self._release]
        placed = frozenset[str]().union(*(told.ready for told in earlier))
        members = {name: told for name, told in staying.items() if told.release >= self._release}
        sizes: dict[str, int] = {}
        for told in members.values():
            for model, nbytes in told.sizes.items():
                sizes[model] = max(nbytes, sizes.get(model, 0))
        if self._planned_for == (sizes, set(members), placed):
            return
        self._planned_for = (sizes, set(members), placed)
        self._moved_s = now_s
        rates: dict[str, float] = {}
        for told in staying.values():
            for model, rate_hz in told.rates.items():
                rates[model] = rates.get(model, 0.0) + rate_hz
        needs = self._needs({model: nbytes for model, nbytes in sizes.items() if model not in placed})
        before: dict[str, Set[str]] = {name: told.ready for name, told in members.items()}
        for name, models in self.layout.on.items():
            if name in before:
                both = before[name] | models
                fits = sum(needs[model].nbytes for model in both if model in needs) <= self._room
                before[name] = both if fits else models
        self.layout = place_models(needs, dict.fromkeys(members, self._room), before, rates)

    def _needs(self, sizes: Mapping[str, int]) -> dict[str, ModelNeed]:
        return model_needs(sizes, self._settings, self._copies)

    def _with_room(self, wanted: frozenset[str], told: ReplicaTold, now_s: float) -> frozenset[str]:
        """Rule 5: what of this a replica has, or is to load now."""
        assert self._room is not None, "there is something to plan"
        held = told.ready | told.changing
        missing = wanted - held
        if not missing:
            return wanted
        needs = self._needs({model: told.sizes.get(model, 0) for model in held | missing})
        left = self._room - sum(needs[model].nbytes for model in held)
        elsewhere = frozenset[str]().union(*(member.told.ready for member in self._members.values()))
        loads: set[str] = set()
        for model in sorted(missing, key=lambda each: (each in elsewhere, each)):
            if needs[model].nbytes <= left:
                loads.add(model)
                left -= needs[model].nbytes
        if now_s - self._moved_s > self._silent_s + self._heard_s:
            loads = set(missing)
        if loads - told.failed.keys():
            self._moved_s = now_s
        return (wanted & held) | loads

    def _is_replaced(self, model: str, told: ReplicaTold, now_s: float) -> bool:
        """Rule 3. A model that is planned for none has no place, or is not in the repository any more."""
        holders = self.layout.replicas_of(model)
        if told.draining and not holders:
            return self._is_given_up(model)
        members = [self._members[name] for name in holders if name in self._members]
        return all(now_s - each.ready_s.get(model, math.inf) >= self._heard_s for each in members)

    def _is_given_up(self, model: str) -> bool:
        """Rule 4, for a model that is planned for none."""
        staying = [each.told for each in self._members.values() if not each.told.draining]
        latest = [told for told in staying if told.release >= self._release] or staying
        return not any(model in told.sizes for told in latest) or any(model in told.ready for told in staying)
