"""The machine's readings, taken at intervals; a scrape shows the latest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext

import trio

from ...engine.metrics.families import NO_GPUS, HostReadings
from .cpu import CpuMeter
from .gpu import GpuMeter, gpu_meter


class HostMeter:
    """What the metrics tell about the machine.

    Args:
        pinned_pool_bytes: size of the pool of pinned memory.
        cpu, gpu: whether they are to be told about.
        environment: of the process; may say that there are no GPUs to look for.
        gpu_uuids: by the numbers that instance groups give the GPUs.
        pinned_used_bytes: how much of that pool is in use.
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
