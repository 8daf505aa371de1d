"""What came of a request for generated text: what request logs and simulated runs tell of it.

Rules:
 1. Durations between tokens are kept by how often each came, rounded to steps of 2 %: so a record of a long text is
    short (`TokenGaps`).
 2. Of the steps that a text was in there are means, in which a step counts by the share that the text had in it: one by
    the number of its texts. So the means of all records of a model, each weighed by its `step_share`, are those of all
    its steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ..errors import InvalidArgumentError

_STEP: Final = math.log(1.02)
_MOST = 1_000_000_000_000
"""Microseconds: more than a week is no time between tokens."""


class TokenGaps:
    """How often each duration came, in steps of 2 %."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, nanoseconds: int) -> None:
        """One more."""
        self._counts[round(math.log(max(nanoseconds, 1_000) / 1_000) / _STEP)] += 1

    def text(self) -> str:
        """As logs have it: `MICROSECONDSxCOUNT,...`, ascending; empty for none."""
        return ",".join(f"{_microseconds(place)}x{count}" for place, count in sorted(self._counts.items()))


def _microseconds(place: int) -> float:
    value = math.exp(place * _STEP)
    return round(value) if value >= 100 else round(value, 1)


def read_durations(text: str) -> list[tuple[float, int]]:
    """Pairs of microseconds and how often, from what `TokenGaps.text` gives.

    Raises:
        InvalidArgumentError: it is something else.
    """
    found: list[tuple[float, int]] = []
    for each in text.split(",") if text else ():
        value, _, count = each.partition("x")
        try:
            pair = float(value), int(count)
        except ValueError:
            pair = -1.0, 0
        if not 0 <= pair[0] <= _MOST or pair[1] < 1:
            raise InvalidArgumentError(f"durations must be MICROSECONDSxCOUNT,..., not {each[:40]!r}")
        found.append(pair)
    return found


@dataclass(slots=True)
class StepShares:
    """The steps that the texts of a request were in (rule 2).

    Attributes:
        pieces: how often one of its texts was in a step.
        share: of steps: each counts for one by the number of its texts.
        tokens, memory: sums over steps, each by its share: of tokens computed, and of the part of the memory in use.
    """

    pieces: int = 0
    share: float = 0.0
    tokens: float = 0.0
    memory: float = 0.0

    def add(self, texts: int, tokens: int, memory: float) -> None:
        """One of its texts is in a step of so many."""
        share = 1 / texts
        self.pieces += 1
        self.share += share
        self.tokens += share * tokens
        self.memory += share * memory


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """Of one request.

    Attributes:
        prompt: tokens.
        found: of these, those that were in memory already.
        most_new: tokens that each choice could have.
        generated: tokens of all choices.
        preemptions: how often its texts made room for others.
        begun_ns, first_ns: when its prompt was in a step first, and when its first token came; -1 for never.
        paused_ns: for how long it was in no step between these: it had made room, or a step had no room for it.
        between: its tokens, of each choice.
    """

    prompt: int
    found: int
    most_new: int
    choices: int
    generated: int
    preemptions: int
    begun_ns: int
    first_ns: int
    paused_ns: int
    steps: StepShares
    between: TokenGaps = field(default_factory=TokenGaps)


def quantile_of(pairs: Iterable[tuple[float, int]], place: float) -> float:
    """That of durations with how often each came; NaN if there are none."""
    ordered = sorted(pairs)
    left = place * sum(count for _, count in ordered)
    for value, count in ordered:
        left -= count
        if left <= 0:
            return value
    return math.nan
