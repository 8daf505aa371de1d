"""How many replicas a fleet is to have, by the time that requests wait in queues, by what the planner predicts, and by
the memory that its models need.

Rules:
 1. Too slow: requests for some model have waited longer than the target, on average over all replicas, for `up_s`. Then
    replicas are added, in proportion to how much too long they waited: one at least, and at most as many as there are.
 2. Too many: with one replica less, requests for any model would be expected to wait half the target at most
    (`expected_wait_s`), and that has been so for `down_s`. Then one is taken away. Which one is not known, so it is
    taken for one of those that have told of the model; a model that is on one replica only moves to another one.
 3. After a change nothing is decided for `settle_s`: new replicas have to start, and figures to follow.
 4. Never fewer than `least`, nor than the models need for their memory (`placement.replicas_needed`), and never more
    than `most`; outside of these the number is brought back at once.
 5. Without readings nothing changes but by rule 4: that no replica reports does not mean that none is needed.
 6. Where it is known how many requests a second one replica answers in time (`capacities`), those that come say how
    many replicas are needed, before anybody waits: the sum over the models of their requests by their capacity
    (`planned_replicas`). Too few by that counts as too slow (rule 1), and none is taken away that it needs (rule 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """Attributes:
    least, most: replicas.
    target_s: how long requests may wait in queues, mean, seconds.
    up_s, down_s: how long it must have been too slow, or too many, seconds.
    settle_s: see rule 3, seconds.
    capacities: requests a second of a model that one replica answers in time if it has nothing else to do, as
        predicted, by model; see rule 6.
    """

    least: int = 1
    most: int = 1
    target_s: float = 0.01
    up_s: float = 3.0
    down_s: float = 30.0
    settle_s: float = 10.0
    capacities: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadReading:
    """What one replica has measured of one model since the reading before.

    Attributes:
        rate_hz: requests that were answered, for each second.
        queue_s: how long they waited in queues, mean, seconds.
        busy: how many instances were executing, on average.
        instances: there are.
    """

    rate_hz: float
    queue_s: float
    busy: float
    instances: int


class ReplicaScaler:
    """Decides, from readings, how many replicas there are to be."""

    def __init__(self, settings: ScalingSettings) -> None:
        self.settings = settings
        self.why = "nothing has been measured yet"
        self._slow_since_s = math.inf
        self._idle_since_s = math.inf
        self._settled_s = -math.inf

    def decide(
        self, replicas: int, readings: Mapping[str, Sequence[LoadReading]], now_s: float, needed: int = 0
    ) -> int:
        """How many there are to be; `why` says why.

        Args:
            replicas: how many there are, or are being started.
            readings: by model, of those replicas that have told.
            needed: so many the models need for their memory; 0 if each replica has all models, or it is not known.
        """
        settings = self.settings
        least = min(max(settings.least, needed), settings.most)
        wanted = self._by_load(replicas, readings, now_s) if readings else replicas
        bounded = min(max(wanted, least), settings.most)
        if bounded != wanted:
            self.why = f"there are to be {least} to {settings.most}"
            if needed > settings.least:
                self.why += f", as the models need {needed} for their memory"
        if bounded != replicas:
            self._settled_s = now_s + settings.settle_s
            self._slow_since_s = self._idle_since_s = math.inf
        return bounded

    def _by_load(self, replicas: int, readings: Mapping[str, Sequence[LoadReading]], now_s: float) -> int:
        settings = self.settings
        wait_s, model = max((mean_wait_s(told), name) for name, told in readings.items())
        fewer_s = max(expected_wait_s(told, max(len(told) - 1, 1)) for told in readings.values())
        fewer_s = fewer_s if replicas > 1 else math.inf
        planned = planned_replicas(readings, settings.capacities)
        is_slow = wait_s > settings.target_s or planned > replicas
        is_idle = fewer_s <= settings.target_s / 2 and planned < replicas
        self._slow_since_s = min(self._slow_since_s, now_s) if is_slow else math.inf
        self._idle_since_s = min(self._idle_since_s, now_s) if is_idle else math.inf
        if now_s < self._settled_s:
            return replicas
        if now_s - self._slow_since_s >= settings.up_s:
            by_wait = math.ceil(replicas * wait_s / settings.target_s) if wait_s > settings.target_s else 0
            target_ms = settings.target_s * 1e3
            self.why = f"requests for '{model}' wait {wait_s * 1e3:.1f} ms, the target is {target_ms:.1f} ms"
            if planned > max(replicas, by_wait):
                self.why = f"the requests that come need {planned} replicas by the capacities that were planned"
            return min(max(by_wait, planned, replicas + 1), 2 * replicas)
        if now_s - self._idle_since_s >= settings.down_s and wait_s <= settings.target_s:
            self.why = f"with one replica less requests would wait about {fewer_s * 1e3:.1f} ms"
            return replicas - 1
        self.why = f"requests for '{model}' wait {wait_s * 1e3:.1f} ms"
        return replicas


def planned_replicas(readings: Mapping[str, Sequence[LoadReading]], capacities: Mapping[str, float]) -> int:
    """How many replicas are needed for the requests that come, by what each can answer in time; 0 if nothing is known
    of the models that are asked."""
    parts = (
        sum(each.rate_hz for each in told) / capacities[name] for name, told in readings.items() if name in capacities
    )
    return math.ceil(sum(parts) - 1e-9)


def mean_wait_s(readings: Sequence[LoadReading]) -> float:
    """How long a request has waited, mean over all, seconds."""
    rate_hz = sum(each.rate_hz for each in readings)
    return sum(each.rate_hz * each.queue_s for each in readings) / rate_hz if rate_hz else 0.0


def expected_wait_s(readings: Sequence[LoadReading], replicas: int) -> float:
    """How long requests would wait with so many replicas, seconds; infinite if they could not keep up.

    Each replica is taken for a queue of its own before its instances, with arrivals at random and service times that
    vary as much (M/M/c: Erlang's C formula).
    """
    told = len(readings)
    rate_hz = sum(each.rate_hz for each in readings) / replicas
    busy = sum(each.busy for each in readings) / replicas
    instances = max(round(sum(each.instances for each in readings) / told), 1)
    if busy >= instances:
        return math.inf
    if not rate_hz:
        return 0.0
    service_s = busy / rate_hz
    return _waits(instances, busy) * service_s / (instances - busy)


def _waits(servers: int, load: float) -> float:
    """How probable it is that an arrival has to wait: Erlang's C, by the recursion of his B formula."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))
