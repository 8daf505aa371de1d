"""Where a batch is executed (`Placement`), how long it may take, and from when on its instance counts as stuck
(`ExecutionLimit`).

Handing a batch to a thread and its answers back costs more than a small model's whole execution: two wake-ups, each of
which may have to rouse a sleeping core, and a fight over the interpreter's lock with the loop that is busy answering.
So short batches are executed in place, on the event loop. What must never happen is that a long one holds up the loop.

Rules:
 1. An instance begins on its thread, and every batch is measured.
 2. After `TRIALS` short batches in a row on the thread, a batch is executed in place if it is no larger, in bytes of
    input, than the largest of them. One that takes half as long as it may counts as two, and so on up to `MOST_WEIGHT`:
    the shorter they are, the fewer show it, which matters where each of many models is asked now and then. A batch of
    up to `DELAYED_NS` among them takes back `BETWEEN` trials, and not all: on the thread it may have waited for the
    interpreter, or for a core. Size stands for time: the same graph on no more data takes no longer. More than
    `MOST_BYTES` are not even put together in place.
 3. A batch in place that was not short sends the instance back to its thread and to rule 1. If it had not been trusted
    for long (`STEADY` batches), it needs twice as many trials as before, at most `MOST_TRIALS`: a model whose time
    depends on what the data says soon stays on its thread, one that a busy machine delayed once comes back. A batch of
    up to `DELAYED_NS` is forgiven if the `BETWEEN` before it were short: where there are more processes than cores, the
    system takes the core away now and then.
 4. The time counts for the oldest batch that the instance holds, from when that became the oldest: an instance that
    holds several may execute them one after the other. Of an instance that goes by steps it counts for the step.
 5. A sign of life (a response of a decoupled model, or a client that does not take the responses there are) starts the
    time anew.
 6. Past the limit the execution is given up. Models may have a limit of their own (`PARAMETER`).
 7. An instance is stuck, and its model not ready if no other instance is better off, when the batch has taken
    `LONG_TIMES` times as long as the longest before it, and at least `LEAST_MARK_S`. As long as no batch has ended, and
    at the latest, at half of the limit: a first batch may compile, and a model whose batches take minutes is well.

States: PROVING (on the thread, counting short batches) and TRUSTED (in place, up to a size).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping

from ..errors import InvalidArgumentError

SHORT_NS = 500_000
"""A short batch takes no longer than this: what the loop spends on a dozen requests anyway."""

MOST_BYTES = 256 * 1024

DELAYED_NS = 10_000_000
BETWEEN = 16

TRIALS = 32
MOST_WEIGHT = 8
MOST_TRIALS = 1 << 20
STEADY = 1_000


class Placement:
    """Decides for one instance.

    Attributes:
        trusted_bytes: largest batch that may be executed in place; -1 while the instance is proving itself.
    """

    def __init__(self) -> None:
        self.trusted_bytes = -1
        self._trials = TRIALS
        self._passed = 0
        self._since_delay = 0
        self._largest_bytes = 0

    def in_place(self, nbytes: int) -> bool:
        """Whether to execute a batch with so many bytes of input in place."""
        return nbytes <= self.trusted_bytes and nbytes <= MOST_BYTES

    def measured(self, nbytes: int, took_ns: int) -> None:
        """A batch is over, and its execution took so long, wherever it ran."""
        short = took_ns <= SHORT_NS
        if self.trusted_bytes < 0:
            self._prove(nbytes, took_ns)
        elif short:
            self._passed += 1
            self._since_delay += 1
            if nbytes > self.trusted_bytes:  # ran on the thread, for its size
                self.trusted_bytes = nbytes
        elif nbytes <= self.trusted_bytes:
            since_delay, self._since_delay = self._since_delay, 0
            if since_delay >= BETWEEN and took_ns <= DELAYED_NS:
                return
            self._trials = TRIALS if self._passed >= STEADY else min(2 * self._trials, MOST_TRIALS)
            self.trusted_bytes = -1
            self._passed = 0

    def _prove(self, nbytes: int, took_ns: int) -> None:
        if took_ns <= SHORT_NS:
            self._passed += min(SHORT_NS // took_ns, MOST_WEIGHT) if took_ns > 0 else MOST_WEIGHT
            self._largest_bytes = max(self._largest_bytes, nbytes)
            if self._passed < self._trials:
                return
            self.trusted_bytes = self._largest_bytes
        elif took_ns <= DELAYED_NS and self._passed > BETWEEN:
            self._passed -= BETWEEN
            return
        self._passed = 0
        self._largest_bytes = 0


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
        longest_ns: what the longest batch so far took that has ended; 0 for none.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s or math.inf
        self.longest_ns = 0
        self._since_s = 0.0

    def restart(self, now: float) -> None:
        """Another batch is the oldest, or the oldest gave a sign of life."""
        self._since_s = now

    def ended(self, took_ns: int) -> None:
        """A batch has ended that took so long."""
        if took_ns > self.longest_ns:
            self.longest_ns = took_ns

    @property
    def mark_s(self) -> float:
        """Rule 7."""
        if not self.longest_ns:
            return self.limit_s / 2
        return min(max(LEAST_MARK_S, LONG_TIMES * self.longest_ns / 1e9), self.limit_s / 2)

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
