"""Runs that are drawn as they go, and not from a plan (`play`): what came of one, and how it is played in a world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from ..actors.reply import ANSWER_WINDOW
from .clock import JumpingClock
from .history import Recorder
from .world import ScenarioStuckError, World, play_in_world


@dataclass
class DrawnRun:
    """What came of it.

    Attributes:
        violation: what was wrong first, or nothing.
        counts: what happened, how often.
    """

    violation: str = ""
    counts: Counter[str] = field(default_factory=Counter)

    def complain(self, text: str) -> None:
        """Something is wrong."""
        self.violation = self.violation or text


def play_drawn(
    run: DrawnRun,
    scenario: Callable[[World], Awaitable[None]],
    seed: int,
    limit_s: float,
    window: int = ANSWER_WINDOW,
) -> DrawnRun:
    """Play a scenario to its end, in a world. What it raises is a violation.

    Args:
        limit_s: virtual seconds after which it is stuck.
        window: see `tapped`.
    """
    clock = JumpingClock()
    recorder = Recorder(clock)
    try:
        play_in_world(scenario, seed, limit_s, clock, recorder, window)
    except (trio.TrioInternalError, ScenarioStuckError, BaseExceptionGroup) as error:
        run.complain(f"raised: {_innermost(error)!r}")
    recorder.close()
    return run


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.__cause__ or error
