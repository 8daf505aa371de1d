"""Regions in a GPU's memory: as bounded as those in system memory. A stand-in for the driver, for lack of a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from fake_cuda import NO_DEVICE, FakeCuda

from trireme.engine.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TriremeError,
)
from trireme.engine.memory.cuda import CudaDriver, CudaError, find_cuda
from trireme.engine.memory.regions import RegionKind, Regions

DATA = bytes(range(200))
INVALID_ARGS = "failed to register shared memory region: invalid args"


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda(devices=2)


@pytest.fixture
def regions(cuda: FakeCuda) -> Regions:
    return Regions(lambda: CudaDriver(cuda))


def refusal(act: Callable[[], object]) -> tuple[type[TriremeError], str]:
    with pytest.raises(TriremeError) as caught:
        act()
    return type(caught.value), caught.value.message


def test_inputs_are_read_and_outputs_written_inside_the_region(regions: Regions, cuda: FakeCuda) -> None:
    allocation = cuda.allocate(DATA, device_id=1)
    regions.register_cuda("r", allocation.handle, 1, 100)
    view = regions.slice("r", 10, 20).view()
    assert bytes(view) == DATA[10:30]
    assert view.readonly, "a model must not write to a client's input"
    regions.slice("r", 50, 4).write("OUT", memoryview(b"abc"))
    regions.slice("r", 60, 4).write("OUT", b"")
    assert allocation.memory == DATA[:50] + b"abc" + DATA[53:]
    assert bytes(view) == DATA[10:30]
    assert cuda.current == [], "the context that was current before is again"


@pytest.mark.parametrize(("offset", "byte_size"), [(100, 1), (0, 101), (99, 2), (0, 2**64 - 1), (2**64 - 1, 2**64 - 1)])
def test_no_slice_leaves_the_region_though_the_memory_is_longer(
    regions: Regions, cuda: FakeCuda, offset: int, byte_size: int
) -> None:
    regions.register_cuda("r", cuda.allocate(DATA).handle, 0, 100)
    assert refusal(lambda: regions.slice("r", offset, byte_size))[0] is InvalidArgumentError


def test_an_output_that_does_not_fit(regions: Regions, cuda: FakeCuda) -> None:
    allocation = cuda.allocate(DATA)
    regions.register_cuda("r", allocation.handle, 0, 100)
    error, text = refusal(lambda: regions.slice("r", 0, 8).write("OUT", b"x" * 9))
    assert error is InternalError
    assert text.endswith("(8 bytes) should be at least 9 bytes to hold the results")
    assert allocation.memory == DATA


@pytest.mark.parametrize("byte_size", [0, 201, 2**63])
def test_a_region_is_no_longer_than_its_memory(regions: Regions, cuda: FakeCuda, byte_size: int) -> None:
    handle = cuda.allocate(DATA).handle
    assert refusal(lambda: regions.register_cuda("r", handle, 0, byte_size)) == (InvalidArgumentError, INVALID_ARGS)
    assert regions.status(RegionKind.CUDA) == []
    assert cuda.mapped == {}


@pytest.mark.parametrize("device_id", [1, 2, -1, 2**31, 2**64 - 1])
def test_a_handle_is_good_on_its_own_device_only(regions: Regions, cuda: FakeCuda, device_id: int) -> None:
    handle = cuda.allocate(DATA, device_id=0).handle
    expected = (InvalidArgumentError, INVALID_ARGS)
    assert refusal(lambda: regions.register_cuda("r", handle, device_id, 100)) == expected
    assert cuda.current == []


@pytest.mark.parametrize("handle", [b"", b"x" * 63, b"x" * 64, b"x" * 65])
def test_a_handle_that_opens_nothing(regions: Regions, handle: bytes) -> None:
    expected = (InvalidArgumentError, INVALID_ARGS)
    assert refusal(lambda: regions.register_cuda("r", handle, 0, 100)) == expected


def test_memory_whose_size_cannot_be_found_out_is_closed_again(regions: Regions, cuda: FakeCuda) -> None:
    handle = cuda.allocate(DATA).handle
    cuda.broken = True
    assert refusal(lambda: regions.register_cuda("r", handle, 0, 100)) == (InvalidArgumentError, INVALID_ARGS)
    assert (cuda.mapped, cuda.current) == ({}, [])


def test_a_gpu_that_fails_fails_the_request(regions: Regions, cuda: FakeCuda) -> None:
    regions.register_cuda("r", cuda.allocate(DATA).handle, 0, 100)
    place = regions.slice("r", 0, 8)
    cuda.broken = True
    assert refusal(place.view) == (
        InternalError,
        "unable to read shared memory region 'r': cuMemcpyDtoH_v2: invalid argument (1)",
    )
    assert refusal(lambda: place.write("OUT", b"x")) == (
        InternalError,
        "unable to write shared memory region 'r': cuMemcpyHtoD_v2: invalid argument (1)",
    )
    assert cuda.current == []


def test_names_are_shared_with_system_memory(regions: Regions, cuda: FakeCuda) -> None:
    handle = cuda.allocate(DATA).handle
    regions.register_cuda("r", handle, 0, 100)
    expected = (AlreadyExistsError, "shared memory region 'r' already in manager")
    assert refusal(lambda: regions.register_system("r", "/none", 0, 1)) == expected
    assert refusal(lambda: regions.register_cuda("r", handle, 0, 100)) == expected
    assert refusal(lambda: regions.status(RegionKind.SYSTEM, "r")) == (
        NotFoundError,
        "The region named 'r' is registered as CUDA shared memory, not system shared memory",
    )
    assert regions.status(RegionKind.SYSTEM) == []
    regions.unregister(RegionKind.SYSTEM, "r")
    regions.unregister(RegionKind.SYSTEM)
    (region,) = regions.status(RegionKind.CUDA)
    assert (region.name, region.device_id, region.byte_size) == ("r", 0, 100)
    assert regions.status(RegionKind.CUDA, "r") == [region]


def test_memory_is_closed_when_the_last_request_has_done_with_it(regions: Regions, cuda: FakeCuda) -> None:
    handle = cuda.allocate(DATA).handle
    regions.register_cuda("a", handle, 0, 100)
    regions.register_cuda("b", handle, 0, 200)
    place = regions.slice("a", 0, 4)
    regions.unregister(RegionKind.CUDA)
    assert regions.status(RegionKind.CUDA) == []
    assert len(cuda.mapped) == 1
    place.write("OUT", b"1234")
    assert bytes(place.view()) == b"1234"
    del place
    assert cuda.mapped == {}


def test_gpus_are_looked_for_when_they_are_needed(cuda: FakeCuda) -> None:
    looked: list[CudaDriver] = []

    def find() -> CudaDriver:
        looked.append(CudaDriver(cuda))
        return looked[-1]

    regions = Regions(find)
    assert regions.status(RegionKind.CUDA) == []
    regions.unregister(RegionKind.CUDA)
    assert looked == []
    for name in ("a", "b"):
        regions.register_cuda(name, cuda.allocate(DATA).handle, 0, 100)
    assert len(looked) == 1


@pytest.mark.parametrize("library", [FakeCuda(devices=0), FakeCuda(init_status=NO_DEVICE)])
def test_a_driver_without_gpus_is_none(library: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CudaError):
        CudaDriver(library)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    assert find_cuda() is None


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert find_cuda() is None
    expected = (InvalidArgumentError, "failed to register CUDA shared memory region: 'r', GPUs not supported")
    assert refusal(lambda: Regions().register_cuda("r", bytes(64), 0, 1)) == expected
