"""How busy the machine's CPUs are, and its memory (docs/reference/metrics.md#gpu-and-cpu-families).

Reading takes descriptors for files of ``/proc``, which clients may have used up by connecting. Then the latest reading
stays until there is another.
"""

from __future__ import annotations

import logging

import psutil

from ...engine.metrics.families import CpuReading

logger = logging.getLogger("trireme.metrics")

_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
_IDLE = ("idle", "iowait")


class CpuMeter:
    """Reads the machine; each reading of the utilization covers the time since the one before.

    Attributes:
        latest: the latest reading; zeros before the first.
    """

    def __init__(self) -> None:
        self.latest = CpuReading()
        self._warned = False
        self._busy, self._total = _times()

    def read(self) -> CpuReading:
        """Read now, if that is possible; of failures there is one warning until there is a reading again."""
        try:
            self._read()
        except OSError as error:
            if not self._warned:
                logger.warning("unable to read how busy the CPUs are: %s", error)
            self._warned = True
        else:
            self._warned = False
        return self.latest

    def _read(self) -> None:
        busy, total = _times()
        passed = total - self._total
        utilization = (busy - self._busy) / passed if passed > 0 else 0.0
        memory = psutil.virtual_memory()
        self._busy, self._total = busy, total
        self.latest = CpuReading(
            min(1.0, max(0.0, utilization)), int(memory.total), int(memory.total - memory.available)
        )


def _times() -> tuple[float, float]:
    """Seconds that all CPUs together were busy, and that passed for them. Some systems do not have every kind."""
    times = psutil.cpu_times()
    busy = sum(getattr(times, kind, 0.0) for kind in _BUSY)
    return busy, busy + sum(getattr(times, kind, 0.0) for kind in _IDLE)
