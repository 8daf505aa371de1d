"""The machine's readings, taken at intervals (docs/reference/metrics.md#gpu-and-cpu-families); a scrape shows the
latest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import psutil
import trio

from ...engine.gpu.discovery import opened_nvml
from ...engine.metrics.families import NO_GPUS, CpuReading, GpuReading, HostReadings

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
            busy, total = _times()
            memory = psutil.virtual_memory()
        except OSError as error:
            if not self._warned:
                logger.warning("unable to read how busy the CPUs are: %s", error)
            self._warned = True
            return self.latest
        self._warned = False
        passed = total - self._total
        utilization = (busy - self._busy) / passed if passed > 0 else 0.0
        self._busy, self._total = busy, total
        self.latest = CpuReading(
            min(1.0, max(0.0, utilization)), int(memory.total), int(memory.total - memory.available)
        )
        return self.latest


def _times() -> tuple[float, float]:
    """Seconds that all CPUs together were busy, and that passed for them. Some systems do not have every kind."""
    times = psutil.cpu_times()
    busy = sum(getattr(times, kind, 0.0) for kind in _BUSY)
    return busy, busy + sum(getattr(times, kind, 0.0) for kind in _IDLE)


# How busy the GPUs are, as NVML tells.
#
# Every question that a GPU is asked may fail, once or always: not every model knows its power, and one that has fallen
# off the bus knows nothing. Such an answer is missing until it comes again; the others are not affected.


_MIB = 1 << 20
_CPU_ONLY = "TRITON_SERVER_CPU_ONLY"
_IN_VAIN = "GPU metrics will not be available"


class GpuMeter:
    """Reads the GPUs, by ``pynvml``, initialised. Readings are taken by one thread at a time; the latest of each may be
    looked at from any."""

    def __init__(self, nvml: Any) -> None:
        self.latest: tuple[GpuReading, ...] = ()
        self._gpus = [_Gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]

    def read(self) -> tuple[GpuReading, ...]:
        """Ask every GPU. May take milliseconds; never raises because of what a GPU does."""
        self.latest = tuple(reading for gpu in self._gpus if (reading := gpu.read()) is not None)
        return self.latest


class _Gpu:
    """One GPU, by its number."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self._index = index
        self._uuid: str | None = None
        self._warned: set[str] = set()
        self._last_energy_mj: int | None = None
        self._energy_mj = 0

    def read(self) -> GpuReading | None:
        """What it says now; None as long as it has not even told its name."""
        nvml = self._nvml
        handle = self._handle()
        if handle is None:
            return None if self._uuid is None else GpuReading(self._uuid, energy_joules=self._energy_joules(None))
        uuid = self.uuid()
        if uuid is None:
            return None
        rates = self._ask("utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = self._ask("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        usage_mw = self._ask("power usage", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        limit_mw = self._ask("power limit", lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle))
        energy_mj = self._ask("energy consumption", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        return GpuReading(
            uuid=uuid,
            utilization=None if rates is None else rates.gpu / 100,
            memory_total_bytes=None if memory is None else memory.total // _MIB * _MIB,
            memory_used_bytes=None if memory is None else memory.used // _MIB * _MIB,
            power_usage_watts=None if usage_mw is None else usage_mw / 1000,
            power_limit_watts=None if limit_mw is None else limit_mw / 1000,
            energy_joules=self._energy_joules(energy_mj),
        )

    def uuid(self) -> str | None:
        """Its name, once it has told it."""
        if self._uuid is None and (handle := self._handle()) is not None:
            self._uuid = self._ask("UUID", lambda: self._nvml.nvmlDeviceGetUUID(handle))
        return self._uuid

    def _handle(self) -> Any:
        return self._ask("device", lambda: self._nvml.nvmlDeviceGetHandleByIndex(self._index))

    def _energy_joules(self, energy_mj: int | None) -> float | None:
        """Used since the first reading. A counter does not vanish while NVML does not answer; nor does it fall when the
        driver begins anew."""
        if energy_mj is not None:
            if self._last_energy_mj is not None:
                self._energy_mj += max(0, energy_mj - self._last_energy_mj)
            self._last_energy_mj = energy_mj
        return None if self._last_energy_mj is None else self._energy_mj / 1000

    def _ask(self, what: str, question: Callable[[], Any]) -> Any:
        """The answer; None for an error, of which there is one warning until it has been answered again."""
        try:
            answer = question()
        except self._nvml.NVMLError as error:
            if what not in self._warned:
                self._warned.add(what)
                logger.warning("unable to get %s of GPU %d: %s", what, self._index, error)
            return None
        self._warned.discard(what)
        return answer


@contextmanager
def gpu_meter(environment: Mapping[str, str]) -> Iterator[GpuMeter | None]:
    """The meter of this machine; None where there are no GPUs, or the environment says not to look for any."""
    if _CPU_ONLY in environment:
        yield None
        return
    with opened_nvml(_IN_VAIN, logger) as nvml:
        meter = None
        if nvml is not None:
            try:
                meter = GpuMeter(nvml)
            except nvml.NVMLError as error:
                logger.warning("%s: %s", _IN_VAIN, error)
        yield meter


class HostMeter:
    """What the metrics tell about the machine: of the CPU and of GPUs if asked to. The environment may say that there
    are no GPUs to look for; `gpu_uuids` are by the numbers that instance groups give the GPUs."""

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
