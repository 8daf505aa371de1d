"""trio's private parts that simulations need; nothing else in Trireme touches them.

The first is a switch for a task order that is a function of a seed.

trio shuffles the tasks that are ready to run. For Hypothesis it can do so from a generator that can be seeded, after
sorting the tasks by their age. The switch, and the generator, are private names of ``trio._core._run``; a canary test
guards them. What stays unordered even so:

* Timers of one instant all expire before any task runs, in the order of their addresses. Tasks that just sleep cannot
  tell (they are sorted again), a callback that runs at the moment of cancellation can.
* A cancelled scope tells its tasks in the order of a set.

So whatever runs in a simulation has callbacks of cancellation that commute, and decides nothing by iterating over a
set, or by ``id`` or ``hash``.

The second is the queue behind ``TrioToken.run_sync_soon``. What stands in it is still to happen at this instant,
although no task can run: a clock that jumps must know.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from random import Random
from typing import Any

import trio

SWITCH = "_ALLOW_DETERMINISTIC_SCHEDULING"
GENERATOR = "_r"


class UnknownTrioError(Exception):
    """This version of trio has no switch where this module looks for it."""


@contextmanager
def deterministic_scheduling(seed: int) -> Iterator[None]:
    """Make the task order of a ``trio.run`` within this block a function of the seed, and of what the tasks do.

    On leaving, the switch and the generator are as they were.

    Raises:
        UnknownTrioError: trio's private names are not what they were.
    """
    module = trio._core._run
    generator_before = getattr(module, GENERATOR, None)
    if not isinstance(getattr(module, SWITCH, None), bool) or not isinstance(generator_before, Random):
        raise UnknownTrioError(
            f"trio {trio.__version__} has no {SWITCH} and {GENERATOR} in trio._core._run; simulations need a version "
            "that has them"
        )
    switch_before = getattr(module, SWITCH)
    setattr(module, SWITCH, True)
    setattr(module, GENERATOR, SeededOrder(seed))
    try:
        yield
    finally:
        setattr(module, SWITCH, switch_before)
        setattr(module, GENERATOR, generator_before)


class SeededOrder(Random):
    """Chance for trio's loop, which shuffles at each of its turns whatever can run: mostly one task, or none."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        if len(x) > 1:
            super().shuffle(x)


def has_pending_callbacks(token: trio.lowlevel.TrioToken) -> bool:
    """Whether callbacks given to its ``run_sync_soon`` are still to be called."""
    queue = token._reentry_queue
    return bool(queue.queue or queue.idempotent_queue)
