"""From profiles to what is played: how long a batch takes, drawn from what was measured, and what the host adds.

Rules:
 1. Between two measured sizes of a batch the quantiles are interpolated by rows; beyond the largest they grow as they
    do between the last two, below the smallest they are its own.
 2. Batches of instances side by side are slower by what was measured. The part of it that cores explain is left to
    the cores of the prediction, where all models and the event loop compete; the rest (caches, memory bandwidth, a
    GPU) scales the batch. Beyond the most that were measured the rest stays what it was.
 3. A request's work on the event loop is split between taking it in and answering it, a batch's between waking up,
    beginning it and hearing of its end; a batch on the event loop needs one wake-up, and has no end to be heard of.
    What is outside of the loop lies before and behind it.
 4. Of two measured sizes of requests the difference is by the byte of the inputs, of an answer by its rows.
 5. A wake-up after a rest costs more, on the loop and, for the requests that it brings, outside of it. Between two
    measured rests that grows as the square root of the rest, up to the first one in proportion to it. What is outside
    is half the loop's, which hears late, and then of all that has come meanwhile, and half the client's. A part of the
    loop's (`_SETTLING`) comes when all answers are written. It is no part of a latency, so where one was measured,
    waking up took as long. Now and then waking up takes far longer (`HostPoint.late`).
 6. With front ends the costs are those that were measured with one. A front end's work on a request is split as the
    loop's, and its turns are counted.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

from ..engine.config.model import ModelConfig
from ..engine.errors import InvalidArgumentError
from ..engine.logs.request_log import LoggedRequest
from ..engine.profiles import ExecutorKind, HostPoint, ModelProfile, RestedLoop, ServicePoint, TimeDistribution, Way
from ..engine.profiles.durations import PLACES
from ..simulations.planning import ExecutionPlace, HostCosts, PlannedModel
from .models import ForeseenModel
from .planned_steps import planned_steps

_TAKING_IN = 0.6
"""Of a request's work: decoding and checking takes longer than encoding."""
_WAKING = 0.6
"""Of a batch's work, for all wake-ups that it takes; the rest is its beginning and its end."""
_WAY_IN = 0.4
"""Of what is outside."""
_ROUSING = 0.5
"""Of what a rest costs outside of the loop, until the loop is awake."""
_SETTLING = 0.3
"""Of what a rest costs the loop."""
_ASLEEP_S = 0.0005
"""A loop that has slept for less is awake at once."""
_LEAST_FACTOR = 0.8
_TIMER_STEP_S = 0.001
"""Of the sleep of an event loop: Linux's epoll counts in milliseconds, and Python rounds up."""
_FINENESS = 10
"""Rests that differ by less than a tenth are taken to be alike."""
_NOTHING = 0.0, 0.0, 0.0
_ALONE = ServicePoint(1, 1, 1.0, TimeDistribution.constant(0.0))

_PLACES = {
    ExecutorKind.THREAD: ExecutionPlace.THREAD,
    ExecutorKind.PROVING: ExecutionPlace.PROVING,
    ExecutorKind.PROCESS: ExecutionPlace.PROCESS,
    ExecutorKind.DEVICE: ExecutionPlace.DEVICE,
}


class ProfiledTimes:
    """How long batches of one model take (`simulations.planning.ServiceTime`).

    Args:
        factor: on all of it; see `prediction`, where it stands for what the measurement does not know.
    """

    def __init__(self, profile: ModelProfile, factor: float = 1.0) -> None:
        alone = sorted((p for p in profile.service if p.side_by_side == 1), key=lambda point: point.rows)
        self._alone = [(point.rows, point.time) for point in alone]
        self._factor = factor
        self._slower = interference(profile)
        self._drawn: dict[tuple[int, int], Callable[[float], float]] = {}

    def __call__(self, rows: int, busy: int, chance: Random) -> float:
        draw = self._drawn.get((rows, busy))
        if draw is None:
            factor = self._factor * slowed(self._slower, busy)
            draw = self._drawn[rows, busy] = drawing(self.distribution(rows).scaled(factor))
        return draw(chance.random())

    def distribution(self, rows: int) -> TimeDistribution:
        """That of batches of so many rows, by one instance alone (rule 1)."""
        sizes = [each for each, _ in self._alone]
        index = bisect_right(sizes, rows)
        if index and sizes[index - 1] == rows:
            return self._alone[index - 1][1]
        if not index:
            return self._alone[0][1]
        if index == len(sizes):
            return self._beyond(rows)
        (before, low), (after, high) = self._alone[index - 1], self._alone[index]
        return _between(low, high, (rows - before) / (after - before))

    def _beyond(self, rows: int) -> TimeDistribution:
        largest, time = self._alone[-1]
        if len(self._alone) == 1 or time.mean_s <= 0:
            return time
        before, low = self._alone[-2]
        slope = max(0.0, (time.mean_s - low.mean_s) / (largest - before))
        return time.scaled((time.mean_s + slope * (rows - largest)) / time.mean_s)


def drawing(distribution: TimeDistribution) -> Callable[[float], float]:
    """What turns a number from 0 to 1 into a duration, in seconds."""
    places, last = PLACES, len(PLACES) - 1
    quantiles = [each * distribution.correction for each in distribution.quantiles_s]

    def draw(place: float) -> float:
        index = min(bisect_right(places, place), last)
        low, before = places[index - 1], quantiles[index - 1]
        return before + (quantiles[index] - before) * (place - low) / (places[index] - low)

    return draw


def _between(low: TimeDistribution, high: TimeDistribution, part: float) -> TimeDistribution:
    def mixed(one: float, other: float) -> float:
        return one + (other - one) * part

    quantiles = tuple(map(mixed, low.quantiles_s, high.quantiles_s))
    count = min(low.count, high.count)
    return TimeDistribution(count, mixed(low.mean_s, high.mean_s), mixed(low.error_s, high.error_s), quantiles)


def interference(profile: ModelProfile) -> list[tuple[int, float]]:
    """By instances side by side, ascending, what their batches take more than one alone and cores explain (rule 2). Of
    medians: a few batches that other programs held up are not slower for their company."""
    alone = {point.rows: point for point in profile.service if point.side_by_side == 1}
    ratios: dict[int, list[float]] = {1: [1.0]}
    for point in profile.service:
        base = alone.get(point.rows)
        alone_s = base.time.quantile(0.5) if base is not None else 0.0
        if point.side_by_side > 1 and base is not None and alone_s > 0:
            explained = max(1.0, point.side_by_side * base.cores / profile.origin.cores)
            ratio = point.time.quantile(0.5) / alone_s / explained
            ratios.setdefault(point.side_by_side, []).append(max(_LEAST_FACTOR, ratio))
    return [(count, sum(each) / len(each)) for count, each in sorted(ratios.items())]


def slowed(known: Sequence[tuple[int, float]], busy: int) -> float:
    """The factor for so many instances side by side, interpolated between those that are known."""
    counts = [count for count, _ in known]
    index = bisect_right(counts, busy)
    if index == len(counts):
        return known[-1][1]
    (before, low), (after, high) = known[index - 1], known[index]
    return low + (high - low) * (busy - before) / (after - before)


def planned_model(
    model: ForeseenModel, factor: float = 1.0, config: ModelConfig | None = None, way: Way = Way.HTTP
) -> PlannedModel:
    """A model as `simulations.planning.play` takes it.

    Args:
        factor: see `ProfiledTimes`.
        config: another configuration than the present one, to be tried.
        way: how requests come.

    Raises:
        InvalidArgumentError: the model generates text, of whose steps its profile knows nothing.
    """
    profile = model.profile
    config = config or model.config
    if profile is None:
        return PlannedModel(config)
    if profile.generation is not None:
        return PlannedModel(config, steps=planned_steps(profile, config, factor, way))
    if config.generates_text:
        raise InvalidArgumentError(f"the profile of '{config.name}' knows nothing of its steps. Profile again")
    points = [point for point in profile.service if point.side_by_side == 1]
    weights = sum(point.time.mean_s for point in points)
    cores = sum(point.cores * point.time.mean_s for point in points) / weights if weights > 0 else _ALONE.cores
    return PlannedModel(config, ProfiledTimes(profile, factor), _PLACES[profile.executor], cores)


class ProfiledCosts(HostCosts):
    """What requests cost the host (rule 3).

    Args:
        profiles: by the name of the model; a model without one, an ensemble, costs what others do on average.
        cores: that the server has for all its work.
        way: how requests come that do not say.
        factor: on the loop's work.
        loop_first, front_ends, clients_here: see `HostCosts`.
    """

    def __init__(
        self,
        profiles: Mapping[str, ModelProfile],
        cores: float,
        way: Way,
        chance: Random,
        factor: float = 1.0,
        loop_first: bool = True,
        front_ends: int = 0,
        clients_here: bool = False,
    ) -> None:
        self.cores = cores
        self.clients_here = clients_here
        self.loop_first = loop_first
        self.front_ends = front_ends
        self._chance = chance
        apart = front_ends > 0
        self._points = {name: host_point(profile, way, apart) for name, profile in profiles.items()}
        self._by_byte = {name: _by_byte(profile, way, apart) for name, profile in profiles.items()}
        known = [point for point in self._points.values() if point is not None]
        self._usual = _usual_point(known, way)
        self._factor = factor
        on_loop = {name: profile.on_loop for name, profile in profiles.items()}
        part = sum(_WAKING if each else _WAKING / 2 for each in on_loop.values()) / max(1, len(on_loop))
        self._wake_s = factor * self._usual.batch_s * part
        self._edges = {name: 1 if each else 2 for name, each in on_loop.items()}
        self._rested = resting(known)
        self._late = [drawing(point.late) for point in known if point.late.mean_s > 0]
        self._crowded = [drawing(point.crowded) for point in known if point.crowded.mean_s > 0]
        self._settle_s = 0.0
        self._woken_late_s = self._late_s = 0.0  # what this wake-up's rest costs clients; that of the last request
        answers = {name: point.answer_s for name, point in self._points.items() if point is not None}
        self._answer_s = {name: factor * answer_s for name, answer_s in answers.items()}
        self._outside = {name: drawing(self._of(name).outside) for name in self._points}
        self._usual_outside = drawing(self._usual.outside)
        self._start = {name: drawing(profile.start) for name, profile in profiles.items()}
        self._notice = {name: drawing(profile.notice) for name, profile in profiles.items()}

    def _of(self, model: str) -> HostPoint:
        return self._points.get(model) or self._usual

    def rouse(self, rested_s: float) -> float:
        loop_s, outside_s = self._rested(rested_s)
        late_s = 0.0
        if self._late and rested_s >= _ASLEEP_S:
            late_s = self._chance.choice(self._late)(self._chance.random())
        return outside_s * _ROUSING + self._factor * loop_s * _SETTLING + late_s

    def crowded(self) -> float:
        return self._chance.choice(self._crowded)(self._chance.random()) if self._crowded else 0.0

    def wake(self, events: int, rested_s: float) -> float:
        loop_s, outside_s = self._rested(rested_s)
        self._woken_late_s = outside_s * (1 - _ROUSING)
        self._settle_s = self._factor * loop_s * _SETTLING
        return self._wake_s + self._factor * loop_s * (1 - _SETTLING)

    def settle(self) -> float:
        return self._settle_s

    def admit(self, request: LoggedRequest) -> float:
        self._late_s = self._woken_late_s
        point = self._of(request.model)
        request_s = point.request_s + self._more_bytes(request) * self._by_byte.get(request.model, _NOTHING)[0]
        return self._factor * request_s * _TAKING_IN

    def answer(self, model: PlannedModel, rows: int, well: bool) -> float:
        point = self._of(model.name)
        more = (rows - 1) * point.nbytes if well else 0
        request_s = point.request_s + more * self._by_byte.get(model.name, _NOTHING)[0]
        return self._factor * request_s * (1 - _TAKING_IN)

    def front_turn(self) -> float:
        return self._factor * self._usual.front_turn_s

    def front_in(self, request: LoggedRequest) -> float:
        more_s = self._more_bytes(request) * self._by_byte.get(request.model, _NOTHING)[2]
        return self._factor * (self._of(request.model).front_request_s + more_s) * _TAKING_IN

    def front_out(self, model: PlannedModel, rows: int, well: bool) -> float:
        point = self._of(model.name)
        more = (rows - 1) * point.nbytes if well else 0
        more_s = more * self._by_byte.get(model.name, _NOTHING)[2]
        return self._factor * (point.front_request_s + more_s) * (1 - _TAKING_IN)

    def token(self, model: str, texts: int) -> float:
        return texts * self._answer_s.get(model, 0.0)

    def _more_bytes(self, request: LoggedRequest) -> int:
        """Of the inputs, than those of the request that was measured."""
        point = self._of(request.model)
        return max(0, (request.nbytes or request.rows * point.nbytes) - point.nbytes)

    def begin(self, model: PlannedModel, requests: int, rows: int) -> float:
        return self._factor * self._of(model.name).batch_s * (1 - _WAKING) / self._edges.get(model.name, 2)

    def over(self, model: PlannedModel, requests: int, rows: int) -> float:
        return self.begin(model, requests, rows)

    def start(self, model: PlannedModel, requests: int, rows: int) -> float:
        draw = self._start.get(model.name)
        return draw(self._chance.random()) if draw is not None else 0.0

    def notice(self, model: PlannedModel, requests: int, rows: int) -> float:
        draw = self._notice.get(model.name)
        return draw(self._chance.random()) if draw is not None else 0.0

    def timer_late(self) -> float:
        return self._chance.random() * _TIMER_STEP_S

    def way_in(self, request: LoggedRequest) -> float:
        more_s = self._more_bytes(request) * self._by_byte.get(request.model, _NOTHING)[1]
        return self._of(request.model).outside.mean_s * _WAY_IN + more_s

    def way_out(self, model: PlannedModel, well: bool) -> float:
        draw = self._outside.get(model.name, self._usual_outside)
        mean_s = self._of(model.name).outside.mean_s
        return self._late_s + max(0.0, draw(self._chance.random()) - mean_s * _WAY_IN)


def resting(points: Sequence[HostPoint]) -> Callable[[float], tuple[float, float]]:
    """What a wake-up costs more, on the loop and outside of it, by how long the loop has slept: the mean of what was
    measured, and no more than for the longest (rule 5)."""
    curves = [each.rested for each in points if len(each.rested) > 1]
    known: dict[int, tuple[float, float]] = {}

    def cost(rested_s: float) -> tuple[float, float]:
        if not curves or rested_s <= 0:
            return 0.0, 0.0
        place = round(math.log(rested_s) * _FINENESS)
        found = known.get(place)
        if found is None:
            costs = [_rested_cost(curve, math.exp(place / _FINENESS)) for curve in curves]
            found = known[place] = (
                sum(each[0] for each in costs) / len(costs),
                sum(each[1] for each in costs) / len(costs),
            )
        return found

    return cost


def _rested_cost(curve: Sequence[RestedLoop], rested_s: float) -> tuple[float, float]:
    index = bisect_right([each.rest_s for each in curve], rested_s)
    if not index:
        return 0.0, 0.0
    low = curve[index - 1]
    if index == len(curve):
        return low.loop_s, low.outside_s
    high = curve[index]
    power = 0.5 if low.rest_s else 1.0
    part = (rested_s**power - low.rest_s**power) / (high.rest_s**power - low.rest_s**power)
    return low.loop_s + (high.loop_s - low.loop_s) * part, low.outside_s + (high.outside_s - low.outside_s) * part


def host_point(profile: ModelProfile, way: Way, front_ends: bool = False) -> HostPoint | None:
    """What the smallest requests of this way cost, to a server with front ends or to one without; of another way, if
    that was not measured; None if nothing was."""
    return next(iter(_host_points(profile, way, front_ends)), None)


def _host_points(profile: ModelProfile, way: Way, front_ends: bool) -> list[HostPoint]:
    """By size, the smallest first."""
    points = [point for point in profile.host if (point.front_ends > 0) is front_ends]
    for wanted in (way, next((point.way for point in points), way)):
        found = [point for point in points if point.way is wanted]
        if found:
            return sorted(found, key=lambda point: point.nbytes)
    return []


def front_ends_unknown(profiles: Iterable[ModelProfile]) -> str:
    """Why it cannot be told what front ends would do for these models; empty if it can."""
    known = False
    for profile in profiles:
        if profile.generation is not None:
            return f"'{profile.model}' generates text, and is not measured with front ends"
        if profile.host and host_point(profile, Way.HTTP, front_ends=True) is None:
            return f"the profile of '{profile.model}' does not tell what requests cost with front ends. Profile again"
        known = known or bool(profile.host)
    return "" if known else "no profile tells what requests cost with front ends"


def served_factor(profile: ModelProfile | None, way: Way, front_ends: bool = False) -> float:
    """What a batch takes longer on a server that reads and writes meanwhile (`HostPoint.slowed`)."""
    point = host_point(profile, way, front_ends) if profile is not None else None
    return point.slowed if point is not None else 1.0


def _by_byte(profile: ModelProfile, way: Way, front_ends: bool) -> tuple[float, float, float]:
    """Seconds, of the event loop, outside of it and of a front end, that a byte more costs (rule 4)."""
    points = _host_points(profile, way, front_ends)
    if len(points) < 2 or points[-1].nbytes <= points[0].nbytes:
        return _NOTHING
    small, large = points[0], points[-1]
    more = large.nbytes - small.nbytes
    loop_s, outside_s = large.request_s - small.request_s, large.outside.mean_s - small.outside.mean_s
    front_s = large.front_request_s - small.front_request_s
    return max(0.0, loop_s) / more, max(0.0, outside_s) / more, max(0.0, front_s) / more


def _usual_point(known: Sequence[HostPoint], way: Way) -> HostPoint:
    """The mean of those that are known; nothing, if none is."""
    if not known:
        return HostPoint(way, 0, 0, 0.0, 0.0, TimeDistribution.constant(0.0))
    count = len(known)
    outside = known[0].outside
    for number, point in enumerate(known[1:], start=2):
        outside = _between(outside, point.outside, 1 / number)

    def mean(name: str) -> float:
        return sum(getattr(each, name) for each in known) / count

    return HostPoint(
        *(way, 0, known[0].front_ends, mean("request_s"), mean("batch_s"), outside),
        front_request_s=mean("front_request_s"),
        front_turn_s=mean("front_turn_s"),
    )
