"""Playing many seeds: in this process, or in several."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from .invariants import Violation
from .plan import Plan
from .planted import planted
from .play import no_garbage_collection, play
from .shrink import Shrinker
from .swarm import draw_plan


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a seed, small enough to be sent from one process to another."""

    seed: int
    violation: Violation | None
    counts: Counter[str]


def play_seed(seed: int, bug: str = "") -> Found:
    """Play the plan of a seed.

    Args:
        bug: of `planted.PLANTED`, to be there meanwhile.
    """
    with planted(bug), no_garbage_collection():
        outcome = play(draw_plan(seed))
        found = Found(seed, outcome.violation, outcome.counts)
        del outcome
    return found


def hunt(seeds: Sequence[int], jobs: int = 1, bug: str = "") -> Iterator[Found]:
    """Play the plans of these seeds, and give what came of each as it comes.

    Args:
        jobs: processes to play in; seeds have nothing to do with one another. They are started afresh, so none
            inherits a thread or a lock.
    """
    player = partial(play_seed, bug=bug)
    if jobs == 1:
        yield from map(player, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(player, seeds, chunksize=8)


def shrunk(seed: int, violation: Violation, bug: str = "") -> Plan:
    """The smallest plan that could be made of a seed's and that breaks the same invariant."""

    def fails(plan: Plan) -> bool:
        found = play(plan).violation
        return found is not None and found.invariant == violation.invariant

    with planted(bug):
        return Shrinker(draw_plan(seed), fails).shrink()
