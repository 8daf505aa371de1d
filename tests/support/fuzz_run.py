"""A run of the fuzzer: attacks by seed, and after every so many a look at the server."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import fuzz_grpc
import fuzz_http
import fuzz_http1
import fuzz_http2
from fuzz_target import Finding, Target

Attack = Callable[[Target, random.Random], None]

ATTACKS: dict[str, Attack] = {
    "requests": fuzz_http.ask,
    "http1": fuzz_http1.attack,
    "http2": fuzz_http2.attack,
    "grpc": fuzz_grpc.attack,
}
CHECKED_EVERY = 100
_WARMING = 100


def fuzz(target: Target, name: str, seeds: Iterable[int]) -> int:
    """Attack once by each seed; the number of attacks.

    Raises:
        Finding: what must not happen has; the text tells the seed.
    """
    attack = ATTACKS[name]
    for seed in range(_WARMING):  # after these, all is there that is kept: threads, caches
        attack(target, random.Random(seed))
    before = _settled(target)
    count = 0
    seed = -1
    try:
        for seed in seeds:
            attack(target, random.Random(seed))
            count += 1
            if count % CHECKED_EVERY == 0:
                target.holds()
                target.check_canary()
                target.check_log()
        target.check_canary()
        target.check_holds(before)
        target.check_log()
    except Finding as finding:
        raise Finding(f"{name}, by seed {seed} or one of the {CHECKED_EVERY} before it: {finding}") from None
    return count


def _settled(target: Target) -> dict[str, int]:
    """What the server holds when nothing is under way any more."""
    before = target.holds()
    while (now := target.report()) != before:
        before = now
    return before
