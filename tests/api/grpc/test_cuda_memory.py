"""CUDA regions over gRPC (docs/reference/shared-memory.md#regions), on a stand-in for the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from fake_cuda import FakeCuda
from grpc_stub import MESSAGES, PATIENCE_S, infer_request, stub_for
from scripted_server import scripted_server


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def stub(cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    real = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name, *more: cuda if "libcuda" in str(name) else real(name, *more))
    with (
        scripted_server(tmp_path / "models", grpc={"allow_client_shm": True}) as running,
        stub_for(running.url) as made,
    ):
        yield made


def register(stub: Any, name: str, handle: bytes, byte_size: int, device_id: int = 0) -> None:
    request = MESSAGES.CudaSharedMemoryRegisterRequest(
        name=name, raw_handle=handle, device_id=device_id, byte_size=byte_size
    )
    stub.CudaSharedMemoryRegister(request, timeout=PATIENCE_S)


def status(stub: Any, name: str = "") -> dict[str, tuple[str, int, int]]:
    answer = stub.CudaSharedMemoryStatus(MESSAGES.CudaSharedMemoryStatusRequest(name=name), timeout=PATIENCE_S)
    return {key: (each.name, each.device_id, each.byte_size) for key, each in answer.regions.items()}


def test_register_status_unregister(stub: Any, cuda: FakeCuda) -> None:
    handle = cuda.allocate(bytes(64)).handle
    register(stub, "a", handle, 64)
    register(stub, "b", handle, 16)
    assert status(stub) == {"a": ("a", 0, 64), "b": ("b", 0, 16)}
    stub.SystemSharedMemoryUnregister(MESSAGES.SystemSharedMemoryUnregisterRequest())
    assert status(stub, "b") == {"b": ("b", 0, 16)}
    with pytest.raises(grpc.RpcError, match="registered as CUDA shared memory, not system shared memory"):
        stub.SystemSharedMemoryStatus(MESSAGES.SystemSharedMemoryStatusRequest(name="a"))
    stub.CudaSharedMemoryUnregister(MESSAGES.CudaSharedMemoryUnregisterRequest(name="a"))
    assert list(status(stub)) == ["b"]
    stub.CudaSharedMemoryUnregister(MESSAGES.CudaSharedMemoryUnregisterRequest())
    assert status(stub) == {}
    assert cuda.mapped == {}


@pytest.mark.parametrize(
    ("handle", "byte_size", "device_id"),
    [(b"", 16, 0), (bytes(63), 16, 0), (bytes(64), 16, 0), (None, 65, 0), (None, 0, 0), (None, 16, 1), (None, 16, -1)],
)
def test_what_cannot_be_opened(stub: Any, cuda: FakeCuda, handle: bytes | None, byte_size: int, device_id: int) -> None:
    good = cuda.allocate(bytes(64)).handle
    with pytest.raises(grpc.RpcError) as failed:
        register(stub, "c", good if handle is None else handle, byte_size, device_id)
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert failed.value.details() == "failed to register shared memory region: invalid args"  # type: ignore[attr-defined]
    assert status(stub) == {}


def test_an_input_and_an_output_in_regions(stub: Any, cuda: FakeCuda) -> None:
    given, taken = cuda.allocate(np.arange(16, dtype=np.float32).tobytes()), cuda.allocate(bytes(64))
    register(stub, "in", given.handle, 64)
    register(stub, "out", taken.handle, 64)
    request = infer_request(values=[0] * 4)
    del request.raw_input_contents[:]
    for tensor, region, offset in ((request.inputs[0], "in", 32), (request.outputs.add(name="OUT"), "out", 0)):
        tensor.parameters["shared_memory_region"].string_param = region
        tensor.parameters["shared_memory_byte_size"].int64_param = 16
        tensor.parameters["shared_memory_offset"].int64_param = offset
    answer = stub.ModelInfer(request, timeout=PATIENCE_S)
    assert list(answer.raw_output_contents) == [b""]
    assert np.frombuffer(taken.memory, np.float32).tolist() == [8, 9, 10, 11] + [0] * 12
