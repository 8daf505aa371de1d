"""How long an instance may execute one batch, and from when on it counts as stuck.

Rules:
 1. The time counts for the oldest batch that the instance holds, from when that became the oldest: an instance that
    holds several may execute them one after the other.
 2. A sign of life (a response of a decoupled model, or a client that does not take the responses there are) starts the
    time anew.
 3. Past the limit the execution is given up. Models may have a limit of their own (`PARAMETER`).
 4. An instance is stuck, and its model not ready if no other instance is better off, when the batch has taken
    `LONG_TIMES` times as long as the longest before it, and at least `LEAST_MARK_S`. As long as no batch has ended, and
    at the latest, at half of the limit: a first batch may compile, and a model whose batches take minutes is well.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping

from ..errors import InvalidArgumentError

PARAMETER = "EXECUTION_LIMIT_SECS"
"""The parameter of a model's configuration that stands in for ``--hang-limit-secs``."""

LEAST_MARK_S = 30.0
LONG_TIMES = 3.0


class Verdict(enum.Enum):
    FINE = "fine"
    STUCK = "stuck"
    OVER = "over"


class ExecutionLimit:
    """Watches one instance's executions. All times are seconds of one clock.

    Args:
        limit_s: most seconds that a batch may take; 0 for no limit.

    Attributes:
        limit_s: the same; infinity for no limit.
        longest_s: what the longest batch so far took that has ended; 0 for none.
    """

    __slots__ = ("_since_s", "limit_s", "longest_s")

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s or math.inf
        self.longest_s = 0.0
        self._since_s = 0.0

    def restart(self, now: float) -> None:
        """Another batch is the oldest, or the oldest gave a sign of life."""
        self._since_s = now

    def ended(self, took_s: float) -> None:
        """A batch has ended that took so long."""
        self.longest_s = max(self.longest_s, took_s)

    @property
    def mark_s(self) -> float:
        """Rule 4."""
        if not self.longest_s:
            return self.limit_s / 2
        return min(max(LEAST_MARK_S, LONG_TIMES * self.longest_s), self.limit_s / 2)

    def look(self, now: float) -> Verdict:
        """How the oldest batch does; only while there is one."""
        if now >= self._since_s + self.limit_s:
            return Verdict.OVER
        return Verdict.STUCK if now >= self._since_s + self.mark_s else Verdict.FINE

    def next_look_s(self, now: float) -> float:
        """When to look again while there is a batch, so that the limit is seen in time, and a mark that has become
        nearer no later than `LEAST_MARK_S`."""
        latest_s = now + min(LEAST_MARK_S, self.limit_s / 2)
        due_s = self._since_s + self.mark_s
        return min(latest_s, due_s if due_s > now else self._since_s + self.limit_s)

    def __repr__(self) -> str:
        return f"<ExecutionLimit {self.limit_s:g} s, stuck after {self.mark_s:g} s>"


def execution_limit_s(parameters: Mapping[str, str], default_s: float) -> float:
    """The limit of a model with these parameters, in seconds; 0 for none.

    Raises:
        InvalidArgumentError: the parameter is no such number.
    """
    text = parameters.get(PARAMETER)
    if text is None:
        return default_s
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = math.nan
    if not 0 <= limit_s < math.inf:
        raise InvalidArgumentError(
            f"parameter '{PARAMETER}' is '{text}'; expected the most seconds that a batch may take, or 0 for no limit"
        )
    return limit_s
