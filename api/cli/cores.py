"""How many cores the server may use, and what is decided by that."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")

_POLL_US = 60
_CORES_OF_POLLER = 2


def usable_cores() -> int:
    """Those that the system lets this process run on, and has time for."""
    quota = ""
    with suppress(OSError):
        quota = _CPU_MAX.read_text()
    return within_quota(len(os.sched_getaffinity(0)), quota)


def within_quota(cores: int, quota: str) -> int:
    """No more cores than a control group has time for.

    Args:
        quota: its `cpu.max`: microseconds of CPU time, or ``max``, and of the period in which it has them. Anything
            else is no bound.
    """
    with suppress(ValueError):
        allowed, period = map(int, quota.split())
        if allowed > 0 and period > 0:
            return max(1, min(cores, allowed // period))
    return cores


def poll_us(wanted: int | None, cores: int, processes: int) -> int:
    """For how long each of the server's processes polls, in microseconds: if nothing is said (None), only where they
    leave as many cores to others."""
    if wanted is not None:
        return wanted
    return _POLL_US if cores >= _CORES_OF_POLLER * processes else 0
