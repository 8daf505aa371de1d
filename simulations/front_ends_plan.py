"""Front ends in processes of their own (`front_ends`), as a plan has them.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

SHARE = 0.3
"""Of the runs."""

LONGEST_RESTART_NS = 30_000_000_000
HEARING_NS = 30_000_000_000
"""So long the engine waits for one that does not hear, when something has changed."""


@dataclass(frozen=True, slots=True)
class FrontEndsPlan:
    """The front ends of a run.

    Attributes:
        count: how many; 0 for none: clients come to the server itself.
        capacity: bytes of each ring.
        inline_bytes: of a tensor that goes through the ring; a larger one lies in a segment.
        bell_ns: how long it takes at most until a doorbell is heard.
        spurious: after one bell in so many another one is heard, for nothing; 0 for none.
        deaths_ns: when one is killed; the first time the first one that serves then, and so on.
        stuck_ns, stuck_for_ns: from when, and for how long, the first one hears nothing.
        abandons: the server ends without having them drained first.
        short: the engine has no descriptor left for one segment in so many that are new to it; 0 for none.
    """

    count: int = 0
    capacity: int = 1 << 20
    inline_bytes: int = 16 << 10
    bell_ns: int = 0
    spurious: int = 0
    deaths_ns: tuple[int, ...] = ()
    stuck_ns: int = 0
    stuck_for_ns: int = 0
    abandons: bool = False
    short: int = 0


NO_FRONT_ENDS = FrontEndsPlan()


def draw_front_ends(seed: int, end_ns: int, calm_ns: int, times_ns: Sequence[int]) -> FrontEndsPlan:
    """Those of a run.

    Args:
        end_ns: when the last request comes, about.
        calm_ns: after which none is killed.
        times_ns: what batches take.
    """
    chance = Random(f"front ends {seed}")
    if chance.random() >= SHARE:
        return NO_FRONT_ENDS
    longest = math.exp(chance.uniform(math.log(0.001), math.log(10.0)))
    bell_ns = 0 if chance.random() < 0.3 else round(min(times_ns) * longest)
    capacity = 1 << chance.choice((13, 13, 13, 13, 14, 20))
    deaths = [chance.randint(0, min(end_ns, calm_ns)) for _ in range(chance.choice((0, 0, 0, 1, 1, 3)))]
    is_stuck = chance.random() < 0.2
    return FrontEndsPlan(
        count=chance.choice((1, 2, 2, 3)),
        capacity=capacity,
        inline_bytes=min(chance.choice((0, 40, 16 << 10)), capacity // 8),
        bell_ns=bell_ns,
        spurious=chance.choice((0, 2, 7)),
        deaths_ns=tuple(sorted(deaths)[:2]),
        stuck_ns=chance.randint(0, end_ns) if is_stuck else 0,
        stuck_for_ns=round(end_ns * chance.uniform(0.01, 0.5)) if is_stuck else 0,
        abandons=chance.random() < 0.2,
        short=chance.choice((0, 0, 2, 5)),
    )


def front_ends_ns(plan: FrontEndsPlan, requests: int, changes: int) -> int:
    """What front ends may add, at most, to the time that so many requests and changes take one by one."""
    if not plan.count:
        return 0
    bells = 4 * requests + 8 * changes + 16
    hanging_ns = plan.stuck_for_ns + len(plan.deaths_ns) * LONGEST_RESTART_NS
    return hanging_ns + 3 * bells * plan.bell_ns + (1 + changes) * HEARING_NS * (plan.stuck_for_ns > 0)
