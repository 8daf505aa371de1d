"""Whether to look again and again for what comes next (to poll), or to sleep until it comes.

Who sleeps is woken 20 to 50 µs after something has come, on a core that has cooled down meanwhile. Where the next event
follows within microseconds time after time, to poll costs less than that, even in CPU time. Where it does not, time is
wasted.

Rules:
 1. A poll follows an event, and lasts `limit_s` at most. With a limit of 0 nothing is polled.
 2. What comes next depends on what has come last: a client's request is followed by the answer of a model's process,
    say. So each kind of event has a record of its own.
 3. A poll that finds something earns `EARNED` credits, of which a record holds at most `MOST_CREDITS`; one that finds
    nothing costs one. With no credit left, the next `FEWEST_SKIPPED` waits of the kind are not polled; then one is, on
    trial. After trials that fail, twice as many waits are not polled each time, up to `MOST_SKIPPED`.
 4. A poll that has taken `TAKEN_AWAY_S` longer than it may has lost the core to another process. Others need it, so the
    record loses its credits.
"""

from __future__ import annotations

EARNED = 2
MOST_CREDITS = 16
FEWEST_SKIPPED = 4
MOST_SKIPPED = 256
TAKEN_AWAY_S = 500e-6


class PollRecord:
    """What polling after events of one kind was good for.

    Args:
        limit_s: rule 1, in seconds.
    """

    __slots__ = ("_credits", "_limit_s", "_next_skips", "_skips")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._credits = 1
        self._skips = 0  # waits that are not polled from now on
        self._next_skips = FEWEST_SKIPPED

    def poll_s(self) -> float:
        """How long to poll now, in seconds; 0 to sleep at once. Called for each wait."""
        if self._skips:
            self._skips -= 1
            return 0.0
        return self._limit_s

    def polled(self, found: bool, lasted_s: float) -> None:
        """A poll is over: whether it has found something, and how long it has lasted."""
        if lasted_s > self._limit_s + TAKEN_AWAY_S:
            self._credits = 0
        elif found:
            self._credits = min(self._credits + EARNED, MOST_CREDITS)
            self._next_skips = FEWEST_SKIPPED
            return
        elif self._credits:
            self._credits -= 1
        if not self._credits:
            self._skips = self._next_skips
            self._next_skips = min(2 * self._next_skips, MOST_SKIPPED)
