"""What front ends refuse is counted, by its reason, and for the model if it is one that is served."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trio
from gated_server import GatedServer, gated_server
from grpc_stub import PATIENCE_S, OpenStream, infer_request, stub_for
from http_sockets import QUICK, Responses, connect, read_to_end, serving, tell, until
from scripted_server import ScriptedServer, scripted_server
from triton_messages import MESSAGES

from trireme.actors import InferenceServer
from trireme.api.http.app import HttpApplication
from trireme.api.http.exchange import HttpOptions
from trireme.api.http2.limits import Http2Limits
from trireme.api.request_parameters import Restriction
from trireme.api.sockets.limits import Limits
from trireme.engine.errors import UnavailableError
from trireme.engine.options import ControlMode

INPUT = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,1],"data":[1]}]}'
EXPLICIT: dict[str, Any] = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("*",)}
QUEUE = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"


def refused(server: InferenceServer) -> dict[str, int]:
    """Refusals by ``model.reason``; ``.reason`` for those of no model."""
    found = {
        f"{each.name}.{reason.value}": count
        for each in server.statistics()
        for reason, count in each.statistics.refused.items()
    }
    return found | {f".{reason.value}": count for reason, count in server.refusal_statistics().items() if count}


def post(path: str, body: bytes = INPUT, *headers: bytes, length: int | None = None) -> bytes:
    head = [b"POST /v2/%b HTTP/1.1" % path.encode(), b"Host: x", *headers]
    head.append(b"Content-Length: %d" % (len(body) if length is None else length))
    return b"\r\n".join([*head, b"", body])


@pytest.fixture
async def gated(tmp_path: Path) -> AsyncIterator[GatedServer]:
    front = HttpOptions(restrictions=(Restriction(("statistics",), "key", "value"),))
    async with gated_server(tmp_path, queue=QUEUE, front=front, max_inflight_bytes=8 << 20) as server:
        yield server


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def statuses(gated: GatedServer, *requests: bytes) -> list[int]:
    async with await connect(gated.http) as stream:
        responses = Responses(stream)
        got = []
        for request in requests:
            await stream.send_all(request)
            got.append((await responses.next()).status)
        return got


@pytest.mark.parametrize("chunked", [False, True], ids=["without-a-task", "with-a-task"])
@pytest.mark.parametrize(
    ("request_bytes", "status", "counted"),
    [
        (post("models/gone/infer"), 404, ".unknown_model"),
        (post("models/gated/versions/9/infer"), 404, ".unknown_model"),
        (post("models/gated/infer", b"{"), 500, "gated.invalid"),
        (post("models/gated/infer", b'{"inputs":[]}'), 400, "gated.invalid"),
        (post("models/gated/infer", INPUT, b"Inference-Header-Content-Length: x"), 400, "gated.invalid"),
        (post("models/gated/infer", INPUT, b"Content-Encoding: br"), 501, "gated.invalid"),
        (post("models/gated/generate", b"{"), 500, "gated.invalid"),
        (post("models/gone/generate", b"{}"), 404, ".unknown_model"),
        (post("nothing"), 404, ".invalid"),
        (post("models/gated/ready"), 405, ".invalid"),
    ],
)
async def test_a_request_that_its_server_cannot_take(
    gated: GatedServer, request_bytes: bytes, status: int, counted: str, chunked: bool
) -> None:
    if chunked:
        request_bytes = request_bytes.replace(b"Host: x", b"Host: x\r\nAccept-Encoding: identity")
    assert await statuses(gated, request_bytes) == [status]
    assert refused(gated.server) == {counted: 1}


async def test_a_full_queue_and_a_request_that_is_accepted(gated: GatedServer) -> None:
    async with await connect(gated.http) as first, await connect(gated.http) as second:
        await first.send_all(post("models/gated/infer"))
        await until(lambda: len(gated.jobs) == 1)
        await second.send_all(post("models/gated/infer"))
        await until(lambda: gated.statistics.pending == 1)
        assert await statuses(gated, post("models/gated/infer")) == [503]
        assert refused(gated.server) == {"gated.queue_full": 1}
        large = post("models/gated/infer", b"", length=100_000)  # whose body is not asked for
        assert await statuses(gated, large) == [503]
        assert refused(gated.server) == {"gated.queue_full": 2}
        gated.gate.set()
        assert (await Responses(first).next()).status == 200
    assert refused(gated.server) == {"gated.queue_full": 2}


def kept_refusals() -> int:
    """Refusals that only the garbage collector can free."""
    return sum(isinstance(each, UnavailableError) for each in gc.get_objects())


def turn_away(server: InferenceServer, model: str) -> None:
    """As after the first refusal of a full queue."""
    server._repository.find(model).scheduler.turns_away = True


async def test_what_is_turned_away_is_no_work_for_the_garbage_collector(
    gated: GatedServer, without_collector: None
) -> None:
    async with await connect(gated.http) as first, await connect(gated.http) as second:
        await first.send_all(post("models/gated/infer"))
        await until(lambda: len(gated.jobs) == 1)
        await second.send_all(post("models/gated/infer"))
        await until(lambda: gated.statistics.pending == 1)
        async with await connect(gated.http) as third:
            responses, counts = Responses(third), []
            for _ in range(5):
                await third.send_all(post("models/gated/infer"))
                assert (await responses.next()).status == 503
                counts.append(kept_refusals())
        assert counts == [counts[0]] * 5  # the first one has a task, as on each connection


def test_a_call_that_is_turned_away_is_no_work_for_the_garbage_collector(
    tmp_path: Path, without_collector: None
) -> None:
    with scripted_server(tmp_path) as server, stub_for(server.url) as stub:
        server.call(turn_away, server.server, "plain")
        before = kept_refusals()
        for _ in range(5):
            with pytest.raises(grpc.RpcError, match="Exceeds maximum queue size"):
                stub.ModelInfer(infer_request())
        assert server.call(refused, server.server) == {"plain.queue_full": 5}
        assert server.call(kept_refusals) == before


async def test_what_is_too_large_or_needs_a_key(gated: GatedServer) -> None:
    assert b" 413 " in await tell(gated.http, post("models/gated/infer", b"", length=1 << 40))
    assert b" 413 " in await tell(gated.http, post("repository/index", b"", length=1 << 40))
    assert b" 431 " in await tell(gated.http, b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000)
    assert refused(gated.server) == {"gated.too_large": 1, ".too_large": 2}
    assert await statuses(gated, b"GET /v2/models/stats HTTP/1.1\r\nHost: x\r\n\r\n") == [403]
    assert refused(gated.server)[".restricted"] == 1


async def test_bytes_that_are_no_request(gated: GatedServer) -> None:
    await tell(gated.http, b"\x00\x01nonsense\r\n\r\n")
    assert refused(gated.server) == {".invalid": 1}


async def test_who_is_too_slow_and_who_has_too_many_connections(gated: GatedServer) -> None:
    application = HttpApplication(gated.server, HttpOptions())
    async with serving(application, limits=QUICK) as service:
        assert b" 408 " in await tell(service, b"GET / HTTP/1.1\r\n")
    assert refused(gated.server) == {".too_slow": 1}
    async with serving(application, limits=Limits(max_connections=2)) as service, await connect(service) as first:
        await until(lambda: service.statistics().connections == 1)
        async with await connect(service):
            assert await first.receive_some() == b""
    assert refused(gated.server)[".connection_limit"] == 1


async def test_the_metrics_tell(gated: GatedServer) -> None:
    await statuses(gated, post("models/gated/infer", b"{"))
    async with await connect(gated.metrics) as stream:
        await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        body = (await Responses(stream).next()).body.decode()
    assert 'trireme_refused_total{model="gated",reason="invalid",version="1"} 1' in body
    assert 'trireme_refused_total{reason="client_bytes"} 0' in body


async def test_a_version_that_is_not_ready(tmp_path: Path) -> None:
    """It is there, and has no series of its own while it does not serve."""
    async with gated_server(tmp_path, **EXPLICIT) as gated:
        assert await statuses(gated, post("repository/models/gated/unload", b"{}")) == [200]
        await until(lambda: not gated.server.model_ready("gated"))
        assert await statuses(gated, post("models/gated/versions/1/infer")) == [503]
        assert refused(gated.server) == {".not_ready": 1}


async def test_a_body_that_holds_room_and_comes_too_slowly(gated: GatedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds more than its address may, and another waits for that; it may have no more time."""
    monkeypatch.setattr("trireme.api.http.bodies.HURRY_S", 0.0)
    other = await trio.open_tcp_stream("127.0.0.1", gated.http.ports[0], local_address="127.0.0.2")
    async with await connect(gated.http) as slow, other:
        await slow.send_all(post("models/gated/infer", b"{", length=7 << 20))
        await until(lambda: gated.server.budget_statistics().bytes == 7 << 20)
        assert refused(gated.server) == {}
        await other.send_all(post("models/gated/infer", INPUT.ljust(1 << 20)))
        assert (await Responses(slow).next()).status == 408
        gated.gate.set()
        assert (await Responses(other).next()).status == 200
    assert refused(gated.server) == {"gated.budget": 1}


async def test_a_connection_that_holds_too_much(gated: GatedServer) -> None:
    account = gated.server.client_accounts.unfinished
    account.limit_bytes = 30_000
    async with await connect(gated.http) as first, await connect(gated.http) as second:
        for stream in (first, second):
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000)
            await until(lambda: account.held_bytes >= 20_000)
        assert b" 503 " in await read_to_end(first)
        assert refused(gated.server) == {".client_bytes": 1}
        await second.send_all(b"\r\n\r\n")
        assert (await Responses(second).next()).status == 404
    assert refused(gated.server) == {".client_bytes": 1, ".invalid": 1}


def test_calls_of_grpc(tmp_path: Path) -> None:
    with scripted_server(tmp_path) as server, stub_for(server.url) as stub:

        def code(request: object) -> str:
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(request)
            return caught.value.code().name  # type: ignore[attr-defined]

        assert code(infer_request("gone")) == "NOT_FOUND"
        assert code(infer_request("many")) == "UNIMPLEMENTED"
        wrong = infer_request()
        wrong.inputs[0].datatype = "FP64"
        assert code(wrong) == "INVALID_ARGUMENT"
        assert code(infer_request(script="fail:X")) == "INTERNAL"  # accepted
        assert stub.ModelInfer(infer_request())
        assert server.call(refused, server.server) == {
            ".unknown_model": 1,
            "many.invalid": 1,
            "plain.invalid": 1,
        }
        server.call(server.application.stop_accepting)
        assert code(infer_request()) == "UNAVAILABLE"
        assert server.call(refused, server.server)[".stopping"] == 1


def test_calls_for_which_there_is_no_room_and_a_version_that_is_not_ready(tmp_path: Path) -> None:
    """The budget is used up, and not even the first bytes of a second message have room. Its call names no model."""
    window_bytes = Http2Limits().stream_window_bytes
    options = {**EXPLICIT, "max_inflight_bytes": 8 << 20, "address_share": 1.0}
    service = {"max_waiting_bytes": window_bytes}
    with scripted_server(tmp_path, service=service, **options) as server, stub_for(server.url) as stub:
        held = server.call(server.server.lease)
        assert server.call(held.grow_nowait, 7 << 20)
        large = infer_request(values=np.zeros(window_bytes // 2, np.float32))  # type: ignore[arg-type]
        waits = stub.ModelInfer.future(large)
        server.until(lambda: server.server.budget_statistics().waiting == 1)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(large)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        assert server.call(refused, server.server) == {".budget": 1}
        server.call(held.close)
        assert waits.result(PATIENCE_S)
        stub.RepositoryModelUnload(MESSAGES.RepositoryModelUnloadRequest(model_name="plain"))
        server.until(lambda: not server.server.model_ready("plain"))
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(infer_request(version="1"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        assert server.call(refused, server.server) == {".budget": 1, ".not_ready": 1}


def test_requests_of_a_stream(tmp_path: Path) -> None:
    with scripted_server(tmp_path) as server, stub_for(server.url) as stub:
        stream = OpenStream(stub)
        stream.say("gone")
        stream.say("plain", values=())
        stream.say("many", script="fail:X")
        stream.say("plain")
        assert len(stream.rest()) == 4
        assert server.call(refused, server.server) == {".unknown_model": 1}
        _say_nonsense(server)
        server.until(lambda: refused(server.server) == {".unknown_model": 1, ".invalid": 1})


def _say_nonsense(server: ScriptedServer) -> None:
    """A message that is no request, on a stream of its own."""
    with grpc.insecure_channel(server.url) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        with pytest.raises(grpc.RpcError):
            list(call(iter([b"\xff\xff\xff"])))


async def test_calls_that_never_come_to_a_method(tmp_path: Path) -> None:
    def run() -> None:
        with scripted_server(tmp_path) as server, grpc.insecure_channel(server.url) as channel:
            with pytest.raises(grpc.RpcError):
                channel.unary_unary("/inference.GRPCInferenceService/Nothing")(b"")
            with pytest.raises(grpc.RpcError):
                channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\xff\xff\xff")
            assert server.call(refused, server.server) == {".invalid": 2}

    await trio.to_thread.run_sync(run)
