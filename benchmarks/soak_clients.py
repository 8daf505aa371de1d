"""The clients of a soak: good ones, hasty ones, slow ones, wrong ones, and the operator.

Each action is done over and over by `soak.py`. One that returns has seen what it expected; one that raises complains.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import struct
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from servers import Server
from tritonclient.utils import InferenceServerException, shared_memory

Action = Callable[[], Awaitable[None]]

PATIENCE_S = 60.0
LARGE_BYTES = 4 << 20

WRONG_HEADS = (
    b"GET /v2/nothing HTTP/1.1\r\nHost: x\r\n\r\n",
    b'POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"inputs"',
    b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0",
    b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"BREW /coffee HTCPCP/1.0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    b"\x00\x00\x05\x01\x04\x00\x00\x00\x01" + b"\xff" * 5,
)
"""What a server gets to read that is no request, or none that can be answered well."""


class Clients:
    """All clients of one server.

    Args:
        repository: the server's, whose files the operator touches.
        seed: of all that is drawn.
    """

    def __init__(self, server: Server, repository: Path, seed: int) -> None:
        self._server = server
        self._repository = repository
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Clients:
        self._http = triton_http.InferenceServerClient(self._server.url, conn_timeout=PATIENCE_S)
        self._grpc = triton_grpc.InferenceServerClient(self._server.grpc_url)
        self._plain = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
        await self._grpc.close()
        await self._plain.close()

    def actions(self) -> dict[str, tuple[Action, float]]:
        """By name: what is done, and seconds of rest between two times."""
        return {
            "http simple": (self.http_simple, 0.002),
            "http json": (self.http_json, 0.005),
            "http ensemble": (self.http_ensemble, 0.01),
            "http cached": (self.http_cached, 0.005),
            "grpc digits": (self.grpc_digits, 0.002),
            "grpc simple": (self.grpc_simple, 0.002),
            "grpc sequence": (self.grpc_sequence, 0.02),
            "grpc cancelled": (self.grpc_cancelled, 0.01),
            "http cancelled": (self.http_cancelled, 0.01),
            "http wrong bytes": (self.http_wrong_bytes, 0.05),
            "grpc wrong bytes": (self.grpc_wrong_bytes, 0.05),
            "wrong requests": (self.wrong_requests, 0.02),
            "slow head": (self.slow_head, 0.1),
            "slow body": (self.slow_body, 0.1),
            "stopped reader": (self.stopped_reader, 0.3),
            "given up": (self.given_up, 0.1),
            "shared memory http": (self.shared_memory_http, 0.1),
            "shared memory grpc": (self.shared_memory_grpc, 0.1),
            "reload": (self.reload, 0.7),
            "unload and load": (self.unload_and_load, 1.0),
            "scrape": (self.scrape, 0.5),
        }

    # Good ones.

    def _pair(self, module: Any) -> tuple[np.ndarray, np.ndarray, list[Any]]:
        a = np.array([self._random.sample(range(1_000_000), 16)], np.int32)
        b = np.array([self._random.sample(range(1_000_000), 16)], np.int32)
        inputs = [module.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        for tensor, array in zip(inputs, (a, b), strict=True):
            tensor.set_data_from_numpy(array)
        return a, b, inputs

    async def http_simple(self) -> None:
        a, b, inputs = self._pair(triton_http)
        result = await self._http.infer("simple", inputs)
        assert (_output(result, "OUTPUT0") == a + b).all()

    async def http_json(self) -> None:
        a, b, _ = self._pair(triton_http)
        tensors = (("INPUT0", a), ("INPUT1", b))
        body = {
            "inputs": [
                {"name": name, "shape": [1, 16], "datatype": "INT32", "data": array.tolist()} for name, array in tensors
            ]
        }
        async with self._plain.post(f"http://{self._server.url}/v2/models/simple/infer", json=body) as response:
            answer = await response.json()
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        assert outputs["OUTPUT1"] == (a - b)[0].tolist()

    async def http_ensemble(self) -> None:
        pixels = bytes(self._random.randrange(256) for _ in range(64))
        file = np.frombuffer(b"P5 8 8 255\n" + pixels, np.uint8)[None]
        tensor = triton_http.InferInput("FILE", list(file.shape), "UINT8")
        tensor.set_data_from_numpy(file)
        result = await self._http.infer("digits_pipeline", [tensor])
        assert abs(_output(result, "PROBABILITIES").sum() - 1) < 1e-3

    async def http_cached(self) -> None:
        array = np.full((1, 16), self._random.randrange(500), np.float32)
        tensor = triton_http.InferInput("INPUT0", [1, 16], "FP32")
        tensor.set_data_from_numpy(array)
        result = await self._http.infer("cached", [tensor])
        assert (_output(result, "OUTPUT0") == array).all()

    async def grpc_digits(self) -> None:
        rows = self._random.randrange(1, 5)
        tensor = triton_grpc.InferInput("IMAGE", [rows, 8, 8], "FP32")
        tensor.set_data_from_numpy(np.zeros((rows, 8, 8), np.float32))
        result = await self._grpc.infer("digits", [tensor])
        assert _output(result, "PROBABILITIES").shape == (rows, 10)

    async def grpc_simple(self) -> None:
        a, b, inputs = self._pair(triton_grpc)
        result = await self._grpc.infer("simple", inputs)
        assert (_output(result, "OUTPUT1") == a - b).all()

    async def grpc_sequence(self) -> None:
        number, length = next(self._numbers), 5

        async def requests() -> AsyncIterator[dict[str, Any]]:
            for step in range(length):
                tensor = triton_grpc.InferInput("INPUT", [1, 1], "INT32")
                tensor.set_data_from_numpy(np.array([[step]], np.int32))
                yield {
                    "model_name": "running_sum",
                    "inputs": [tensor],
                    "sequence_id": number,
                    "sequence_start": step == 0,
                    "sequence_end": step == length - 1,
                }

        sums = []
        answers: Any = self._grpc.stream_infer(requests())
        async for result, error in answers:
            if error is not None:
                raise error
            sums.append(int(_output(result, "OUTPUT")[0, 0]))
        assert sums == list(itertools.accumulate(range(length))), sums

    # Hasty ones.

    async def grpc_cancelled(self) -> None:
        _, _, inputs = self._pair(triton_grpc)
        call = asyncio.create_task(self._grpc.infer("simple", inputs))
        await asyncio.sleep(self._random.random() * 0.002)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call

    async def http_cancelled(self) -> None:
        reader, writer = await self._connect(self._server.http_port)
        writer.write(self._large_request(1000))
        await asyncio.sleep(self._random.random() * 0.002)
        _reset(writer)
        del reader

    # Wrong ones.

    async def http_wrong_bytes(self) -> None:
        await self._send_wrong_bytes(self._server.http_port)

    async def grpc_wrong_bytes(self) -> None:
        assert self._server.grpc_port is not None
        await self._send_wrong_bytes(self._server.grpc_port)

    async def _send_wrong_bytes(self, port: int) -> None:
        """An answer, or the end of the connection: anything but silence."""
        reader, writer = await self._connect(port)
        writer.write(self._random.choice(WRONG_HEADS))
        with contextlib.suppress(OSError):
            writer.write_eof()  # unless the server has had enough already
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), PATIENCE_S)
        _reset(writer)

    async def wrong_requests(self) -> None:
        tensor = triton_grpc.InferInput("INPUT0", [1, 3], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 3), np.float32))
        for model in ("simple", "nothing", "digits_pipeline", "running_sum"):
            await _refused(self._grpc.infer(model, [tensor]))
        other = triton_http.InferInput("INPUT0", [1, 3], "FP32")
        other.set_data_from_numpy(np.zeros((1, 3), np.float32))
        await _refused(self._http.infer("simple", [other]))
        await _refused(self._http.load_model("nothing"))

    # Slow ones.

    async def slow_head(self) -> None:
        await self._dribble(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 7)

    async def slow_body(self) -> None:
        await self._dribble(self._large_request(200, close=True), 97)

    async def _dribble(self, data: bytes, step: int) -> None:
        reader, writer = await self._connect(self._server.http_port)
        for at in range(0, len(data), step):
            writer.write(data[at : at + step])
            await writer.drain()
            await asyncio.sleep(0.02)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        writer.close()

    async def stopped_reader(self) -> None:
        """Asks for something large, reads the beginning, stops, and goes away after a while."""
        reader, writer = await self._connect(self._server.http_port, window=16 * 1024)
        writer.write(self._large_request(LARGE_BYTES))
        await asyncio.wait_for(writer.drain(), PATIENCE_S)
        await asyncio.wait_for(reader.readexactly(20), PATIENCE_S)
        await asyncio.sleep(1 + self._random.random())
        _reset(writer)

    async def given_up(self) -> None:
        """Sends half of a request, and nothing more."""
        _, writer = await self._connect(self._server.http_port)
        data = self._large_request(500)
        writer.write(data[: self._random.randrange(1, len(data))])
        await asyncio.sleep(self._random.random())
        writer.close()

    def _large_request(self, size: int, *, close: bool = False) -> bytes:
        """An inference over HTTP with one string of this size, both ways."""
        head = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"BYTES","parameters":{"binary_data_size":%d}}]}'
        head %= size + 4
        lines = [
            b"POST /v2/models/simple_identity/infer HTTP/1.1",
            b"Host: x",
            b"Inference-Header-Content-Length: %d" % len(head),
            b"Content-Length: %d" % (len(head) + size + 4),
            *([b"Connection: close"] if close else []),
        ]
        return b"\r\n".join(lines) + b"\r\n\r\n" + head + struct.pack("<I", size) + b"x" * size

    async def _connect(self, port: int, window: int = 0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        if window:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=sock, limit=window or 1 << 16)

    # Shared memory.

    async def shared_memory_http(self) -> None:
        await self._share(self._http, triton_http)

    async def shared_memory_grpc(self) -> None:
        await self._share(self._grpc, triton_grpc)

    async def _share(self, client: Any, module: Any) -> None:
        """Inputs from a region, outputs into another one."""
        name = uuid.uuid4().hex
        handle = shared_memory.create_shared_memory_region(name, f"/trireme-soak-{name}", 256)
        try:
            await client.register_system_shared_memory(name, f"/trireme-soak-{name}", 256)
            a, b, inputs = self._pair(module)
            shared_memory.set_shared_memory_region(handle, [a, b])
            outputs = [module.InferRequestedOutput(each) for each in ("OUTPUT0", "OUTPUT1")]
            for at, (given, wanted) in enumerate(zip(inputs, outputs, strict=True)):
                given.set_shared_memory(name, 64, at * 64)
                wanted.set_shared_memory(name, 64, 128 + at * 64)
            await client.infer("simple", inputs, outputs=outputs)
            sums = shared_memory.get_contents_as_numpy(handle, np.int32, [1, 16], 128)
            assert (sums == a + b).all()
            await client.unregister_system_shared_memory(name)
        finally:
            shared_memory.destroy_shared_memory_region(handle)

    # The operator.

    async def reload(self) -> None:
        """Loads a changed model again, under load."""
        model = self._random.choice(("simple", "digits", "digits_pipeline", "running_sum", "cached", "simple_identity"))
        (self._repository / model / "1" / "changed").touch()
        await self._http.load_model(model)

    async def unload_and_load(self) -> None:
        await self._grpc.unload_model("spare")
        while await self._grpc.is_model_ready("spare"):  # noqa: ASYNC110 - the server sends no notice
            await asyncio.sleep(0.01)
        await self._grpc.load_model("spare")

    async def scrape(self) -> None:
        for url, path in (
            (f"127.0.0.1:{self._server.metrics_port}", "/metrics"),
            (self._server.url, "/v2/models/stats"),
        ):
            async with self._plain.get(f"http://{url}{path}") as response:
                assert response.status == 200, response.status
                await response.read()
        await self._http.get_model_repository_index()
        await self._grpc.is_server_ready()


def _output(result: Any, name: str) -> np.ndarray:
    return result.as_numpy(name)


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection at once, with a reset."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _refused(call: Awaitable[object]) -> None:
    try:
        await call
    except InferenceServerException:
        return
    raise AssertionError("a request that should have been refused was answered")
