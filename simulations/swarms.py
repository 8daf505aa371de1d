"""Swarms of drawn runs (`drawn_run`), each of one core or of one kind of server, by name: played in one process or in
several, until the first violation."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from .canaries import play_canaries
from .drawn_run import DrawnRun
from .fleet.managed import play_managed_fleet
from .fleet.swarm import play_fleet
from .generating import play_generating
from .generating_servers import play_generating_servers
from .on_demand import play_on_demand
from .planted import planted
from .residency_swarm import play_residency
from .routed import play_routed
from .routed_on_demand import play_routed_on_demand
from .router_swarm import play_router

SWARMS: Mapping[str, Callable[[int], DrawnRun]] = {
    "canaries": play_canaries,
    "fleet": play_fleet,
    "generating": play_generating,
    "generating-servers": play_generating_servers,
    "managed-fleet": play_managed_fleet,
    "on-demand": play_on_demand,
    "residency": play_residency,
    "routed": play_routed,
    "routed-on-demand": play_routed_on_demand,
    "router": play_router,
}


@dataclass(frozen=True, slots=True)
class DrawnEnd:
    """What came of a seed; `violation` is empty if all was well."""

    seed: int
    violation: str
    counts: Counter[str]


def play_drawn_seed(seed: int, swarm: str, bug: str = "") -> DrawnEnd:
    """Play one.

    Args:
        swarm: of `SWARMS`.
        bug: of `planted.PLANTED`, to be there meanwhile.
    """
    with planted(bug):
        run = SWARMS[swarm](seed)
    return DrawnEnd(seed, run.violation, run.counts)


def play_drawn_seeds(swarm: str, seeds: Sequence[int], jobs: int = 1, bug: str = "") -> Iterator[DrawnEnd]:
    """What came of each, as it comes.

    Args:
        jobs: processes to play in.
    """
    player = partial(play_drawn_seed, swarm=swarm, bug=bug)
    if jobs == 1:
        yield from map(player, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(player, seeds, chunksize=8)
