"""CUDA regions over HTTP (docs/reference/shared-memory.md#regions), on a stand-in for the driver."""

from __future__ import annotations

import base64

import numpy as np
import orjson
import pytest
from fake_cuda import FakeCuda
from http_fakes import FakeServer, HttpClient, HttpReply

from trireme.engine.memory.cuda import CudaDriver
from trireme.engine.memory.regions import Regions

CUDA, SYSTEM = "/v2/cudasharedmemory", "/v2/systemsharedmemory"
NUMBERS = np.arange(16, dtype=np.float32).tobytes()


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def client(cuda: FakeCuda) -> HttpClient:
    server = FakeServer()
    server.shared_memory = Regions(lambda: CudaDriver(cuda))
    return HttpClient(server, allow_client_shm=True)


async def register(client: HttpClient, name: str, handle: bytes, byte_size: int, device_id: int = 0) -> HttpReply:
    document = {
        "raw_handle": {"b64": base64.b64encode(handle).decode()},
        "device_id": device_id,
        "byte_size": byte_size,
    }
    return await client.post(f"{CUDA}/region/{name}/register", orjson.dumps(document))


async def test_register_status_unregister(client: HttpClient, cuda: FakeCuda) -> None:
    handle = cuda.allocate(NUMBERS).handle
    for name, byte_size in (("b", 16), ("a", 64)):
        reply = await register(client, name, handle, byte_size)
        assert (reply.status, reply.media, reply.body) == (200, "application/json", b"")
    a, b = b'{"name":"a","device_id":0,"byte_size":64}', b'{"name":"b","device_id":0,"byte_size":16}'
    assert (await client.get(f"{CUDA}/status")).body == b"[" + a + b"," + b + b"]"
    assert (await client.get(f"{CUDA}/region/b/status")).body == b"[" + b + b"]"
    reply = await client.get(f"{SYSTEM}/region/b/status")
    text = "The region named 'b' is registered as CUDA shared memory, not system shared memory"
    assert (reply.status, reply.error) == (404, text)
    for path, left in (
        (f"{SYSTEM}/unregister", [a, b]),
        (f"{SYSTEM}/region/a/unregister", [a, b]),
        (f"{CUDA}/region/a/unregister", [b]),
        (f"{CUDA}/unregister", []),
    ):
        assert (await client.post(path, b"")).status == 200
        assert (await client.get(f"{CUDA}/status")).body == b"[" + b",".join(left) + b"]"
    assert cuda.mapped == {}


async def test_what_cannot_be_opened(client: HttpClient, cuda: FakeCuda) -> None:
    handle = cuda.allocate(NUMBERS).handle
    for reply in (
        await register(client, "c", bytes(64), 16),
        await register(client, "c", handle, 65),
        await register(client, "c", handle, 16, device_id=1),
    ):
        assert (reply.status, reply.error) == (400, "failed to register shared memory region: invalid args")
    assert (await client.get(f"{CUDA}/status")).body == b"[]"


async def test_an_input_and_an_output_in_regions(client: HttpClient, cuda: FakeCuda) -> None:
    given, taken = cuda.allocate(NUMBERS), cuda.allocate(bytes(64))
    await register(client, "in", given.handle, 64)
    await register(client, "out", taken.handle, 64)
    reply = await client.infer(
        {
            "inputs": [
                {
                    "name": "IN",
                    "shape": [4],
                    "datatype": "FP32",
                    "parameters": {
                        "shared_memory_region": "in",
                        "shared_memory_byte_size": 16,
                        "shared_memory_offset": 32,
                    },
                }
            ],
            "outputs": [{"name": "OUT", "parameters": {"shared_memory_region": "out", "shared_memory_byte_size": 16}}],
        },
        model="identity",
    )
    assert reply.status == 200
    assert "data" not in reply.json["outputs"][0]
    assert np.frombuffer(taken.memory, np.float32).tolist() == [8, 9, 10, 11] + [0] * 12
