"""Requests that are answered without a task of their own: whatever a client does, it is answered as by the long way."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing
from gated_server import GatedServer, gated_server
from http_sockets import LONG_S, UNHURRIED, Responses, connect, connect_now, read_to_end, serving, until
from trio.testing import MockClock

from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import Exchange, HttpOptions
from trireme.api.http.infer import handler
from trireme.api.http.json.reader import ON_LOOP_BYTES
from trireme.api.sockets.roster import ConnectionPhase
from trireme.api.sockets.transport import PlainTransport
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Buffer

WARM = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
"""The first request of a connection goes the long way anyway: HTTP/2 has to be told from HTTP/1.1."""


def infer(value: float, request_id: str = "", *, model: str = "gated", headers: bytes = b"") -> bytes:
    text = b'{"id":"%b","inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[%b]}]}' % (
        request_id.encode(),
        str(value).encode(),
    )
    head = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n"
    return head % (model.encode(), headers, len(text)) + text


def answered(value: float, request_id: str, *, model: str = "gated") -> bytes:
    return (
        b'{"id":"%b","model_name":"%b","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[1,1],'
        b'"data":[%b]}]}' % (request_id.encode(), model.encode(), str(value).encode())
    )


@pytest.fixture
async def gated(tmp_path: Path) -> AsyncIterator[GatedServer]:
    async with gated_server(tmp_path) as server:
        yield server


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The paths of the requests that the application saw."""
    paths: list[bytes] = []
    call = HttpApplication.__call__

    async def seen(self: HttpApplication, exchange: Exchange) -> None:
        paths.append(exchange.path)
        await call(self, exchange)

    monkeypatch.setattr(HttpApplication, "__call__", seen)
    return paths


async def warm(stream: trio.SocketStream) -> Responses:
    responses = Responses(stream)
    await stream.send_all(WARM)
    await responses.next()
    return responses


async def test_both_ways_give_the_same_answer(gated: GatedServer, long_way: list[bytes]) -> None:
    """A result, a refusal by the server, an error of the request and one of its head: byte for byte."""
    gated.gate.set()
    requests = [
        infer(1.5, "a"),
        infer(1.5, model="nobody"),
        infer(1.5).replace(b"FP32", b"FP64"),
        infer(1.5).replace(b'"inputs":[', b'"inputs":{'),
        infer(1.5, headers=b"Inference-Header-Content-Length: 9999\r\n"),
        infer(1.5).replace(b"/infer", b"/versions/7/infer"),
        infer(1.5).replace(b"/infer", b"/versions/99999999999999999999/infer"),
    ]
    for request in requests:
        async with await connect(gated.http) as stream:
            await stream.send_all(request)  # the first one of its connection
            long = bytearray(await stream.receive_some())
            before = len(long_way)
            for _ in range(3):  # its head is known, then what it means
                await stream.send_all(request)
                short = bytearray(await stream.receive_some())
                assert len(long_way) == before
                assert bytes(short) == bytes(long)


async def test_what_a_repeated_head_means_is_found_out_once(
    gated: GatedServer, long_way: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    gated.gate.set()
    read: list[bytes | None] = []
    header_length = handler.header_length

    def noted(text: bytes | None, body_length: int, name: str) -> int:
        read.append(text)
        return header_length(text, body_length, name)

    monkeypatch.setattr(handler, "header_length", noted)
    request = infer(1.5)
    async with await connect(gated.http) as stream:
        responses = await warm(stream)
        long_way.clear()
        for _ in range(4):  # it is known from the second one on
            await stream.send_all(request)
            assert (await responses.next()).status == 200
        await stream.send_all(infer(1.5, headers=b"Inference-Header-Content-Length: 9999\r\n"))
        assert (await responses.next()).status == 400
    assert read == [None, None, b"9999"]
    assert not long_way


async def test_what_is_unusual_goes_the_long_way(gated: GatedServer, long_way: list[bytes]) -> None:
    gated.gate.set()
    unusual = [
        infer(1, headers=b"Accept-Encoding: gzip\r\n"),
        infer(1, headers=b"Connection: close\r\n"),
    ]
    for request in unusual:
        async with await connect(gated.http) as stream:
            responses = await warm(stream)
            long_way.clear()
            await stream.send_all(request)
            assert (await responses.next()).status == 200
            assert long_way == [b"/v2/models/gated/infer"]


async def test_json_that_takes_long_to_read_goes_the_long_way(gated: GatedServer, long_way: list[bytes]) -> None:
    """It is read off the event loop, though it came in one piece."""
    gated.gate.set()
    async with await connect(gated.http) as stream:
        responses = await warm(stream)
        for size, expected in ((ON_LOOP_BYTES - 1024, []), (ON_LOOP_BYTES, [b"/v2/models/gated/infer"])):
            long_way.clear()
            await stream.send_all(infer(1, "a" * size))
            assert (await responses.next()).status == 200
            assert long_way == expected


async def test_a_host_that_is_not_named_is_refused_without_a_task_too(tmp_path: Path, long_way: list[bytes]) -> None:
    front = HttpOptions(allowed_hosts=("x",))
    async with gated_server(tmp_path, front=front) as gated, await connect(gated.http) as stream:
        gated.gate.set()
        responses = await warm(stream)
        long_way.clear()
        await stream.send_all(infer(1))
        assert (await responses.next()).status == 200
        assert not long_way
        await stream.send_all(infer(1).replace(b"Host: x", b"Host: evil"))
        assert (await responses.next()).status == 403


async def test_forwarded_headers_take_no_task(tmp_path: Path, long_way: list[bytes]) -> None:
    """Under the names that the client gave them; one that is reserved is refused in the same words."""
    front = HttpOptions(header_forward_pattern="x-fwd|^priority$")
    async with gated_server(tmp_path, front=front) as gated, await connect(gated.http) as stream:
        gated.gate.set()
        requests: list[InferenceRequest] = []
        gated.server._on_request = lambda request, _rows: requests.append(request)
        responses = await warm(stream)
        long_way.clear()
        await stream.send_all(infer(1, headers=b"X-Fwd: a\r\nx-FWD-2: b\r\nOther: c\r\n"))
        assert (await responses.next()).status == 200
        assert requests[0].parameters == {"X-Fwd": "a", "x-FWD-2": "b"}
        await stream.send_all(infer(1, headers=b"priority: 1\r\n"))
        refused = await responses.next()
        assert refused.status == 400
        text = b"Header 'priority' is reserved for Triton usage and cannot be forwarded."
        assert refused.body == b'{"error":"%b"}' % text
        assert not long_way


async def test_a_request_for_which_there_is_no_room_waits_and_is_one_line_of_the_log(
    tmp_path: Path, long_way: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        gated_server(tmp_path, ("gated", "other"), max_inflight_requests=1) as gated,
        await connect(gated.http) as first,
        await connect(gated.http) as second,
    ):
        answers = [await warm(first), await warm(second)]
        long_way.clear()
        with caplog.at_level(logging.DEBUG, "trireme.api.http"):
            await first.send_all(infer(1, "1"))
            await until(lambda: gated.begun == ["1"])
            await second.send_all(infer(2, "2", model="other"))
            await until(lambda: long_way == [b"/v2/models/other/infer"])
            gated.gate.set()
            wanted = [answered(1.0, "1"), answered(2.0, "2", model="other")]
            assert [(await each.next()).body for each in answers] == wanted
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("HTTP request: ")]
    assert told == [f"HTTP request: POST /v2/models/{name}/infer" for name in ("gated", "other")]


async def test_a_model_that_has_its_share_of_the_budget_in_flight_refuses(tmp_path: Path) -> None:
    async with gated_server(tmp_path, ("gated", "other"), max_inflight_requests=4) as gated:
        streams = [await connect(gated.http) for _ in range(4)]
        answers = [await warm(stream) for stream in streams]
        for stream, number in zip(streams[:2], "12", strict=True):
            await stream.send_all(infer(1, number))
        await until(lambda: gated.server.budget_statistics().requests == 2)
        await streams[2].send_all(infer(3, "3"))
        refused = await answers[2].next()
        text = b"model 'gated' has too many requests in flight: 2 requests, 8 bytes; try again later"
        assert (refused.status, refused.body) == (503, b'{"error":"%b"}' % text)
        await streams[3].send_all(infer(4, "4", model="other"))
        gated.gate.set()
        assert (await answers[3].next()).body == answered(4.0, "4", model="other")
        for stream in streams:
            await stream.aclose()


async def test_a_request_that_comes_in_pieces_is_answered(gated: GatedServer, long_way: list[bytes]) -> None:
    gated.gate.set()
    whole = infer(2.5, "pieces")
    async with await connect(gated.http) as stream:
        responses = await warm(stream)
        long_way.clear()
        for cut in (1, 20, whole.index(b"\r\n\r\n") + 4, len(whole) - 1):
            await stream.send_all(whole[:cut])
            await trio.testing.wait_all_tasks_blocked(0.01)
            await stream.send_all(whole[cut:])
            assert (await responses.next()).body == answered(2.5, "pieces")
        assert not long_way


async def test_pipelined_requests_are_answered_in_order(gated: GatedServer) -> None:
    """Whether they come with the one before, or while that is executed."""
    async with await connect(gated.http) as stream:
        responses = await warm(stream)
        await stream.send_all(infer(0, "0"))
        await until(lambda: gated.begun == ["0"])
        await stream.send_all(infer(1, "1") + infer(2, "2"))
        await stream.send_all(infer(3, "3"))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert gated.begun == ["0"]  # one request of a connection at a time
        gated.gate.set()
        bodies = [(await responses.next()).body for _ in range(4)]
        assert bodies == [answered(float(value), str(value)) for value in range(4)]
        await stream.send_all(infer(4, "4"))
        assert (await responses.next()).body == answered(4.0, "4")


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_client_that_leaves_cancels_its_request(gated: GatedServer, how: str) -> None:
    client = connect_now(gated.http)
    client.sendall(WARM)
    await trio.to_thread.run_sync(client.recv, 1000)
    client.sendall(infer(1, "left"))
    await until(lambda: gated.begun == ["left"])
    if how == "reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    await until(lambda: gated.cancelled == ["left"])
    await until(lambda: gated.http.statistics().connections == 0)
    gated.gate.set()


async def test_the_last_answer_while_the_service_stops_says_so(gated: GatedServer, long_way: list[bytes]) -> None:
    """And what the client has sent behind its request does not end the connection by a reset, which may overtake it."""
    async with await connect(gated.http) as stream, trio.open_nursery() as nursery:
        responses = await warm(stream)
        await stream.send_all(infer(1, "a"))
        await until(lambda: gated.begun == ["a"])
        await stream.send_all(infer(2, "b"))
        nursery.start_soon(gated.http.drain, 30)
        await until(lambda: not gated.http.statistics().accepting)
        gated.gate.set()
        response = await responses.next()
        assert (response.status, (b"Connection", b"close") in response.headers) == (200, True)
        assert await stream.receive_some() == b""
        await stream.send_eof()
    assert long_way == [b"/v2/health/live"]


async def test_a_client_that_sends_its_end_behind_the_request_gets_its_answer(gated: GatedServer) -> None:
    gated.gate.set()
    async with await connect(gated.http) as stream:
        await warm(stream)
        await stream.send_all(infer(1, "last"))
        await stream.send_eof()
        assert (await read_to_end(stream)).endswith(answered(1.0, "last"))
    await until(lambda: gated.http.statistics().connections == 0)


async def test_what_the_socket_does_not_take_at_once_is_sent_by_the_task(
    gated: GatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the connection goes on afterwards."""
    gated.gate.set()
    send_now = PlainTransport.send_now

    def send_little(self: PlainTransport, buffers: list[Buffer]) -> list[Buffer]:
        whole = b"".join(buffers)
        assert not send_now(self, [whole[:7]])
        return [whole[7:]] if len(whole) > 7 else []

    monkeypatch.setattr(PlainTransport, "send_now", send_little)
    async with await connect(gated.http) as stream:
        responses = await warm(stream)
        for value in (1.5, 2.5):
            await stream.send_all(infer(value, "slow"))
            assert (await responses.next()).body == answered(value, "slow")


async def times_out(service: HttpService, clock: MockClock, phase: ConnectionPhase) -> None:
    """The only connection gets to `phase` and stays there for too long."""
    await until(lambda: [each.phase for each in service._roster._connections] == [phase])
    clock.jump(LONG_S + 1)


@pytest.mark.parametrize("cut", [20, -1])
async def test_half_a_request_times_out(gated: GatedServer, leaping_clock: MockClock, cut: int) -> None:
    """In its head or in its body: with 408, as by the long way."""
    application = HttpApplication(gated.server, HttpOptions())
    async with serving(application, limits=UNHURRIED) as service, await connect(service) as stream:
        responses = await warm(stream)
        await stream.send_all(infer(1)[:cut])
        await times_out(service, leaping_clock, ConnectionPhase.HEAD if cut > 0 else ConnectionPhase.BODY)
        assert (await responses.next()).status == 408


async def test_the_beginning_of_the_next_request_times_out(gated: GatedServer, leaping_clock: MockClock) -> None:
    """It came with a request that was answered, and nothing follows: that is not idling."""
    gated.gate.set()
    application = HttpApplication(gated.server, HttpOptions())
    async with serving(application, limits=UNHURRIED) as service, await connect(service) as stream:
        responses = await warm(stream)
        await stream.send_all(infer(1, "first") + infer(2)[:20])
        assert (await responses.next()).body == answered(1.0, "first")
        await times_out(service, leaping_clock, ConnectionPhase.HEAD)
        assert (await responses.next()).status == 408


async def test_a_defect_costs_its_own_request(
    gated: GatedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it is met before the model is asked or with its answer."""
    gated.gate.set()
    async with await connect(gated.http) as stream:
        responses = await warm(stream)
        for broken in ("decode", "encode"):
            with monkeypatch.context() as patch:
                patch.setattr(handler.ImmediateCall, broken, staticmethod(lambda *_: 1 / 0))
                await stream.send_all(infer(1))
                assert (await responses.next()).status == 500
                assert "ZeroDivisionError" in caplog.text
                caplog.clear()
        await stream.send_all(infer(1, "after"))
        assert (await responses.next()).body == answered(1.0, "after")
