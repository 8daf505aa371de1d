"""What a route is: a name that clients use as a model, and the models or versions that answer for it.

Rules:
 1. A target is a model, or one version of it. The targets of a route differ.
 2. Weights are whole percents and add up to 100. A target may have 0: it is known, and may become a canary.
 3. A canary is one of the targets; its share is moved by steps that grow and end at 100 or below.
 4. A shadow is no target: what it answers is compared and dropped. Its share is above 0 and at most 100 percent.
 5. Clients name a route without a version; with one, they mean the model itself. So a route may have the name of a
    model whose versions are its targets. A target without a version must be no route: routes lead to models only.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import InvalidArgumentError
from ..request import LATEST

WHOLE = 100
_MOST_S = 1e9


class RouteError(InvalidArgumentError):
    """A route breaks a rule.

    Attributes:
        route: its name.
        key: where, as in its document (`documents`).
        problem: what is wrong, and what is expected.
    """

    def __init__(self, name: str, key: tuple[str, ...], problem: str) -> None:
        super().__init__(f"route '{name}': {problem}")
        self.route = name
        self.key = key
        self.problem = problem


class Target(NamedTuple):
    """A model, or with a version one of its versions."""

    model: str
    version: int = LATEST

    def __str__(self) -> str:
        return self.model if self.version == LATEST else f"{self.model}:{self.version}"


class StickyBy(enum.Enum):
    """What of a request decides, where it has that, which target all requests with the same go to. Sequences stay with
    their target whatever this says."""

    NOTHING = "nothing"
    SEQUENCE = "sequence"
    HEADER = "header"
    PARAMETER = "parameter"
    REQUEST_ID = "request-id"


@dataclass(frozen=True, slots=True)
class CanaryLimits:
    """What a canary may be worse by than the others of its route (`comparison`).

    Attributes:
        errors: more failed requests, as a part of all (0.01: one of a hundred).
        p99_times: times the 99th percentile of the others' latency.
        queue_times: times the 99th percentile of the others' time in queues.
        slack_s: differences of latency and of time in queues below this do not count, seconds.
    """

    errors: float = 0.01
    p99_times: float = 1.25
    queue_times: float = 1.5
    slack_s: float = 0.001

    def problems(self) -> Iterable[tuple[str, str]]:
        """What is wrong, by key."""
        for key, value in (("p99-times", self.p99_times), ("queue-times", self.queue_times)):
            if not 1 < value < math.inf:
                yield key, f"found {value:g}, expected more than 1"
        if not 0 < self.errors < 1:
            yield "errors", f"found {self.errors:g}, expected a part of all requests, more than 0 and less than 1"
        if not 0 <= self.slack_s < math.inf:
            yield "slack-ms", f"found {self.slack_s * 1e3:g}, expected 0 or more"


@dataclass(frozen=True, slots=True)
class Canary:
    """How a target's share grows (rule 3).

    Attributes:
        steps: its share in percent, ascending.
        step_s: how long a step takes at least, seconds.
    """

    target: Target
    steps: tuple[int, ...] = (1, 5, 25, 50, 100)
    step_s: float = 60.0
    limits: CanaryLimits = CanaryLimits()


@dataclass(frozen=True, slots=True)
class Shadow:
    """A model that gets copies of `percent` of the requests (rule 4).

    Attributes:
        tolerance: numbers of both answers that differ by no more, as such or as a part of the number, agree.
    """

    target: Target
    percent: float = 100.0
    tolerance: float = 1e-5


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """See the rules above.

    Attributes:
        weights: in percent, by target.
        sticky_name: of the header or parameter, if that is what `sticky` says.

    Raises:
        RouteError: it breaks a rule.
    """

    name: str
    weights: tuple[tuple[Target, int], ...]
    sticky: StickyBy = StickyBy.NOTHING
    sticky_name: str = ""
    canary: Canary | None = None
    shadow: Shadow | None = None

    def __post_init__(self) -> None:
        for key, problem in self._problems():
            raise RouteError(self.name, key, problem)

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(target for target, _ in self.weights)

    @property
    def keys(self) -> dict[Target, tuple[str, ...]]:
        """Where each target, and the shadow's, stands in the route's document."""
        keys: dict[Target, tuple[str, ...]] = {target: ("targets", str(target)) for target in self.targets}
        if self.shadow is not None:
            keys[self.shadow.target] = ("shadow", "target")
        return keys

    def _problems(self) -> Iterable[tuple[tuple[str, ...], str]]:
        """What is wrong, by key."""
        if not self.name or "/" in self.name or not self.name.isprintable():
            yield (), f"its name is {self.name!r}, expected that of a model: not empty, without a /"
        yield from self._weight_problems()
        named = self.sticky in (StickyBy.HEADER, StickyBy.PARAMETER)
        if named != bool(self.sticky_name):
            yield ("sticky",), f"'{self.sticky.value}' {'needs' if named else 'has'} {'a' if named else 'no'} name"
        if self.canary is not None:
            for key, problem in self._canary_problems(self.canary):
                yield ("canary", key), problem
        if self.shadow is not None:
            for key, problem in self._shadow_problems(self.shadow):
                yield ("shadow", key), problem

    def _weight_problems(self) -> Iterable[tuple[tuple[str, ...], str]]:
        if not self.weights:
            yield ("targets",), "it has no targets"
        for target, count in Counter(self.targets).items():
            if count > 1:
                yield ("targets", str(target)), f"target '{target}' is named {count} times, expected once"
        for target, weight in self.weights:
            if not 0 <= weight <= WHOLE:
                problem = f"the weight of target '{target}' is {weight}, expected 0 to {WHOLE}"
                yield ("targets", str(target)), problem
        total = sum(weight for _, weight in self.weights)
        if total != WHOLE:
            yield ("targets",), f"the weights of its targets add up to {total}, expected {WHOLE}"

    def _canary_problems(self, canary: Canary) -> Iterable[tuple[str, str]]:
        if canary.target not in self.targets:
            expected = ", ".join(f"'{target}'" for target in self.targets)
            yield "target", f"the canary '{canary.target}' is none of its targets, expected one of {expected}"
        if len(self.weights) < 2:
            yield "target", "a canary needs another target to be compared with"
        steps = canary.steps
        if not steps or list(steps) != sorted(set(steps)) or not 0 < steps[0] <= steps[-1] <= WHOLE:
            yield "steps", f"the canary's steps are {list(steps)}, expected percents from 1 to {WHOLE}, ascending"
        if not 0 <= canary.step_s <= _MOST_S:
            yield "step-secs", f"the canary's steps take {canary.step_s:g} s, expected 0 to {_MOST_S:,.0f}"
        yield from canary.limits.problems()

    def _shadow_problems(self, shadow: Shadow) -> Iterable[tuple[str, str]]:
        if shadow.target in self.targets:
            yield "target", f"the shadow '{shadow.target}' is a target, too"
        if not 0 < shadow.percent <= WHOLE:
            problem = f"the shadow's share is {shadow.percent:g} percent, expected more than 0 and at most {WHOLE}"
            yield "percent", problem
        if not 0 <= shadow.tolerance < math.inf:
            yield "tolerance", f"found {shadow.tolerance:g}, expected 0 or more"


def check_routes(routes: Iterable[ModelRoute]) -> dict[str, ModelRoute]:
    """The routes by name.

    Raises:
        InvalidArgumentError: two have the same name, or one leads to a route, or back to itself.
    """
    by_name: dict[str, ModelRoute] = {}
    for route in routes:
        if route.name in by_name:
            raise InvalidArgumentError(f"route '{route.name}' is defined twice, expected once")
        by_name[route.name] = route
    for route in by_name.values():
        _check_end(route, by_name, (route.name,))
    return by_name


def _check_end(route: ModelRoute, by_name: dict[str, ModelRoute], way: tuple[str, ...]) -> None:
    """Rule 5; the error shows the way that the targets lead."""
    for target, key in route.keys.items():
        if target.version != LATEST or target.model not in by_name:
            continue
        if target.model in way:
            shown = "' to '".join((*way, target.model))
            expected = "a model" if len(way) > 1 else f"versions of the model of this name, such as '{target.model}:1'"
            raise RouteError(route.name, key, f"routes lead in a circle: from '{shown}', expected {expected}")
        _check_end(by_name[target.model], by_name, (*way, target.model))
        raise RouteError(route.name, key, f"target '{target}' is a route, expected a model")
