"""Clients that vanish: what they asked for is dropped, and no other client notices."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path

import pytest
import trio
from gated_server import GatedServer, gated_server
from http_sockets import Responses, connect, until

from trireme.engine.errors import FailureReason


def request(name: str, value: float) -> bytes:
    """The bytes of an inference request for the model `gated`."""
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    body = json.dumps({"id": name, "inputs": [tensor]}).encode()
    head = b"POST /v2/models/gated/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


async def answer_on(stream: trio.SocketStream) -> tuple[int, str, list[float]]:
    """Status, ID and output of the next answer."""
    response = await Responses(stream).next()
    answer = json.loads(response.body)
    return response.status, answer["id"], answer["outputs"][0]["data"]


async def busy(gated: GatedServer, name: str) -> trio.SocketStream:
    """A client whose request is being executed."""
    stream = await connect(gated.http)
    await stream.send_all(request(name, 1.0))
    await until(lambda: gated.begun == [name])
    return stream


async def metrics_of(gated: GatedServer) -> str:
    async with await connect(gated.metrics) as stream:
        await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return (await Responses(stream).next()).body.decode()


@pytest.mark.parametrize("farewell", ["close", "reset"])
async def test_a_queued_request_leaves_the_queue_with_its_client(tmp_path: Path, farewell: str) -> None:
    async with gated_server(tmp_path) as gated, await busy(gated, "first") as first:
        vanishing = await connect(gated.http)
        await vanishing.send_all(request("vanishing", 2.0))
        await until(lambda: gated.statistics.pending == 1)
        if farewell == "reset":
            vanishing.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await vanishing.aclose()

        await until(lambda: gated.statistics.failures[FailureReason.CANCELED] == 1)
        assert gated.statistics.pending == 0
        assert gated.statistics.fail.count == 1
        assert gated.server.budget_statistics().requests == 1
        metrics = await metrics_of(gated)
        assert 'nv_inference_request_failure{model="gated",reason="CANCELED",version="1"} 1\n' in metrics
        assert 'nv_inference_pending_request_count{model="gated",version="1"} 0\n' in metrics

        async with await connect(gated.http) as last:
            await last.send_all(request("last", 3.0))
            await until(lambda: gated.statistics.pending == 1)
            gated.gate.set()
            assert await answer_on(first) == (200, "first", [1.0])
            assert await answer_on(last) == (200, "last", [3.0])
        assert gated.begun == ["first", "last"]
        assert gated.statistics.success.count == 2
        assert gated.server.budget_statistics().requests == 0


async def test_a_running_request_is_seen_to_be_cancelled(tmp_path: Path) -> None:
    """It cannot be stopped, but the backend may look; its instance goes on with the next one."""
    async with gated_server(tmp_path) as gated:
        vanishing = await busy(gated, "vanishing")
        await vanishing.aclose()
        await until(lambda: gated.http.statistics().disconnects == 1)
        async with await connect(gated.http) as next_one:
            await next_one.send_all(request("next", 2.0))
            await until(lambda: gated.statistics.pending == 1)
            gated.gate.set()
            assert await answer_on(next_one) == (200, "next", [2.0])
        assert gated.begun == ["vanishing", "next"]
        assert gated.cancelled == ["vanishing"]
        assert gated.server.budget_statistics().requests == 0


async def test_half_a_request_is_no_request(tmp_path: Path) -> None:
    """A client that goes before it has said everything leaves no trace in the statistics."""
    async with gated_server(tmp_path) as gated:
        gated.gate.set()
        whole = request("half", 1.0)
        for length in (1, 20, len(whole) // 2, len(whole) - 1):
            stream = await connect(gated.http)
            await stream.send_all(whole[:length])
            await stream.aclose()
        await until(lambda: gated.http.statistics().connections == 0)
        async with await connect(gated.http) as stream:
            await stream.send_all(request("whole", 2.0))
            assert await answer_on(stream) == (200, "whole", [2.0])
        assert gated.begun == ["whole"]
        assert gated.statistics.fail.count == 0
        assert gated.statistics.success.count == 1


async def test_crowds_that_vanish_leave_nothing_behind(tmp_path: Path) -> None:
    async with gated_server(tmp_path) as gated, await busy(gated, "first") as first:
        crowd = [await connect(gated.http) for _ in range(100)]
        for number, stream in enumerate(crowd):
            await stream.send_all(request(f"crowd {number}", 0.0))
        await until(lambda: gated.statistics.pending == 100)
        for stream in crowd[::2]:
            await stream.aclose()
        await until(lambda: gated.statistics.failures[FailureReason.CANCELED] == 50)
        assert gated.statistics.pending == 50
        gated.gate.set()
        assert await answer_on(first) == (200, "first", [1.0])
        for number, stream in enumerate(crowd):
            if number % 2:
                assert await answer_on(stream) == (200, f"crowd {number}", [0.0])
                await stream.aclose()
        assert sorted(gated.begun) == sorted(["first", *(f"crowd {number}" for number in range(1, 100, 2))])
        assert gated.statistics.success.count == 51
        assert gated.server.budget_statistics().requests == 0
