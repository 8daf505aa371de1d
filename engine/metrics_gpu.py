"""GPUs as metric families (docs/reference/metrics.md#gpu-and-cpu-families)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What one GPU said last. None for what it cannot say, or did not: then the family has no such series.

    Attributes:
        uuid: ``GPU-…``, as NVML names it.
        utilization: from 0.0 to 1.0.
        energy_joules: what it has used since the server started.
    """

    uuid: str
    utilization: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_usage_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None


@dataclass(frozen=True, slots=True)
class _GpuFamily:
    name: str
    help: str
    value: Callable[[GpuReading], float | None]
    make: type[CounterMetricFamily] | type[GaugeMetricFamily] = GaugeMetricFamily


_FAMILIES = (
    _GpuFamily("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", lambda gpu: gpu.utilization),
    _GpuFamily("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", lambda gpu: gpu.memory_total_bytes),
    _GpuFamily("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", lambda gpu: gpu.memory_used_bytes),
    _GpuFamily("nv_gpu_power_usage", "GPU power usage in watts", lambda gpu: gpu.power_usage_watts),
    _GpuFamily("nv_gpu_power_limit", "GPU power management limit in watts", lambda gpu: gpu.power_limit_watts),
    _GpuFamily(
        "nv_energy_consumption",
        "GPU energy consumption in joules since the Triton Server started",
        lambda gpu: gpu.energy_joules,
        CounterMetricFamily,
    ),
)


def gpu_families(gpus: Sequence[GpuReading]) -> Iterator[Metric]:
    """The families of all GPUs; without series, and so not printed, where there are none."""
    for described in _FAMILIES:
        family = described.make(described.name, described.help, labels=("gpu_uuid",))
        for gpu in gpus:
            value = described.value(gpu)
            if value is not None:
                family.add_metric((gpu.uuid,), value)
        yield family
