"""More than the server has room for: it slows clients down at their sockets, and serves others meanwhile."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import orjson
import pytest
import trio
from gated_server import GatedServer, gated_server
from grpc_stub import PATIENCE_S, infer_request, stub_for, values_of
from http2_held import watch
from http_sockets import Responses, connect, serving, until
from scripted_server import scripted_server

from trireme.actors import InferenceServer
from trireme.api.http.app import HttpApplication
from trireme.api.http.exchange import HttpOptions
from trireme.api.http2.limits import Http2Limits
from trireme.api.sockets.limits import Limits
from trireme.engine.errors import RefusalReason

MIB = 1 << 20
BUDGET_BYTES = 16 * MIB
BODY_BYTES = 4 * MIB
VALUES = BODY_BYTES // 4 - 256
"""So many fit into a body, and its head beside them."""

CLIENTS = 40
GRPC_CLIENTS = 20

IN_FLIGHT_BYTES = MIB
"""More than the kernel holds for one connection whose server does not read."""

HEALTH = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


class Peak(trio.abc.Instrument):
    """The most bytes that the budget has counted after any step of a task."""

    def __init__(self, server: InferenceServer) -> None:
        self._server = server
        self.nbytes = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.nbytes = max(self.nbytes, self._server.budget_statistics().bytes)


@contextmanager
def peak_of(server: InferenceServer) -> Iterator[Peak]:
    peak = Peak(server)
    trio.lowlevel.add_instrument(peak)
    yield peak
    trio.lowlevel.remove_instrument(peak)


def infer(model: str, request_id: str, values: int = 1) -> tuple[bytes, memoryview]:
    """Head and body of a request with so many values, which asks for as many."""
    tensor = {"name": "IN", "shape": [1, values], "datatype": "FP32", "parameters": {"binary_data_size": 4 * values}}
    output = {"name": "OUT", "parameters": {"binary_data": True}}
    text = orjson.dumps({"id": request_id, "inputs": [tensor], "outputs": [output]})
    head = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: x\r\n" % model.encode()
    lengths = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(text), len(text) + 4 * values)
    return head + lengths + text, memoryview(bytes(4 * values))


@dataclass
class Sender:
    """A client that sends one large body as fast as it may.

    Attributes:
        sent_bytes: taken by the kernel.
        status: of the answer; 0 until it is there.
    """

    address: str
    sent_bytes: int = 0
    status: int = 0

    async def run(self, gated: GatedServer) -> None:
        head, left = infer("gated", self.address, VALUES)
        port = gated.http.ports[0]
        async with await trio.open_tcp_stream("127.0.0.1", port, local_address=self.address) as stream:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            await stream.send_all(head)
            while left:
                self.sent_bytes += (count := await stream.socket.send(left))
                left = left[count:]
            self.status = (await Responses(stream).next()).status


async def test_large_bodies_at_once_stay_in_their_clients_until_there_is_room(tmp_path: Path) -> None:
    senders = [Sender(f"127.0.1.{number + 1}") for number in range(CLIENTS)]
    async with gated_server(tmp_path, ("gated", "other"), dims=-1, max_inflight_bytes=BUDGET_BYTES) as gated:
        budget = gated.server.budget_statistics
        with peak_of(gated.server) as peak:
            async with trio.open_nursery() as nursery:
                for sender in senders:
                    nursery.start_soon(sender.run, gated)
                await until(lambda: budget().waiting >= CLIENTS - BUDGET_BYTES // BODY_BYTES and bool(gated.jobs))
                await trio.testing.wait_all_tasks_blocked(0.01)  # nobody can send any more
                assert sum(sender.sent_bytes for sender in senders) < BUDGET_BYTES + CLIENTS * IN_FLIGHT_BYTES
                unfinished = gated.server.client_accounts.unfinished
                assert unfinished.held_bytes <= unfinished.limit_bytes
                await _another_client_is_served(gated)
                gated.gate.set()
        assert Counter(sender.status for sender in senders) == {200: CLIENTS}
        assert 4 * VALUES <= peak.nbytes <= BUDGET_BYTES
        assert (budget().bytes, budget().leases, budget().waiting) == (0, 0, 0)
        assert not any(gated.server.refusal_statistics().values())


async def _another_client_is_served(gated: GatedServer) -> None:
    """While the model of the others executes nothing."""
    async with await connect(gated.http) as stream:
        await stream.send_all(HEALTH)
        assert (await Responses(stream).next()).status == 200
        await stream.send_all(b"".join(infer("other", "small")))
        await until(lambda: "small" in gated.begun)


def test_large_messages_at_once_wait_at_their_sockets_and_are_answered(tmp_path: Path) -> None:
    """What waits holds its stream's window, and no more. When there is room again, messages of one model go on as far
    as its share goes, as bodies over HTTP do; none is refused when all of it has come."""
    with (
        scripted_server(tmp_path, max_inflight_bytes=BUDGET_BYTES, address_share=1.0) as server,
        stub_for(server.url) as stub,
    ):
        inner = server.server
        peak = Peak(inner)
        server.call(trio.lowlevel.add_instrument, peak)
        others = server.call(inner.lease)
        assert server.call(others.grow_nowait, 14 * MIB)  # all that bodies may use
        request = infer_request(values=np.zeros(VALUES, np.float32))  # type: ignore[arg-type]
        futures = [stub.ModelInfer.future(request) for _ in range(GRPC_CLIENTS)]
        server.until(lambda: inner.budget_statistics().waiting == GRPC_CLIENTS)
        window_bytes = Http2Limits().stream_window_bytes
        assert server.call(lambda: watch(server.service).unconsumed_bytes) <= GRPC_CLIENTS * window_bytes
        assert server.call(lambda: inner.budget_statistics().bytes) == 14 * MIB
        assert values_of(stub.ModelInfer(infer_request("queued"))) == [1]
        server.call(others.close)
        assert [future.exception(PATIENCE_S) for future in futures] == [None] * GRPC_CLIENTS
        assert peak.nbytes <= BUDGET_BYTES
        (plain,) = server.call(inner.statistics, "plain")
        assert plain.statistics.refused == {}
        assert server.call(lambda: inner.budget_statistics().bytes) == 0


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_large_message_beside_others_of_its_model_waits_if_it_says_which_model_that_is(
    tmp_path: Path, compression: grpc.Compression
) -> None:
    """Packed, it says that when it has come: then it is refused, so that a model that hangs holds no more than its
    share. Beside it, a body over HTTP waits."""
    with (
        scripted_server(tmp_path, max_inflight_bytes=BUDGET_BYTES, address_share=1.0) as server,
        stub_for(server.url) as stub,
    ):
        inner = server.server
        of_model = server.call(inner.lease, "plain")
        assert server.call(of_model.grow_nowait, 7 * MIB)  # half of what bodies may use
        values = np.random.default_rng(0).random(VALUES, np.float32)
        request = infer_request(values=values)  # type: ignore[arg-type]
        future = stub.ModelInfer.future(request, compression=compression)
        if compression is grpc.Compression.NoCompression:
            server.until(lambda: inner.budget_statistics().waiting == 1)
            assert server.call(lambda: inner.budget_statistics().bytes) == 7 * MIB
            server.call(of_model.close)
            assert future.exception(PATIENCE_S) is None
        else:
            error = future.exception(PATIENCE_S)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "model 'plain' has too many requests in flight" in error.details()
            server.call(of_model.close)
        assert server.call(lambda: inner.budget_statistics().bytes) == 0


@pytest.mark.parametrize("limit", [20, 100])
async def test_a_connection_storm_holds_so_many_connections_and_each_client_is_answered_or_closed(
    tmp_path: Path, limit: int
) -> None:
    """Of one address, which may have half of them while others come; a request in flight goes on."""
    count = 300
    limits = Limits(max_connections=limit, address_share=0.5)
    async with gated_server(tmp_path) as gated:
        application = HttpApplication(gated.server, HttpOptions())
        async with serving(application, limits=limits) as service, await connect(service) as first:
            await first.send_all(b"".join(infer("gated", "first")))
            await until(lambda: gated.begun == ["first"])
            answers: list[str] = []
            over = trio.Event()

            async def ask() -> None:
                async with await connect(service) as stream:
                    try:
                        await stream.send_all(HEALTH)
                        answers.append(str((await Responses(stream).next()).status))
                    except (EOFError, trio.BrokenResourceError):
                        answers.append("closed")
                    await over.wait()

            async with trio.open_nursery() as nursery:
                for _ in range(count):
                    nursery.start_soon(ask)
                await until(lambda: len(answers) == count)
                seen = service.statistics()
                other = await trio.open_tcp_stream("127.0.0.1", service.ports[0], local_address="127.0.0.2")
                async with other:
                    await other.send_all(HEALTH)
                    assert (await Responses(other).next()).status == 200
                over.set()
            assert seen.peak_connections <= limit
            assert set(answers) <= {"200", "closed"}
            assert answers.count("200") >= limit // 2
            refused = gated.server.refusal_statistics()[RefusalReason.CONNECTION_LIMIT]
            assert refused >= count - limit
            gated.gate.set()
            assert (await Responses(first).next()).status == 200


async def test_connections_beyond_all_places_wait_in_the_kernel(tmp_path: Path) -> None:
    """Each of an address of its own: nothing is refused, and who leaves makes place."""
    count, places = 300, 10
    async with gated_server(tmp_path) as gated:
        application = HttpApplication(gated.server, HttpOptions())
        async with serving(application, limits=Limits(max_connections=places)) as service:
            answers: list[int] = []

            async def ask(address: str) -> None:
                stream = await trio.open_tcp_stream("127.0.0.1", service.ports[0], local_address=address)
                async with stream:
                    await stream.send_all(HEALTH)
                    answers.append((await Responses(stream).next()).status)

            async with trio.open_nursery() as nursery:
                for number in range(count):
                    nursery.start_soon(ask, f"127.0.{number // 100 + 1}.{number % 100 + 1}")
            assert answers == [200] * count
            assert service.statistics().peak_connections <= places
            assert not any(gated.server.refusal_statistics().values())
