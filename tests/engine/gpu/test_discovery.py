"""Which GPUs models may use: NVML's answers, through a stand-in, under what the environment lets CUDA see."""

from __future__ import annotations

import logging
import sys

import pytest
from fake_nvml import FakeGpu, FakeNvml, FakePart, NVMLError, NVMLError_DriverNotLoaded, NVMLError_LibraryNotFound

from trireme.engine.gpu.discovery import (
    Gpu,
    Gpus,
    Names,
    cuda_order,
    find_gpus,
    memory_in_use,
    opened_nvml,
    usable_gpus,
)

GIB = 1 << 30


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml(
        FakeGpu("GPU-a", total_bytes=80 * GIB, capability=(9, 0), name="NVIDIA H100"),
        FakeGpu("GPU-b", total_bytes=16 * GIB, capability=(7, 5), name="Tesla T4"),
        FakeGpu("GPU-c", total_bytes=4 * GIB, capability=(5, 2), name="Quadro M2000"),
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    return fake


def test_every_gpu_is_described(library: FakeNvml) -> None:
    assert find_gpus({}) == (
        Gpu(0, "GPU-a", (9, 0), 80 * GIB, "NVIDIA H100"),
        Gpu(1, "GPU-b", (7, 5), 16 * GIB, "Tesla T4"),
        Gpu(2, "GPU-c", (5, 2), 4 * GIB, "Quadro M2000"),
    )
    assert library.open == 0, "the library is closed again"


DIVIDED = [
    Names("GPU-aa"),
    Names("GPU-ab", True, (("MIG-1", "MIG-GPU-ab/1/0"), ("MIG-2", "MIG-GPU-ab/5/0"))),
    Names("GPU-c", True),
    Names("GPU-d", True, (("MIG-3", "MIG-GPU-d/1/0"),)),
]


@pytest.mark.parametrize(
    ("visible", "order"),
    [
        (None, [(0, None), (1, 0)]),
        ("0", [(0, None)]),
        ("MIG-2", [(1, 1)]),
        ("MIG-2,MIG-1", [(1, 1)]),
        ("MIG-GPU-ab/5/0", [(1, 1)]),
        ("MIG-GPU-ab/6/0", []),
        ("GPU-ab,0", [(1, 0)]),
        ("GPU-c,0", [(0, None)]),
        ("0,MIG-3,1", [(0, None), (3, 0)]),
        ("MIG-", []),
    ],
)
def test_a_divided_gpu_stands_for_a_part_of_it(visible: str | None, order: list[tuple[int, int | None]]) -> None:
    assert cuda_order(DIVIDED, visible) == order


def test_a_part_of_a_gpu_is_found_and_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it can is what its GPU can; how much memory it has, it says itself."""
    part = FakePart("MIG-9f", total_bytes=5 * GIB, used_bytes=GIB, name="NVIDIA H100 MIG 1g.5gb")
    fake = FakeNvml(FakeGpu("GPU-a", total_bytes=80 * GIB, parts=(None, FakePart("MIG-88", (2, 0)), part, None)))
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    found = Gpu(0, "MIG-9f", (9, 0), 5 * GIB, "NVIDIA H100 MIG 1g.5gb")
    assert find_gpus({"CUDA_VISIBLE_DEVICES": "MIG-9f"}) == (found,)
    assert [gpu.uuid for gpu in find_gpus({"CUDA_VISIBLE_DEVICES": "MIG-GPU-a/2/0"})] == ["MIG-88"]
    assert [gpu.uuid for gpu in find_gpus({})] == ["MIG-88"]
    assert memory_in_use(found) == (GIB, 5 * GIB)


@pytest.mark.parametrize(
    ("visible", "order"),
    [
        (None, [0, 1, 2, 3]),
        ("1", [1]),
        ("3, 0", [3, 0]),
        ("GPU-c,GPU-ab", [3, 1]),
        ("2,1", [2, 1]),
        ("0,9,1", [0]),
        ("1,GPU-a,0", [1]),
        ("GPU-x", []),
        ("MIG-1/2/3", []),
        ("-1", []),
        ("", []),
        ("1,-1,0", [1]),
        ("1,,0", [1]),
    ],
)
def test_gpus_are_numbered_as_cuda_sees_them(visible: str | None, order: list[int]) -> None:
    """By number or by the beginning of a UUID, up to the first that names none, or several."""
    assert cuda_order([Names(uuid) for uuid in ("GPU-aa", "GPU-ab", None, "GPU-c")], visible) == [
        (number, None) for number in order
    ]


@pytest.mark.parametrize(("visible", "uuids"), [("2,0", ["GPU-c", "GPU-a"]), ("GPU-b", ["GPU-b"]), ("", []), ("7", [])])
def test_the_environment_says_which_gpus_there_are(library: FakeNvml, visible: str, uuids: list[str]) -> None:
    found = find_gpus({"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.index for gpu in found] == list(range(len(uuids)))
    assert [gpu.uuid for gpu in found] == uuids


@pytest.mark.parametrize(
    ("least", "indices"), [(0.0, (0, 1, 2)), (5.2, (0, 1, 2)), (6.0, (0, 1)), (7.5, (0, 1)), (9.001, (0,)), (9.1, ())]
)
def test_gpus_that_can_do_too_little_are_not_used(
    library: FakeNvml, caplog: pytest.LogCaptureFixture, least: float, indices: tuple[int, ...]
) -> None:
    """The others keep their numbers, and the log names each."""
    with caplog.at_level(logging.INFO, "trireme.gpu"):
        gpus = usable_gpus(None, least, {})
    assert gpus.indices == indices
    assert gpus.min_compute_capability == least
    assert len(caplog.messages) == 3
    assert caplog.messages[0].startswith("GPU 0: NVIDIA H100, compute capability 9.0, 80.0 GiB, GPU-a")
    refused = [text for text in caplog.messages if f"not used: less than {least:g} is not supported" in text]
    assert len(refused) == 3 - len(indices)


def test_what_is_known_of_gpus_goes_by_their_numbers() -> None:
    gpus = usable_gpus((Gpu(3, "", (9, 0)), Gpu(1, "GPU-b", (8, 6))), 6.0, {})
    assert gpus.indices == (1, 3)
    assert gpus.uuids == {1: "GPU-b"}
    assert gpus.capabilities == {1: "8.6", 3: "9.0"}


def test_gpus_that_are_given_are_not_looked_for(library: FakeNvml) -> None:
    library.init_error = NVMLError("must not be asked")
    assert usable_gpus((), 6.0, {}) == Gpus((), 6.0)


@pytest.mark.parametrize("error", [NVMLError_LibraryNotFound(), NVMLError_DriverNotLoaded()])
def test_a_machine_without_gpus_is_nothing_to_speak_of(
    library: FakeNvml, error: NVMLError, caplog: pytest.LogCaptureFixture
) -> None:
    library.init_error = error
    assert find_gpus({}) == ()
    assert not caplog.records


@pytest.mark.parametrize("when", ["init", "count"])
def test_a_driver_that_is_broken_is_a_warning(
    library: FakeNvml, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    broken = NVMLError("Driver/library version mismatch")

    def fail() -> None:
        raise broken

    if when == "init":
        library.init_error = broken
    else:
        monkeypatch.setattr(library, "nvmlDeviceGetCount", fail)
    assert find_gpus({}) == ()
    assert caplog.messages == ["GPUs cannot be used: Driver/library version mismatch"]
    assert library.open == 0


def test_a_library_that_cannot_be_closed_has_answered_all_the_same(
    library: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise NVMLError("GPU is lost")

    monkeypatch.setattr(library, "nvmlShutdown", fail)
    assert len(find_gpus({})) == len(library.gpus) > 0


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetCudaComputeCapability"])
def test_a_gpu_that_does_not_say_what_it_can_is_not_used(
    library: FakeNvml, caplog: pytest.LogCaptureFixture, function: str
) -> None:
    library.gpus[0].silent = {function}
    assert [(gpu.index, gpu.uuid) for gpu in find_gpus({})] == [(1, "GPU-b"), (2, "GPU-c")]
    assert caplog.messages == ["GPU 0 does not say what it can, and is not used"]


@pytest.mark.parametrize("function", ["nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetName"])
def test_other_things_that_it_does_not_tell_are_left_open(library: FakeNvml, function: str) -> None:
    library.gpus[1].silent = {function}
    assert [gpu.index for gpu in find_gpus({})] == [0, 1, 2]


def test_without_the_binding_the_log_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # asked for, as where there is a driver
    with opened_nvml("GPUs cannot be used") as nvml:
        assert nvml is None
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "GPUs cannot be used: NVML needs the package pynvml: pip install trireme-server[nvml] ("
    )
