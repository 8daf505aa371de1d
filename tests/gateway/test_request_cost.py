"""What one warm small request takes of a gateway, counted: calls of Python functions, turns of tasks, writes, and bytes
that are copied. Nothing here depends on time. `benchmarks/gateway_path.py` shows the same, and the time."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from fleet_world import describe, report, row
from garbage import watched_garbage
from prepared_gateway import REQUEST, PreparedGateway, prepared_gateway
from triton_messages import MESSAGES

import trireme.api
from trireme.api.grpc.wire_writer import text_field
from trireme.engine.datatypes import FP32
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

ROOT = Path(trireme.api.__file__).parents[1]
OURS = tuple(f"{ROOT / folder}/" for folder in ("actors", "api", "engine", "gateway"))
MOST_CALLS = {"http": 110, "grpc": 135, "stream": 148}
"""Of Trireme's functions, for a request that is alone in its turns."""
MOST_CALLS_OF_MANY = {"http": 83, "grpc": 108, "stream": 121}
"""The same for each of sixteen that share their turns: what a turn costs is shared."""
MIB = 1 << 20


@pytest.fixture
async def gateway() -> AsyncIterator[PreparedGateway]:
    async with prepared_gateway() as gateway:
        yield gateway


@contextmanager
def called() -> Iterator[list[CodeType]]:
    """The functions of Trireme that are called meanwhile."""
    calls: list[CodeType] = []

    def note(frame: FrameType, event: str, _what: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls.append(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("protocol", ["http", "grpc", "stream"])
async def test_a_small_request_takes_few_calls_and_no_task(gateway: PreparedGateway, protocol: str) -> None:
    """From the client's socket to the replica's and back."""
    client = await gateway.connect(protocol)
    for _ in range(5):
        gateway.ask(client)
    assert client.answered()
    await trio.testing.wait_all_tasks_blocked()
    tasks = trio.lowlevel.current_statistics()
    with called() as calls:
        gateway.ask(client)
    assert client.answered()
    after = trio.lowlevel.current_statistics()
    assert (after.tasks_living, after.tasks_runnable) == (tasks.tasks_living, tasks.tasks_runnable)
    assert 50 < len(calls) <= MOST_CALLS[protocol]


@pytest.mark.parametrize("protocol", ["http", "grpc", "stream"])
async def test_requests_of_a_turn_share_what_a_turn_costs(gateway: PreparedGateway, protocol: str) -> None:
    """Each replica is written to once, and so is each client."""
    clients = [await gateway.connect(protocol) for _ in range(16)]
    for _ in range(5):
        gateway.ask(*clients)
    assert all(client.answered() for client in clients)
    for replica in gateway.replicas:
        replica.requests.clear()
        replica.writes = 0
    with called() as calls:
        gateway.ask(*clients)
    assert [len(client.sock.written) for client in clients] == [1] * 16
    assert all(client.answered() for client in clients)
    assert len(calls) / 16 <= MOST_CALLS_OF_MANY[protocol]
    assert sum(len(replica.requests) for replica in gateway.replicas) == 16
    assert {replica.writes for replica in gateway.replicas} == {1}


@pytest.mark.parametrize("protocol", ["http", "grpc", "stream"])
async def test_replicas_get_what_the_client_has_asked_for(gateway: PreparedGateway, protocol: str) -> None:
    """Of gRPC's clients byte by byte, also on a stream."""
    client = await gateway.connect(protocol)
    client.message += text_field(1000, "unknown")  # is not written into another message
    for replica in gateway.replicas:
        replica.requests.clear()
    for _ in range(3):
        gateway.ask(client)
        assert client.answered()
    messages = {request[5:] for replica in gateway.replicas for request in replica.requests}
    read = MESSAGES.ModelInferRequest.FromString
    assert {read(each).SerializeToString() for each in messages} == {
        read(REQUEST if protocol == "http" else client.message).SerializeToString()
    }
    assert protocol == "http" or messages == {client.message}


@pytest.mark.parametrize("protocol", ["http", "grpc", "stream"])
async def test_nothing_is_left_for_the_garbage_collector(gateway: PreparedGateway, protocol: str) -> None:
    client = await gateway.connect(protocol)
    for _ in range(5):
        gateway.ask(client)
    with watched_garbage() as garbage:
        for _ in range(20):
            gateway.ask(client)
        assert garbage() == []


async def test_a_tensor_of_any_size_is_sent_from_where_it_lies(gateway: PreparedGateway) -> None:
    """More bytes are more frames and writes, of a MiB and more each, and no memory."""
    replica = gateway.replicas[0]
    with gateway.server.turn:
        gateway.server.replicas["a"].report(report(row("wide", describe("wide", dims=-1)), everything=False))
    counts: dict[int, int] = {}
    for nbytes in (256 << 10, 256 << 10, 16 * MIB):
        values = np.arange(nbytes // 4, dtype=np.float32)
        request = InferenceRequest("wide", inputs=[Tensor("IN", FP32, values.shape, values.data.cast("B"))])
        tracemalloc.start()
        try:
            with called() as calls, gateway.server.turn:
                gateway.server.admit_nowait(request)
            await trio.testing.wait_all_tasks_blocked()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        counts[nbytes] = len(calls)
        pieces = [piece for piece in replica.sock.written if isinstance(piece, memoryview)]
        assert nbytes - 4096 < sum(map(len, pieces)) <= nbytes, "what is small is joined with what stands before it"
        assert all(np.shares_memory(np.frombuffer(piece, np.uint8), values) for piece in pieces)
        assert peak < MIB // 8
        replica.sock.take()
    small, large = counts.values()
    assert large - small <= 4 * 16
