"""GPUs on the page, through NVML: a stand-in for it, for lack of a GPU."""

from __future__ import annotations

import sys

import pytest
import trio
from fake_nvml import FakeGpu, FakeNvml, NVMLError, NVMLError_DriverNotLoaded, NVMLError_LibraryNotFound

from trireme.api.metrics.host import GpuMeter, HostMeter, gpu_meter
from trireme.engine.metrics.families import CpuReading, GpuReading, gpu_families
from trireme.engine.metrics.page import write_text

MIB = 1 << 20


def two_gpus() -> tuple[FakeGpu, FakeGpu]:
    first = FakeGpu("GPU-a", 35, 80 * MIB + 5, 3 * MIB + MIB // 2, 61_250, 700_000, energy_mj=5_000)
    return first, FakeGpu("GPU-b", 0, 80 * MIB, 0, 40_000, 700_000, energy_mj=9_000)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml(*two_gpus())
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    return fake


def meter_of(fake: FakeNvml) -> GpuMeter:
    fake.nvmlInit()
    return GpuMeter(fake)


def test_every_gpu_is_on_the_page_with_its_uuid(library: FakeNvml) -> None:
    """Percent become shares, memory is whole MiB, milliwatts become watts, and energy begins at the first reading."""
    meter = meter_of(library)
    assert meter.latest == ()
    meter.read()
    library.gpus[0].energy_mj += 1_500
    assert write_text(gpu_families(meter.read())) == (
        "# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)\n"
        "# TYPE nv_gpu_utilization gauge\n"
        'nv_gpu_utilization{gpu_uuid="GPU-a"} 0.35\n'
        'nv_gpu_utilization{gpu_uuid="GPU-b"} 0\n'
        "# HELP nv_gpu_memory_total_bytes GPU total memory, in bytes\n"
        "# TYPE nv_gpu_memory_total_bytes gauge\n"
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 83886080\n'
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-b"} 83886080\n'
        "# HELP nv_gpu_memory_used_bytes GPU used memory, in bytes\n"
        "# TYPE nv_gpu_memory_used_bytes gauge\n"
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 3145728\n'
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-b"} 0\n'
        "# HELP nv_gpu_power_usage GPU power usage in watts\n"
        "# TYPE nv_gpu_power_usage gauge\n"
        'nv_gpu_power_usage{gpu_uuid="GPU-a"} 61.25\n'
        'nv_gpu_power_usage{gpu_uuid="GPU-b"} 40\n'
        "# HELP nv_gpu_power_limit GPU power management limit in watts\n"
        "# TYPE nv_gpu_power_limit gauge\n"
        'nv_gpu_power_limit{gpu_uuid="GPU-a"} 700\n'
        'nv_gpu_power_limit{gpu_uuid="GPU-b"} 700\n'
        "# HELP nv_energy_consumption GPU energy consumption in joules since the Triton Server started\n"
        "# TYPE nv_energy_consumption counter\n"
        'nv_energy_consumption{gpu_uuid="GPU-a"} 1.5\n'
        'nv_energy_consumption{gpu_uuid="GPU-b"} 0\n'
    )


def test_without_gpus_there_is_nothing_on_the_page() -> None:
    assert write_text(gpu_families(meter_of(FakeNvml()).read())) == ""


def test_what_a_gpu_does_not_answer_is_missing_until_it_does(
    library: FakeNvml, caplog: pytest.LogCaptureFixture
) -> None:
    meter = meter_of(library)
    sick, well = library.gpus
    sick.silent = {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates"}
    for _ in range(3):
        first, second = meter.read()
        assert (first.power_usage_watts, first.utilization, first.power_limit_watts) == (None, None, 700)
        assert second.power_usage_watts == well.power_mw / 1000
    assert [record.getMessage() for record in caplog.records] == [
        "unable to get utilization of GPU 0: GPU is lost",
        "unable to get power usage of GPU 0: GPU is lost",
    ]
    sick.silent.clear()
    assert meter.read()[0].power_usage_watts == 61.25
    sick.silent.add("nvmlDeviceGetPowerUsage")
    meter.read()
    assert len(caplog.records) == 3, "it is worth another warning now"


def test_a_gpu_that_is_lost_keeps_its_place_and_its_energy(library: FakeNvml) -> None:
    meter = meter_of(library)
    sick, _ = library.gpus
    meter.read()
    sick.energy_mj += 100
    meter.read()
    sick.silent = {"nvmlDeviceGetTotalEnergyConsumption"}
    assert meter.read()[0].energy_joules == 0.1
    sick.silent = {"nvmlDeviceGetHandleByIndex"}
    assert meter.read()[0] == GpuReading("GPU-a", energy_joules=0.1)
    sick.silent.clear()
    sick.energy_mj = 50  # the driver was loaded anew
    assert meter.read()[0].energy_joules == 0.1
    sick.energy_mj = 60
    assert meter.read()[0].energy_joules == pytest.approx(0.11)


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_gpu_without_a_name_is_left_out_until_it_has_one(library: FakeNvml, function: str) -> None:
    meter = meter_of(library)
    library.gpus[0].silent = {function}
    assert [gpu.uuid for gpu in meter.read()] == ["GPU-b"]
    library.gpus[0].silent.clear()
    assert [gpu.uuid for gpu in meter.read()] == ["GPU-a", "GPU-b"]


def test_the_library_is_opened_and_closed(library: FakeNvml) -> None:
    with gpu_meter({}) as meter:
        assert meter is not None
        assert len(meter.read()) == 2
        assert library.open == 1
    assert library.open == 0


def test_no_gpu_is_looked_for_if_the_environment_says_so(library: FakeNvml) -> None:
    library.init_error = NVMLError("must not be asked")
    with gpu_meter({"TRITON_SERVER_CPU_ONLY": ""}) as meter:
        assert meter is None


@pytest.mark.parametrize("error", [NVMLError_LibraryNotFound(), NVMLError_DriverNotLoaded()])
def test_a_machine_without_gpus_is_nothing_to_speak_of(
    library: FakeNvml, error: NVMLError, caplog: pytest.LogCaptureFixture
) -> None:
    library.init_error = error
    with gpu_meter({}) as meter:
        assert meter is None
    assert not caplog.records


def test_any_other_error_is_a_warning(library: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    library.init_error = NVMLError("Driver/library version mismatch")
    with gpu_meter({}) as meter:
        assert meter is None
    assert [record.getMessage() for record in caplog.records] == [
        "GPU metrics will not be available: Driver/library version mismatch"
    ]


@pytest.mark.parametrize(("cpu", "gpu"), [(True, True), (True, False), (False, True)])
async def test_the_machine_is_read_while_the_meter_runs(library: FakeNvml, cpu: bool, gpu: bool) -> None:
    meter = HostMeter(7, cpu=cpu, gpu=gpu, environment={}, gpu_uuids={0: "GPU-a"}, pinned_used_bytes=lambda: 3)
    told = meter.readings()
    assert (told.pinned_pool_bytes, told.pinned_used_bytes) == (7, 3)
    assert (told.cpu, told.gpus) == (CpuReading() if cpu else None, ())
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(meter.keep_reading, 0.002)
            while (  # noqa: ASYNC110 - a reading is not announced
                (cpu and meter.readings().cpu == CpuReading()) or (gpu and not meter.readings().gpus)
            ):
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
    told = meter.readings()
    assert (told.cpu is not None, bool(told.gpus)) == (cpu, gpu)
    assert told.gpu_uuids == ({0: "GPU-a"} if gpu else {})
    assert library.open == 0, "whatever happens, the library is closed"
