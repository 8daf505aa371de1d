"""A service that drains: it serves what comes, and each connection ends after an answer that says so
(docs/reference/command-line.md#shutdown). gRPC's side is in tests/api/grpc/test_draining.py."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from authority import Authority
from gated_server import gated_server
from http_sockets import Response, Responses, connect, echo, read_body, read_to_end, reply, serving, tell, until

from trireme.api.http.app import HttpService
from trireme.api.http.exchange import TEXT, Answer, Exchange

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = (b"Connection", b"close")


@pytest.fixture
async def service() -> AsyncIterator[HttpService]:
    async with serving(echo) as service:
        yield service


async def ask(stream: trio.abc.Stream, request: bytes = GET) -> Response:
    await stream.send_all(request)
    return await Responses(stream).next()


async def test_an_idle_connection_gets_one_more_answer(service: HttpService) -> None:
    """It is not closed at once: the client's next request may be on its way."""
    async with await connect(service) as used, await connect(service) as unused:
        assert LAST not in (await ask(used)).headers
        await until(lambda: service.statistics().connections == 2)
        service.begin_drain()
        for stream in (used, unused):
            response = await ask(stream)
            assert (response.status, response.body, LAST in response.headers) == (200, b"GET / ", True)
            assert await read_to_end(stream) == b""
    assert service.statistics().accepting


async def test_new_connections_are_served(service: HttpService) -> None:
    service.begin_drain()
    for _ in range(2):
        async with await connect(service) as stream:
            assert LAST in (await ask(stream)).headers
            assert await read_to_end(stream) == b""
    assert service.statistics().dropped == 0


async def test_what_has_come_behind_a_request_is_answered_first(service: HttpService) -> None:
    service.begin_drain()
    answers = await tell(service, GET + GET.replace(b"/ ", b"/2 ") + GET.replace(b"/ ", b"/3 "))
    assert [answers.count(each) for each in (b"GET / ", b"GET /2 ", b"GET /3 ", b"Connection: close")] == [1, 1, 1, 1]
    assert answers.index(b"GET /2 ") < answers.index(b"Connection: close")


async def test_a_request_that_is_running_says_so_unless_its_answer_has_begun() -> None:
    """An answer that began without ``Connection: close`` is followed by another one that has it: if the connection
    closed after the first, the client's next request could be on its way."""
    began, go_on = trio.Event(), trio.Event()

    async def app(exchange: Exchange) -> None:
        await read_body(exchange)
        if exchange.path == b"/streams":
            await exchange.begin(Answer(200, TEXT))
            await exchange.send(b"first")
            began.set()
            await go_on.wait()
            await exchange.send(b"last", last=True)
        else:
            await go_on.wait()
            await reply(exchange)

    async with serving(app) as service, await connect(service) as running, await connect(service) as streams:
        await running.send_all(GET)
        await streams.send_all(GET.replace(b"/ ", b"/streams "))
        await began.wait()
        await until(lambda: service.statistics().requests == 2)
        service.begin_drain()
        go_on.set()
        assert LAST in (await Responses(running).next()).headers
        assert await read_to_end(running) == b""
        response = await Responses(streams).next()
        assert (response.body, LAST in response.headers) == (b"firstlast", False)
        assert LAST in (await ask(streams)).headers
        assert await read_to_end(streams) == b""


@pytest.mark.parametrize("behind", [GET, GET + GET[:9]], ids=["a request", "a request, and part of another one"])
async def test_what_comes_while_a_request_runs_is_answered(behind: bytes) -> None:
    """It was sent before the client was told to connect anew."""
    began, go_on = trio.Event(), trio.Event()

    async def app(exchange: Exchange) -> None:
        await read_body(exchange)
        began.set()
        await go_on.wait()
        await reply(exchange)

    async with serving(app) as service, await connect(service) as stream:
        await stream.send_all(GET)
        await began.wait()
        service.begin_drain()
        await stream.send_all(behind)
        go_on.set()
        responses = Responses(stream)
        first, second = await responses.next(), await responses.next()
        assert ([first.status, second.status], LAST in first.headers) == ([200, 200], False)
        if behind == GET:
            assert LAST in second.headers
        else:
            await stream.send_all(GET[9:])
            assert LAST in (await responses.next()).headers
        assert await stream.receive_some() == b""  # and not a reset


async def test_what_comes_while_the_service_stops_does_not_reset_the_connection() -> None:
    """It is not answered, and the answer before it says so: the client may not lose that for it."""
    began, go_on = trio.Event(), trio.Event()

    async def app(exchange: Exchange) -> None:
        began.set()
        await go_on.wait()
        await reply(exchange)

    async with serving(app) as service, await connect(service) as stream, trio.open_nursery() as nursery:
        await stream.send_all(GET)
        await began.wait()
        nursery.start_soon(service.drain, 30)
        await until(lambda: not service.statistics().accepting)
        await stream.send_all(GET)
        await until(lambda: all(each._transport.has_more for each in service._roster._connections))
        go_on.set()
        response = await Responses(stream).next()
        assert (response.status, LAST in response.headers) == (200, True)
        assert await stream.receive_some() == b""  # and not a reset
        await stream.aclose()


async def test_what_comes_behind_a_request_without_a_task_is_answered(tmp_path: Path) -> None:
    body = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,1],"data":[1]}]}'
    infer = b"POST /v2/models/gated/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with gated_server(tmp_path) as gated, await connect(gated.http) as stream:
        gated.gate.set()
        for _ in range(3):
            assert (await ask(stream, infer)).status == 200
        (connection,) = gated.http._roster._connections
        gated.gate.clear()
        await stream.send_all(infer)
        await until(lambda: len(gated.jobs) == 4)
        assert connection._call is not None  # pyright: ignore[reportAttributeAccessIssue]
        gated.http.begin_drain()
        await stream.send_all(infer)
        gated.gate.set()
        responses = Responses(stream)
        first, second = await responses.next(), await responses.next()
        assert ([first.status, second.status], LAST in first.headers) == ([200, 200], False)
        assert LAST in second.headers
        assert await stream.receive_some() == b""


async def test_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with serving(echo, tls=authority.options) as service:
        context: ssl.SSLContext = authority.context("http/1.1")
        async with await connect(service) as plain:
            stream = trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)
            assert LAST not in (await ask(stream)).headers
            service.begin_drain()
            assert LAST in (await ask(stream)).headers
            assert await read_to_end(stream) == b""


async def test_the_end_of_the_drain_is_the_end(service: HttpService) -> None:
    """Then idle connections are closed, and new ones are not served."""
    async with await connect(service) as idle:
        assert (await ask(idle)).status == 200
        service.begin_drain()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.drain, 10)
            assert await read_to_end(idle) == b""
        assert await tell(service, GET) == b""
