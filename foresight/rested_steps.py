"""How much longer the steps of a generating model take after a rest.

Rules:
 1. One text is asked for after each of `_RESTS_S` seconds without a step, and after none; rests take turns. Its prompt
    is its first step, and tokens are those that follow.
 2. What the steps take more after a rest than those after none is told by their medians: a few that other programs held
    up are not longer for the rest.
 3. A longer rest costs no less than a shorter one, and a step no more than the one before it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median

import trio

from ..engine.profiles.generation import RestedSteps

_RESTS_S = (0.003, 0.01, 0.03, 0.1, 0.3)
STEPS = 3
"""That are longer after a rest."""
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 15


async def measure_rests(ask: Callable[[], Awaitable[Sequence[float]]], most_s: float) -> tuple[RestedSteps, ...]:
    """Measure.

    Args:
        ask: have a text generated; seconds of its first `STEPS` steps, or fewer if these could not be told.
        most_s: seconds that each rest may take, about.
    """
    took: dict[float, list[Sequence[float]]] = {rest_s: [] for rest_s in (0.0, *_RESTS_S)}
    limit_s = time.perf_counter() + most_s * len(took)
    for number in range(_MOST_ROUNDS):
        if number >= _LEAST_ROUNDS and time.perf_counter() > limit_s:
            break
        for rest_s, its in took.items():
            await trio.sleep(rest_s)
            steps = await ask()
            if len(steps) == STEPS:
                its.append(steps)
    return rested_steps(took)


def rested_steps(took: Mapping[float, Sequence[Sequence[float]]]) -> tuple[RestedSteps, ...]:
    """What was measured, by rest (rules 2 and 3); nothing if a rest has no steps."""
    if not all(took.values()):
        return ()
    middle = {rest_s: [median(each) for each in zip(*its, strict=True)] for rest_s, its in took.items()}
    usual = middle.pop(0.0)
    found: list[RestedSteps] = []
    before = [0.0] * STEPS
    for rest_s, times in sorted(middle.items()):
        more = [max(low, time_s - usual_s) for low, time_s, usual_s in zip(before, times, usual, strict=True)]
        before = [min(more[: at + 1]) for at in range(STEPS)]
        found.append(RestedSteps(rest_s, tuple(before)))
    return tuple(found)
