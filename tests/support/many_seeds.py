"""Many seeds of a simulation, played in as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from trireme.simulations.canaries import CanaryKind, draw_canary, play_canary
from trireme.simulations.play import no_garbage_collection

T = TypeVar("T")


def in_processes(work: Callable[[int], T], seeds: Sequence[int]) -> list[T]:
    """What comes of each seed. The processes are started afresh; `work` is a function of a module that they import."""
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        return pool.map(partial(_without_collection, work), seeds, chunksize=4)


def broken(play: Callable[[int], Any], seeds: Sequence[int]) -> list[str]:
    """The violations that plays of these seeds show, in words."""
    return [text for text in in_processes(partial(_violation, play), seeds) if text]


def wrong_canary(seed: int, kind: CanaryKind, heavy: bool = False) -> str:
    """How this canary ended, if that is not as it should; else nothing."""
    plan = draw_canary(seed, kind, heavy)
    end = play_canary(plan)
    return "" if end.right(plan) else f"seed {seed}: {end.state.value} in step {end.step}: {end.events[-1].reason}"


def _without_collection(work: Callable[[int], T], seed: int) -> T:
    with no_garbage_collection():
        return work(seed)


def _violation(play: Callable[[int], Any], seed: int) -> str:
    found = play(seed).violation
    return f"seed {seed}: {found}" if found else ""
