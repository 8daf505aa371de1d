"""`trireme serve --drain-secs`, told to end: what clients and load balancers see, and that they lose nothing
(docs/reference/command-line.md#shutdown)."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trio
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from balancer import Backend, Balancer
from python_models import CONFIG, write_model
from serve_process import PATIENCE_S, ServeProcess, serve_process

from trireme.proto.messages.grpc.health import v1 as health

MODEL = "identity"
FOR_EVER = ("--drain-secs", "inf")
"""Until a second signal."""
BY = {"one process": (), "front ends": ("--front-ends", "2")}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    write_model(path, MODEL, config=CONFIG + 'parameters { key: "EXECUTION" value { string_value: "in_process" } }')
    return path


@pytest.fixture(params=BY.values(), ids=list(BY))
def server(repository: Path, request: pytest.FixtureRequest) -> Iterator[ServeProcess]:
    with serve_process(repository, *FOR_EVER, *request.param) as server:
        server.wait_for("Started GRPCInferenceService")
        yield server


def http_status(connection: http.client.HTTPConnection, path: str, body: object = None) -> tuple[int, bool]:
    """Status of an answer, and whether it says that the connection ends."""
    connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
    response = connection.getresponse()
    response.read()
    return response.status, response.getheader("Connection") == "close"


def test_every_protocol_says_that_it_is_not_ready_and_serves_on(server: ServeProcess) -> None:
    """On connections that were open before and on new ones; models stay ready, and the server is live. A second signal
    ends it."""
    values = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]}
    infer = f"/v2/models/{MODEL}/infer"
    channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
    with (
        closing(http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)) as first,
        closing(http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)) as second,
        grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
        channel,
    ):
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check", response_deserializer=health.HealthCheckResponse.parse
        )
        for _ in range(3):  # from the second on, without a task
            assert http_status(first, infer, values) == (200, False)
        assert http_status(second, "/v2/health/ready") == (200, False)
        assert client.is_server_ready()
        assert check(b"").status == health.HealthCheckResponseServingStatus.SERVING
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("Draining for inf s")
        for connection in (second, first):
            assert http_status(connection, "/v2/health/ready") == (400, True)
        for _ in range(2):  # http.client connects anew
            assert http_status(first, infer, values) == (200, True)
        assert http_status(second, "/v2/health/live") == (200, True)
        assert http_status(second, f"/v2/models/{MODEL}/ready") == (200, True)
        assert not client.is_server_ready()
        assert client.is_server_live()
        assert client.is_model_ready(MODEL)
        assert check(b"").status == health.HealthCheckResponseServingStatus.NOT_SERVING
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.log.count("Signal (15) received.") == 2


# ---- rolling restarts under load ----


def array(number: int) -> np.ndarray:
    return np.full((1, 4), number, np.float32)


class Load:
    """Clients, each in a thread, that ask one request after the other.

    Attributes:
        errors: what was not answered, or wrong.
        answered: requests, by protocol.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.answered = {"http": 0, "grpc": 0}
        self._over = threading.Event()

    def end(self) -> None:
        self._over.set()

    def ask(self, protocol: str, port: int) -> None:
        triton = httpclient if protocol == "http" else grpcclient
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            number = 0
            while not self._over.wait(0.005):
                number += 1
                given = triton.InferInput("INPUT0", [1, 4], "FP32")
                given.set_data_from_numpy(array(number))
                try:
                    answer: Any = client.infer(MODEL, [given])
                    got = answer.as_numpy("OUTPUT0")
                except Exception as error:  # noqa: BLE001 - whatever it is, it must not be
                    self.errors.append(f"{protocol}: {error!r}")
                else:
                    self.answered[protocol] += 1
                    if not np.array_equal(got, array(number)):
                        self.errors.append(f"{protocol}: {number} was answered by {got}")


async def start(repository: Path, flags: tuple[str, ...], balancer: Balancer) -> tuple[ServeProcess, Backend]:
    free = ("--http-port", "0", "--grpc-port", "0", "--allow-metrics", "false")
    server = await trio.to_thread.run_sync(partial(ServeProcess, repository, *free, *FOR_EVER, *flags))
    http_port = await trio.to_thread.run_sync(lambda: server.http_port)
    backend = Backend((http_port, server.grpc_port))
    await balancer.add(backend)
    return server, backend


async def end(server: ServeProcess, backend: Backend, balancer: Balancer) -> None:
    """In the way of a supervisor that knows when the balancer has noticed."""
    server.process.send_signal(signal.SIGTERM)
    await balancer.emptied(backend)
    server.process.send_signal(signal.SIGTERM)
    assert await trio.to_thread.run_sync(server.wait) == 0, server.log
    balancer.remove(backend)
    await trio.to_thread.run_sync(server.end)


async def restart(repository: Path, times: int, flags: tuple[str, ...]) -> Load:
    """Restart two servers in turn, so many times, under load; what has come of that."""
    load, balancer = Load(), Balancer(services=2)
    async with trio.open_nursery() as nursery:
        await nursery.start(balancer.run)
        members = [await start(repository, flags, balancer) for _ in range(2)]
        try:
            async with trio.open_nursery() as clients:
                for protocol, port in zip(("http", "grpc") * 2, balancer.ports * 2, strict=True):
                    clients.start_soon(trio.to_thread.run_sync, load.ask, protocol, port)
                try:
                    for number in range(times):
                        before = dict(load.answered)
                        await end(*members[number % 2], balancer)
                        members[number % 2] = await start(repository, flags, balancer)
                        assert all(load.answered[each] > before[each] for each in before), "no client was served"
                finally:
                    load.end()
        finally:
            for server, _ in members:
                server.end()
        nursery.cancel_scope.cancel()
    load.errors += balancer.failures
    return load


@pytest.mark.parametrize(("times", "flags"), [(3, BY["one process"]), (1, BY["front ends"])], ids=BY)
async def test_rolling_restarts_lose_no_request(repository: Path, times: int, flags: tuple[str, ...]) -> None:
    """Two servers behind a balancer that follows their readiness, under load over HTTP and gRPC."""
    assert (await restart(repository, times, flags)).errors == []


@pytest.mark.slow
@pytest.mark.parametrize(("times", "flags"), [(25, BY["one process"]), (6, BY["front ends"])], ids=BY)
async def test_many_rolling_restarts_lose_no_request(repository: Path, times: int, flags: tuple[str, ...]) -> None:
    assert (await restart(repository, times, flags)).errors == []
