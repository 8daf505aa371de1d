"""What ``simple_http_cudashm_client`` and ``simple_grpc_cudashm_client`` call, on a stand-in for the driver: the client
library needs a GPU to make memory, but none to tell the server about it."""

from __future__ import annotations

import base64
import ctypes
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from fake_cuda import FakeCuda
from tritonclient.utils import InferenceServerException

CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """What the machine's driver is from now on."""
    fake, real = FakeCuda(), ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name, *more: fake if "libcuda" in str(name) else real(name, *more))
    return fake


@pytest.fixture
def server(cuda: FakeCuda, serve: Any, repository_root: Path, tmp_path: Path) -> Iterator[Any]:
    shutil.copytree(repository_root / "model_repository" / "simple", tmp_path / "simple")
    with serve(tmp_path, allow_client_shm=True) as running:
        yield running


@pytest.mark.parametrize("protocol", list(CLIENTS))
def test_numbers(server: Any, cuda: FakeCuda, protocol: str) -> None:
    library = CLIENTS[protocol]
    a, b = np.arange(16, dtype=np.int32), np.ones(16, dtype=np.int32)
    given, taken = cuda.allocate(a.tobytes() + b.tobytes()), cuda.allocate(bytes(128))
    inputs = [library.InferInput(f"INPUT{index}", [1, 16], "INT32") for index in range(2)]
    more = {"binary_data": True} if protocol == "http" else {}
    outputs = [library.InferRequestedOutput(f"OUTPUT{index}", **more) for index in range(2)]
    for index in range(2):
        inputs[index].set_shared_memory("input_data", 64, offset=64 * index)
        outputs[index].set_shared_memory("output_data", 64, offset=64 * index)
    with library.InferenceServerClient(server.url if protocol == "http" else server.grpc_url) as client:
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
        for name, allocation in (("output_data", taken), ("input_data", given)):
            client.register_cuda_shared_memory(name, base64.b64encode(allocation.handle), 0, 128)
        client.infer("simple", inputs, outputs=outputs)
        assert np.frombuffer(taken.memory, np.int32).tolist() == [*(a + b), *(a - b)]
        status = client.get_cuda_shared_memory_status()
        names = [each["name"] for each in status] if protocol == "http" else sorted(status.regions)
        assert names == ["input_data", "output_data"]
        client.unregister_cuda_shared_memory("input_data")
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'input_data'"):
            client.infer("simple", inputs, outputs=outputs)
        client.unregister_cuda_shared_memory()
    pause = threading.Event()
    for _ in range(2_000):
        if not cuda.mapped:
            break
        pause.wait(0.01)  # the thread that executed the batch may not have let go of it yet
    assert cuda.mapped == {}
