"""Where a batch is executed: on its instance's thread, or in place, on the event loop.

Handing a batch to a thread and its answers back costs more than a small model's whole execution: two wake-ups, each of
which may have to rouse a sleeping core, and a fight over the interpreter's lock with the loop that is busy answering.
So short batches are executed where they are formed. What must never happen is that a long one holds up the loop.

Rules:
 1. An instance begins on its thread, and every batch is measured.
 2. After `TRIALS` short batches in a row on the thread, a batch is executed in place if it is no larger, in bytes of
    input, than the largest of them. Size stands for time: the same graph on no more data takes no longer. More than
    `MOST_BYTES` are not even put together in place.
 3. A batch in place that was not short sends the instance back to its thread and to rule 1. If it had not been trusted
    for long (`STEADY` batches), it needs twice as many trials as before, at most `MOST_TRIALS`: a model whose time
    depends on what the data says soon stays on its thread, one that a busy machine delayed once comes back.

States: PROVING (on the thread, counting short batches) and TRUSTED (in place, up to a size).
"""

from __future__ import annotations

SHORT_NS = 500_000
"""A short batch takes no longer than this: what the loop spends on a dozen requests anyway."""

MOST_BYTES = 256 * 1024

TRIALS = 32
MOST_TRIALS = 1 << 20
STEADY = 1_000


class Placement:
    """Decides for one instance.

    Attributes:
        trusted_bytes: largest batch that may be executed in place; -1 while the instance is proving itself.
    """

    __slots__ = ("_largest_bytes", "_passed", "_trials", "trusted_bytes")

    def __init__(self) -> None:
        self.trusted_bytes = -1
        self._trials = TRIALS
        self._passed = 0
        self._largest_bytes = 0

    def in_place(self, nbytes: int) -> bool:
        """Whether to execute a batch with so many bytes of input in place."""
        return nbytes <= self.trusted_bytes and nbytes <= MOST_BYTES

    def measured(self, nbytes: int, took_ns: int) -> None:
        """A batch is over, and its execution took so long, wherever it ran."""
        short = took_ns <= SHORT_NS
        if self.trusted_bytes < 0:
            self._prove(nbytes, short)
        elif short:
            self._passed += 1
            if nbytes > self.trusted_bytes:  # ran on the thread, for its size
                self.trusted_bytes = nbytes
        elif nbytes <= self.trusted_bytes:
            self._trials = TRIALS if self._passed >= STEADY else min(2 * self._trials, MOST_TRIALS)
            self.trusted_bytes = -1
            self._passed = 0

    def _prove(self, nbytes: int, short: bool) -> None:
        if not short:
            self._passed = 0
            self._largest_bytes = 0
            return
        self._passed += 1
        self._largest_bytes = max(self._largest_bytes, nbytes)
        if self._passed >= self._trials:
            self.trusted_bytes = self._largest_bytes
            self._passed = 0
            self._largest_bytes = 0

    def __repr__(self) -> str:
        state = f"in place up to {self.trusted_bytes} bytes" if self.trusted_bytes >= 0 else "on its thread"
        return f"<Placement {state}, {self._passed} short batches, {self._trials} trials>"
