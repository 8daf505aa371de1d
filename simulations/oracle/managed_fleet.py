"""How many replicas a fleet is to have, and which models each is to hold, stated naively: what `engine.fleet.scaling`
and `engine.fleet.roster` decide is held against all that they were told."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ...engine.fleet.placement import FleetLayout
from ...engine.fleet.roster import FleetRoster, ModelSettings, ReplicaTold
from ...engine.fleet.scaling import LoadReading, ReplicaScaler, ScalingSettings

_ROUNDING = 1e-9


class WatchedScaler(ReplicaScaler):
    """Complains when it decides what its rules do not leave.

    Args:
        complain: told what is wrong.
    """

    def __init__(self, settings: ScalingSettings, *, complain: Callable[[str], None]) -> None:
        super().__init__(settings)
        self._complain = complain
        self._changed_s = -math.inf
        self._replicas = 0
        self._waits: list[tuple[float, float, float, float]] = []
        """Since the latest change: when, for how long requests waited, how long they would with one replica less, and
        how many replicas were needed by the capacities that are planned, as a fraction."""

    def decide(
        self, replicas: int, readings: Mapping[str, Sequence[LoadReading]], now_s: float, needed: int = 0
    ) -> int:
        wanted = super().decide(replicas, readings, now_s, needed)
        settings = self.settings
        least = max(settings.least, needed)
        if readings:
            fewer_s = max(_wait_with_one_less_s(told) for told in readings.values())
            wait_s = max(_mean_wait_s(told) for told in readings.values())
            self._replicas = replicas
            self._waits.append((now_s, wait_s, fewer_s, self._planned(readings)))
        if wanted != settings.most and not least <= wanted <= settings.most:
            self._complain(f"there are to be {wanted} replicas, of {least} to {settings.most}")
        bounded = min(max(replicas, least), settings.most)
        if replicas != bounded:
            if not readings and wanted != bounded:
                self._complain(f"there are to be {wanted} replicas, {bounded} is what is allowed")
        elif wanted != replicas:
            self._check_change(replicas, wanted, bool(readings), now_s)
        elif readings and self._must_grow(replicas, now_s):
            self._complain(f"requests wait for too long, and {replicas} replicas stay as many")
        if wanted != replicas:
            self._changed_s = now_s
            self._waits.clear()
        return wanted

    def _planned(self, readings: Mapping[str, Sequence[LoadReading]]) -> float:
        planned = 0.0
        for name, capacity_hz in self.settings.capacities.items():
            for each in readings.get(name, ()):
                planned += each.rate_hz / capacity_hz
        return planned

    def _check_change(self, replicas: int, wanted: int, told: bool, now_s: float) -> None:
        settings = self.settings
        if not told:
            self._complain(f"{wanted} replicas instead of {replicas}, though nothing was measured")
        if now_s < self._changed_s + settings.settle_s:
            self._complain(f"{wanted} replicas instead of {replicas}, {now_s - self._changed_s:.2f} s after a change")
        grows = wanted > replicas
        since_s = self._too_slow_s() if grows else self._too_many_s()
        was = now_s - since_s >= (settings.up_s if grows else settings.down_s) - _ROUNDING
        if not was:
            self._complain(f"{wanted} replicas instead of {replicas}, and requests waited {self._waits[-5:]}")
        if grows and wanted > 2 * replicas:
            self._complain(f"{wanted} replicas instead of {replicas}")
        if not grows and wanted != replicas - 1:
            self._complain(f"{wanted} replicas instead of {replicas}: more than one is taken away")

    def _since_s(self, holds: Callable[[float, float, float], bool]) -> float:
        """Since when that has been so, by what was measured."""
        since_s = math.inf
        for at_s, wait_s, fewer_s, planned in reversed(self._waits):
            if not holds(wait_s, fewer_s, planned):
                break
            since_s = at_s
        return since_s

    def _must_grow(self, replicas: int, now_s: float) -> bool:
        settings = self.settings
        settled = now_s >= self._changed_s + settings.settle_s + _ROUNDING
        return settled and replicas < settings.most and now_s - self._too_slow_s() >= settings.up_s + _ROUNDING

    def _too_slow_s(self) -> float:
        most = self._replicas + _ROUNDING
        return self._since_s(lambda wait_s, _, planned: wait_s > self.settings.target_s or planned > most)

    def _too_many_s(self) -> float:
        if self._waits and self._waits[-1][1] > self.settings.target_s:
            return math.inf
        most = self._replicas - 1 + _ROUNDING
        return self._since_s(lambda _, fewer_s, planned: fewer_s <= self.settings.target_s / 2 and planned <= most)


def _mean_wait_s(told: Sequence[LoadReading]) -> float:
    count = sum(each.rate_hz for each in told)
    return sum(each.rate_hz * each.queue_s for each in told) / count if count else 0.0


def _wait_with_one_less_s(told: Sequence[LoadReading]) -> float:
    """Erlang's C formula as it stands in books, for what the replicas have to do if one of them is not there."""
    fewer = max(len(told) - 1, 1)
    busy, rate_hz = sum(each.busy for each in told) / fewer, sum(each.rate_hz for each in told) / fewer
    instances = max(round(sum(each.instances for each in told) / len(told)), 1)
    if busy >= instances or not rate_hz:
        return math.inf if busy >= instances else 0.0
    all_busy = busy**instances / math.factorial(instances) * instances / (instances - busy)
    waits = all_busy / (sum(busy**count / math.factorial(count) for count in range(instances)) + all_busy)
    return waits * (busy / rate_hz) / (instances - busy)


class WatchedRoster(FleetRoster):
    """Complains when it plans what the rules of placement do not leave; `complain` is told what is wrong."""

    complain: Callable[[str], None]
    latest = 0.0
    """Release."""

    def configure(
        self, room: int | None, copies: int, models: Mapping[str, ModelSettings], release: float = 0.0
    ) -> None:
        self.latest = release
        super().configure(room, copies, models, release)

    def tell(self, name: str, told: ReplicaTold, now_s: float) -> frozenset[str] | None:
        before = self.layout
        wanted = super().tell(name, told, now_s)
        if wanted is not None and told.release < self.latest and not told.draining and wanted != told.ready:
            self.complain(f"{name} of an earlier release has {sorted(told.ready)} and is to have {sorted(wanted)}")
        if self.layout is not before and self._room is not None:
            self._check(before, self.layout, told.sizes, self._room)
        return wanted

    def _check(self, before: FleetLayout, after: FleetLayout, sizes: Mapping[str, int], room: int) -> None:
        left: dict[str, int] = {}
        for name, models in after.on.items():
            left[name] = room - sum(sizes[model] for model in models)
            if left[name] < 0:
                self.complain(f"{name} is to hold {sorted(models)}, which need {-left[name]} bytes more than it has")
        for model in after.unplaced:
            fits = [name for name, nbytes in left.items() if nbytes >= sizes[model]]
            if fits or after.replicas_of(model):
                self.complain(f"'{model}' has no place, though there is room on {fits}")
        placed_before = {model for models in before.on.values() for model in models}
        if before.unplaced or after.unplaced or not set(before.on) <= set(after.on):
            return
        for model in placed_before:
            was, now = before.replicas_of(model), after.replicas_of(model)
            has = {name for name, member in self._members.items() if model in member.told.ready}
            if now and not set(was) & set(now) and not has & set(now):
                self.complain(f"'{model}' moves from {was} to {now}, though all replicas are there")
