"""What a machine did beside a measurement."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Used:
    """Cores, on average: those that programs beside server and player used, and what the hypervisor gave to others."""

    others: float
    stolen: float


class Machine:
    """Counts from now on.

    Args:
        server: the process whose work, with that of its children, is no other program's. Neither is this one's.
    """

    def __init__(self, server: int) -> None:
        self._ours = [psutil.Process(), psutil.Process(server)]
        self._before = self._count()

    def used(self) -> Used:
        """Since the beginning."""
        parts = [after - before for before, after in zip(self._before, self._count(), strict=True)]
        seconds, busy_s, stolen_s, ours_s = parts
        return Used(max(0.0, busy_s - ours_s) / seconds, stolen_s / seconds)

    def _count(self) -> tuple[float, float, float, float]:
        all_of_it = psutil.cpu_times()
        steal_s = getattr(all_of_it, "steal", 0.0)
        busy_s = all_of_it.user + all_of_it.system + getattr(all_of_it, "irq", 0.0) + getattr(all_of_it, "softirq", 0.0)
        ours_s = 0.0
        for root in self._ours[1:]:
            ours_s += sum(_used_s(each) for each in [root, *root.children(recursive=True)])
        return time.monotonic(), busy_s, steal_s, ours_s + _used_s(self._ours[0])


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
