"""Moments in which the machine itself is slow, whatever runs on it: seen by a process that is no server's.

It touches the same small pages of memory every few milliseconds, which takes it 0.05 ms of CPU time. Where a hypervisor
has dropped what it knew of them, each page has to be looked up anew, for some 20 µs: for all processes of the machine,
in whatever they do next, as CPU time of their own, without a page fault that the system would count. So what a server
is measured to take at such a moment is not its own.

    python benchmarks/stalls.py
"""

from __future__ import annotations

import gc
import json
import mmap
import select
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_PAGES = 2_000
_SLOW_MS = 2.0
_BETWEEN_S = 0.004
_AFTER_S = 0.02
"""So much later others may still come upon pages that they have not touched since."""


class Stall(NamedTuple):
    """Attributes:
    began_s, ended_s: by `time.perf_counter`, which on Linux is the same for all processes.
    cpu_ms: the longest that it took to touch all pages.
    """

    began_s: float
    ended_s: float
    cpu_ms: float

    def meets(self, began_s: float, ended_s: float) -> bool:
        """Whether it may have made something slower that began and ended then."""
        return began_s <= self.ended_s + _AFTER_S and ended_s >= self.began_s


class StallSearch:
    """Finds stalls in what the same small work has taken each time."""

    def __init__(self, began_s: float) -> None:
        self.stalls: list[Stall] = []
        self._well_s = began_s
        self._in_stall = False

    def note(self, began_s: float, ended_s: float, cpu_ms: float) -> None:
        """The work was done once more. A stall has begun after the last time that it was as fast as usual."""
        slow = cpu_ms > _SLOW_MS
        if slow and self._in_stall:
            last = self.stalls[-1]
            self.stalls[-1] = Stall(last.began_s, ended_s, max(last.cpu_ms, cpu_ms))
        elif slow:
            self.stalls.append(Stall(self._well_s, ended_s, cpu_ms))
        else:
            self._well_s = ended_s
        self._in_stall = slow


def search(told_to_stop: Callable[[float], bool]) -> list[Stall]:
    """Look for stalls until told to stop, which is asked with the seconds that it may wait."""
    memory = mmap.mmap(-1, _PAGES * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    pages = np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE]
    pages[:] = 1
    found = StallSearch(time.perf_counter())
    while not told_to_stop(_BETWEEN_S):
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        pages.sum()
        found.note(began_s, time.perf_counter(), (time.thread_time() - cpu_s) * 1e3)
    return found.stalls


def main() -> None:
    """Say when the search begins; at a line from outside, end and print what was found."""
    gc.freeze()
    gc.disable()
    print("searching", flush=True)
    print(json.dumps(search(lambda wait_s: bool(select.select([sys.stdin], [], [], wait_s)[0]))), flush=True)


if __name__ == "__main__":
    main()
