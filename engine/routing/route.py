"""What a route is: a name that clients use as a model, and the models or versions that answer for it.

Rules:
 1. A target is a model, or one version of it. The targets of a route differ.
 2. Weights are whole percents and add up to 100. A target may have 0: it is known, and may become a canary.
 3. A canary is one of the targets; its share is moved by steps that grow and end at 100 or below.
 4. A shadow is no target: what it answers is compared and dropped. Its share is above 0 and at most 100 percent.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import InvalidArgumentError
from ..request import LATEST

WHOLE = 100


@dataclass(frozen=True, slots=True, order=True)
class Target:
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

    def __post_init__(self) -> None:
        for what, value, least in (
            ("errors", self.errors, 0.0),
            ("p99_times", self.p99_times, 1.0),
            ("queue_times", self.queue_times, 1.0),
        ):
            if not value > least:
                raise InvalidArgumentError(f"limit '{what}' is {value:g}, expected more than {least:g}")
        if self.errors >= 1:
            raise InvalidArgumentError(f"limit 'errors' is {self.errors:g}, expected less than 1")
        if not self.slack_s >= 0:
            raise InvalidArgumentError(f"limit 'slack_s' is {self.slack_s:g}, expected 0 or more")


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
    """A model that gets copies of `percent` of the requests (rule 4)."""

    target: Target
    percent: float = 100.0


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """See the rules above.

    Attributes:
        weights: in percent, by target.
        sticky_name: of the header or parameter, if that is what `sticky` says.

    Raises:
        InvalidArgumentError: it breaks a rule.
    """

    name: str
    weights: tuple[tuple[Target, int], ...]
    sticky: StickyBy = StickyBy.NOTHING
    sticky_name: str = ""
    canary: Canary | None = None
    shadow: Shadow | None = None

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise InvalidArgumentError(f"route '{self.name}': {problem}")

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(target for target, _ in self.weights)

    def _problems(self) -> Iterable[str]:
        if not self.name:
            yield "its name is empty"
        if not self.weights:
            yield "it has no targets"
        for target, count in Counter(self.targets).items():
            if count > 1:
                yield f"target '{target}' is named {count} times, expected once"
        for target, weight in self.weights:
            if not 0 <= weight <= WHOLE:
                yield f"the weight of target '{target}' is {weight}, expected 0 to {WHOLE}"
        total = sum(weight for _, weight in self.weights)
        if total != WHOLE:
            yield f"the weights of its targets add up to {total}, expected {WHOLE}"
        named = self.sticky in (StickyBy.HEADER, StickyBy.PARAMETER)
        if named != bool(self.sticky_name):
            yield f"'{self.sticky.value}' as what it is sticky by {'needs a' if named else 'has no'} name"
        if self.canary is not None:
            yield from self._canary_problems(self.canary)
        if self.shadow is not None:
            if self.shadow.target in self.targets:
                yield f"the shadow '{self.shadow.target}' is a target, too"
            if not 0 < self.shadow.percent <= WHOLE:
                yield f"the shadow's share is {self.shadow.percent:g} percent, expected more than 0 and at most {WHOLE}"

    def _canary_problems(self, canary: Canary) -> Iterable[str]:
        if canary.target not in self.targets:
            yield f"the canary '{canary.target}' is none of its targets"
        if len(self.weights) < 2:
            yield "a canary needs another target to be compared with"
        steps = canary.steps
        if not steps or list(steps) != sorted(set(steps)) or not 0 < steps[0] <= steps[-1] <= WHOLE:
            yield f"the canary's steps are {list(steps)}, expected percents from 1 to {WHOLE}, ascending"
        if not canary.step_s >= 0:
            yield f"the canary's steps take {canary.step_s:g} s, expected 0 or more"


def check_routes(routes: Iterable[ModelRoute]) -> dict[str, ModelRoute]:
    """The routes by name.

    Raises:
        InvalidArgumentError: two have the same name, or a route leads back to itself.
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
    """A target whose name is that of a route would lead on: routes lead to models only, and the error shows the way."""
    targets = [*route.targets, *([route.shadow.target] if route.shadow else [])]
    for target in targets:
        if target.model in way:
            shown = "' to '".join((*way, target.model))
            raise InvalidArgumentError(f"routes lead in a circle: from '{shown}'")
        onward = by_name.get(target.model)
        if onward is not None:
            _check_end(onward, by_name, (*way, target.model))
            raise InvalidArgumentError(f"route '{route.name}' leads to route '{target.model}', expected a model")
