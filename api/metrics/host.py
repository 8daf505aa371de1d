"""The machine's readings, taken at intervals (docs/reference/metrics.md#gpu-and-cpu-families); a scrape shows the
latest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext

import psutil
import trio

from ...engine.metrics.families import NO_GPUS, CpuReading, HostReadings
from .gpu import GpuMeter, gpu_meter

logger = logging.getLogger("trireme.metrics")

_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
_IDLE = ("idle", "iowait")


class CpuMeter:
    """How busy the machine's CPUs are, and its memory; each reading of the utilization covers the time since the one
    before, and the latest is zeros before the first. Reading takes descriptors for files of ``/proc``, which clients
    may have used up by connecting: then the latest reading stays."""

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


class HostMeter:
    """What the metrics tell about the machine: of the CPU and of GPUs if asked to.

    Args:
        environment: of the process; may say that there are no GPUs to look for.
        gpu_uuids: by the numbers that instance groups give the GPUs.
    """

    def __init__(
        self,
        pinned_pool_bytes: int,
        *,
        cpu: bool,
        gpu: bool,
        environment: Mapping[str, str],
        gpu_uuids: Mapping[int, str] = NO_GPUS,
        pinned_used_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._pinned_pool_bytes = pinned_pool_bytes
        self._pinned_used_bytes = pinned_used_bytes
        self._cpu = CpuMeter() if cpu else None
        self._gpus = gpu_meter(environment) if gpu else nullcontext()
        self._gpu: GpuMeter | None = None
        self._gpu_uuids = gpu_uuids if gpu else NO_GPUS

    def readings(self) -> HostReadings:
        """The latest."""
        return HostReadings(
            self._pinned_pool_bytes,
            self._pinned_used_bytes(),
            cpu=None if self._cpu is None else self._cpu.latest,
            gpus=() if self._gpu is None else self._gpu.latest,
            gpu_uuids=self._gpu_uuids,
        )

    async def keep_reading(self, interval_s: float) -> None:
        """Twice in each interval, as in Triton, until cancelled. GPUs may be slow to answer, so a thread asks them."""
        with self._gpus as self._gpu:
            while True:
                await trio.sleep(interval_s / 2)
                if self._cpu is not None:
                    self._cpu.read()
                if self._gpu is not None:
                    await trio.to_thread.run_sync(self._gpu.read, abandon_on_cancel=True)
