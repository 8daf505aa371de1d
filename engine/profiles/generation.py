"""How long the steps of a generating model take, by what they compute.

Rules:
 1. What a step computes is four numbers (`StepLoad`): tokens of prompts, the pairs of tokens that their attention goes
    over, texts that go on with one token each, and the tokens that these have before.
 2. What was measured is kept as points: steps that were alike, with the distribution of their times.
 3. To the means of the points a form is fitted by least squares of the relative error, no coefficient negative
    (`StepFit`): a time for a step of any kind, more for each of its tokens, by how many they are (between the powers of
    two, as matrices of few rows cost the reading of their weights), more for each text, for each token that texts have
    before, and for each pair.
 4. A time is what is fitted, by a ratio that is drawn from those of all steps that were measured to what is fitted for
    them. So the error of the fit is in what is drawn, and so is the machine's unrest.
 5. After a rest a step takes longer, and a few more do after it: others have used the caches, and the network's weights
    have to come from memory (`RestedSteps`). That is about as much for few tokens as for many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidArgumentError
from ..generation.iterations import Step
from .durations import TimeDistribution

_SWEEPS = 4_000
_ENOUGH = 1e-12


class StepLoad(NamedTuple):
    """What a step computes (rule 1).

    Attributes:
        prompt: tokens of prompts, and of texts that are computed again.
        pairs: for each of these, the tokens before it; added up.
        texts: that go on with one token each.
        context: tokens that these have before; added up.
    """

    prompt: float
    pairs: float
    texts: float
    context: float

    @property
    def tokens(self) -> float:
        return self.prompt + self.texts


def load_of(step: Step) -> StepLoad:
    """What a step computes."""
    prompt = pairs = texts = context = 0
    for piece in step.pieces:
        count = piece.end - piece.start
        if count == 1 and piece.end > piece.generation.prompt:
            texts += 1
            context += piece.start
        else:
            prompt += count
            pairs += count * piece.start + count * (count - 1) // 2
    return StepLoad(prompt, pairs, texts, context)


@dataclass(frozen=True, slots=True)
class StepPoint:
    """Steps that were alike.

    Attributes:
        load: the mean of theirs.
        time: from the end of the step before, or from its own beginning if there was none right before, to its end.
    """

    load: StepLoad
    time: TimeDistribution


@dataclass(frozen=True, slots=True)
class StepFit:
    """Seconds of a step (rule 3).

    Attributes:
        step_s: of any.
        knots: numbers of tokens, ascending from 1; between one and the next each token costs as much more as `token_s`
            has at the same place, beyond the last one as much as there.
        text_s, context_s, pair_s: for each text, each token that texts have before, each pair.
    """

    step_s: float
    knots: tuple[int, ...]
    token_s: tuple[float, ...]
    text_s: float
    context_s: float
    pair_s: float

    def seconds(self, load: StepLoad) -> float:
        """What is fitted for a step."""
        tokens, seconds = load.tokens, self.step_s
        for index, knot in enumerate(self.knots):
            if tokens <= knot:
                break
            above = self.knots[index + 1] if index + 1 < len(self.knots) else math.inf
            seconds += (min(tokens, above) - knot) * self.token_s[index]
        return seconds + load.texts * self.text_s + load.context * self.context_s + load.pairs * self.pair_s


def fit_of(points: Sequence[StepPoint]) -> StepFit:
    """The fit to these points.

    Raises:
        InvalidArgumentError: there are none.
    """
    if not points:
        raise InvalidArgumentError("no step was measured")
    largest = max(point.load.tokens for point in points)
    knots = tuple(1 << power for power in range(max(1, math.ceil(math.log2(max(2.0, largest))))))
    rows = np.array([_features(point.load, knots) for point in points])
    times = np.array([point.time.mean_s for point in points])
    weights = np.array([math.sqrt(min(point.time.count, 40)) for point in points]) / np.maximum(times, 1e-9)
    found = _least_squares(rows * weights[:, None], times * weights)
    count = len(knots)
    return StepFit(
        float(found[0]),
        knots,
        tuple(float(each) for each in found[1 : count + 1]),
        *(float(each) for each in found[count + 1 :]),
    )


def _features(load: StepLoad, knots: Sequence[int]) -> list[float]:
    above = [*knots[1:], math.inf]
    parts = [max(0.0, min(load.tokens, end) - knot) for knot, end in zip(knots, above, strict=True)]
    return [1.0, *parts, load.texts, load.context, load.pairs]


def _least_squares(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Coefficients, none negative, by descent along one coordinate after the other."""
    scale = np.sqrt((rows**2).sum(axis=0))
    scale[scale == 0] = 1.0
    rows = rows / scale
    squares, found, falls = rows.T @ rows, np.zeros(rows.shape[1]), rows.T @ wanted
    for _ in range(_SWEEPS):
        before = found.copy()
        for at in range(len(found)):
            if squares[at, at] > 0:
                rest = falls[at] - squares[at] @ found + squares[at, at] * found[at]
                found[at] = max(0.0, rest / squares[at, at])
        if float(np.abs(found - before).max()) < _ENOUGH * max(1.0, float(np.abs(found).max())):
            break
    return found / scale


@dataclass(frozen=True, slots=True)
class RestedSteps:
    """What steps take longer after a rest (rule 5).

    Attributes:
        rest_s: for how long there was no step.
        more_s: of the first step after it, the second, and so on.
    """

    rest_s: float
    more_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GenerationProfile:
    """Of a generating model.

    Attributes:
        context: tokens that a text may have, its prompt included.
        token_bytes: of keys and values, for each token in memory.
        points: what was measured.
        fit: to that.
        ratios: of the time of each measured step to what is fitted for it. No seconds, in spite of the type.
        cores: processor seconds a second of a step.
        rested: ascending by `rest_s`, each with as many steps; empty if it was not measured.
    """

    context: int
    token_bytes: int
    points: tuple[StepPoint, ...]
    fit: StepFit
    ratios: TimeDistribution
    cores: float
    rested: tuple[RestedSteps, ...] = ()

    def block_bytes(self, tokens: int) -> int:
        """Memory that so many tokens take."""
        return tokens * self.token_bytes

    def errors(self) -> list[float]:
        """Of each point, by what part of its mean the fit is off."""
        return [self.fit.seconds(point.load) / point.time.mean_s - 1 for point in self.points]

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file of a profile."""
        return {
            "context": self.context,
            "token_bytes": self.token_bytes,
            "points": [{"load": list(point.load), "time": point.time.to_json()} for point in self.points],
            "fit": asdict(self.fit),
            "ratios": self.ratios.to_json(),
            "cores": self.cores,
            "rested": [{"rest_s": each.rest_s, "more_s": list(each.more_s)} for each in self.rested],
        }

    @classmethod
    def from_json(cls, value: Any, where: str) -> GenerationProfile:
        """What `to_json` made of one.

        Raises:
            InvalidArgumentError: it is something else.
        """
        table = _table(value, [each.name for each in fields(cls)], where)
        points = table["points"]
        if not isinstance(points, list) or not points:
            raise InvalidArgumentError(f"{where}.points: expected a list that is not empty")
        whole = {name: _number(table[name], f"{where}.{name}") for name in ("context", "token_bytes", "cores")}
        return cls(
            int(whole["context"]),
            int(whole["token_bytes"]),
            tuple(_point(each, f"{where}.points[{at}]") for at, each in enumerate(points)),
            _fit(table["fit"], f"{where}.fit"),
            TimeDistribution.from_json(table["ratios"], f"{where}.ratios"),
            whole["cores"],
            _rested(table["rested"], f"{where}.rested"),
        )


def _table(value: Any, names: Sequence[str], where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or set(value) != set(names):
        raise InvalidArgumentError(f"{where}: expected an object with {', '.join(names)}")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidArgumentError(f"{where}: expected a number from 0 on, not {value!r}")
    return float(value)


def _numbers(value: Any, where: str) -> list[float]:
    if not isinstance(value, list):
        raise InvalidArgumentError(f"{where}: expected a list of numbers, not {value!r}")
    return [_number(each, where) for each in value]


def _point(value: Any, where: str) -> StepPoint:
    table = _table(value, ("load", "time"), where)
    load = _numbers(table["load"], f"{where}.load")
    if len(load) != len(StepLoad._fields):
        raise InvalidArgumentError(f"{where}.load: expected {len(StepLoad._fields)} numbers, not {len(load)}")
    return StepPoint(StepLoad(*load), TimeDistribution.from_json(table["time"], f"{where}.time"))


def _fit(value: Any, where: str) -> StepFit:
    table = _table(value, [each.name for each in fields(StepFit)], where)
    knots = tuple(int(each) for each in _numbers(table["knots"], f"{where}.knots"))
    token_s = tuple(_numbers(table["token_s"], f"{where}.token_s"))
    if not knots or len(knots) != len(token_s) or list(knots) != sorted(set(knots)):
        raise InvalidArgumentError(f"{where}: expected knots that ascend, and as many numbers in token_s")
    step_s, *rest = (_number(table[name], f"{where}.{name}") for name in ("step_s", "text_s", "context_s", "pair_s"))
    return StepFit(step_s, knots, token_s, *rest)


def _rested(value: Any, where: str) -> tuple[RestedSteps, ...]:
    if not isinstance(value, list):
        raise InvalidArgumentError(f"{where}: expected a list")
    found: list[RestedSteps] = []
    for at, each in enumerate(value):
        table = _table(each, [field.name for field in fields(RestedSteps)], f"{where}[{at}]")
        rest_s, more_s = _number(table["rest_s"], f"{where}[{at}].rest_s"), _numbers(table["more_s"], f"{where}[{at}]")
        if found and (rest_s <= found[-1].rest_s or len(more_s) != len(found[-1].more_s)):
            raise InvalidArgumentError(f"{where}[{at}]: expected a longer rest than before it, with as many steps")
        found.append(RestedSteps(rest_s, tuple(more_s)))
    return tuple(found)
