"""How busy the machine's CPUs are, and its memory (observability.md §1.4)."""

from __future__ import annotations

import psutil

from ...engine.metrics import CpuReading

_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
_IDLE = ("idle", "iowait")


class CpuMeter:
    """Reads the machine; each reading of the utilization covers the time since the one before.

    Attributes:
        latest: the latest reading; zeros before the first.
    """

    def __init__(self) -> None:
        self.latest = CpuReading()
        self._busy, self._total = _times()

    def read(self) -> CpuReading:
        busy, total = _times()
        passed = total - self._total
        utilization = (busy - self._busy) / passed if passed > 0 else 0.0
        self._busy, self._total = busy, total
        memory = psutil.virtual_memory()
        self.latest = CpuReading(
            min(1.0, max(0.0, utilization)), int(memory.total), int(memory.total - memory.available)
        )
        return self.latest


def _times() -> tuple[float, float]:
    """Seconds that all CPUs together were busy, and that passed for them. Some systems do not have every kind."""
    times = psutil.cpu_times()
    busy = sum(getattr(times, kind, 0.0) for kind in _BUSY)
    return busy, busy + sum(getattr(times, kind, 0.0) for kind in _IDLE)
