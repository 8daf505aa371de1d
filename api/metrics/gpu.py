"""How busy the machine's GPUs are, as NVML tells (docs/reference/metrics.md#gpu-and-cpu-families).

Every question that a GPU is asked may fail, once or always: not every model knows its power, and one that has fallen
off the bus knows nothing. Such an answer is missing until it comes again; the others are not affected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...engine.gpu.discovery import opened_nvml
from ...engine.metrics.families import GpuReading

logger = logging.getLogger("trireme.metrics")

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
        yield None if nvml is None else _meter(nvml)


def _meter(nvml: Any) -> GpuMeter | None:
    try:
        return GpuMeter(nvml)
    except nvml.NVMLError as error:
        logger.warning("%s: %s", _IN_VAIN, error)
        return None
