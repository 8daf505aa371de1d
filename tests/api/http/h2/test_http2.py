"""HTTP/2 on the HTTP port: by preface and by ALPN; what it costs who floods it."""

from __future__ import annotations

import dataclasses
import json
import socket
import ssl
from pathlib import Path

import h2.connection
import h2.settings
import pytest
import trio
import trustme
from http2_client import Http2Client, http2
from http_sockets import (
    LONG_S,
    QUICK,
    UNHURRIED,
    Responses,
    connect,
    echo,
    read_body,
    read_to_end,
    reply,
    serving,
    tell,
    until,
)
from trio.testing import MockClock

from trireme.api.http.app import HttpService
from trireme.api.http.exchange import TEXT, Answer, Exchange
from trireme.api.http2 import frames
from trireme.api.http2.frames import ErrorCode
from trireme.api.sockets.limits import Limits
from trireme.api.sockets.transport import TlsOptions


async def test_prior_knowledge() -> None:
    """Requests and large bodies both ways, several on one connection; no Server and no Date either."""
    body = bytes(range(256)) * 2_000
    async with serving(echo) as service, http2(service) as client:
        response = await client.ask("GET", "/v2")
        assert (response.status, response.body) == (200, b"GET /v2 ")
        assert sorted(name for name, _ in response.headers) == [b":status", b"content-length", b"content-type"]
        assert (await client.ask("POST", "/a%5Fb", body)).body == b"POST /a%5Fb " + body
        await client.stream.aclose()
        await until(lambda: service.statistics().connections == 0)


@pytest.mark.parametrize("cut", [1, 3, 14, 18, 23, 24, 30])
async def test_preface_in_pieces(cut: int) -> None:
    async with serving(echo) as service, await connect(service) as stream:
        client = Http2Client(stream)
        client.h2.initiate_connection()
        data = client.h2.data_to_send()
        await stream.send_all(data[:cut])
        await trio.testing.wait_all_tasks_blocked(0.005)
        await stream.send_all(data[cut:])
        assert (await client.ask("GET", "/v2")).body == b"GET /v2 "


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"PATCH", b"P"])
async def test_what_only_begins_like_the_preface(method: bytes) -> None:
    async with serving(echo) as service:
        answer = await tell(service, method[:1], method[1:] + b" / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.endswith(method + b" / ") == (method != b"P")


async def test_many_streams_at_once() -> None:
    """Answered as they get ready, not in order."""
    gates = [trio.Event() for _ in range(20)]

    async def app(exchange: Exchange) -> None:
        await gates[int(exchange.path[1:])].wait()
        await echo(exchange)

    async with serving(app) as service, http2(service) as client:
        numbers = [await client.begin("GET", f"/{index}") for index in range(20)]
        for index in reversed(range(20)):
            gates[index].set()
            assert (await client.finish(numbers[index])).body == b"GET /%d " % index


async def test_more_than_a_thousand_requests_on_one_connection() -> None:
    """Some servers close it then."""
    async with serving(echo) as service, http2(service) as client:
        for _ in range(1100):
            assert (await client.ask("GET", "/")).status == 200


async def test_an_upgrade_is_ignored() -> None:
    """The request is answered over HTTP/1.1, and so is what follows it: a proxy has seen all of it."""
    async with serving(echo) as service, await connect(service) as stream:
        settings = h2.connection.H2Connection().initiate_upgrade_connection() or b""
        head = b"GET /up HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        await stream.send_all(head + b"HTTP2-Settings: " + settings + b"\r\n\r\nGET /two HTTP/1.1\r\nHost: x\r\n\r\n")
        responses = Responses(stream)
        for path in (b"/up", b"/two"):
            response = await responses.next()
            assert (response.status, response.body) == (200, b"GET " + path + b" ")


async def test_answer_before_the_body_has_been_read() -> None:
    """The connection, and the other streams on it, go on."""

    async def app(exchange: Exchange) -> None:
        await reply(exchange, b"no", status=404)

    async with serving(app) as service, http2(service) as client:
        for _ in range(3):
            response = await client.ask("POST", "/", b"x" * 300_000)
            assert (response.status, response.body) == (404, b"no")


async def test_early_answer_comes_before_the_reset(leaping_clock: MockClock) -> None:
    """A client that has far more to send is answered at once, and told to stop a little later: some drop an answer if
    they are reset while they send. What it may send meanwhile is bounded."""

    async def app(exchange: Exchange) -> None:
        await reply(exchange, b"no", status=404)

    async with serving(app, limits=UNHURRIED) as service, http2(service) as client:
        number = await client.begin("POST", "/", end=False)
        while client.responses[number].body != b"no":
            await client.read()
        assert not client.resets
        sent = 0
        async with trio.open_nursery() as nursery:

            async def go_on_sending() -> None:
                nonlocal sent
                while True:
                    size = min(client.h2.local_flow_control_window(number), 16_384)
                    if size:
                        client.h2.send_data(number, bytes(size))
                        sent += size
                        await client.flush()
                    else:
                        await client.read()

            nursery.start_soon(go_on_sending)
            (connection,) = service._http2.connections
            received = connection.core._open[number]
            await until(lambda: sent > UNHURRIED.drain_bytes and received.receive_left == 0)
            nursery.cancel_scope.cancel()
        assert UNHURRIED.drain_bytes < sent <= UNHURRIED.drain_bytes + 2 * 65_535
        leaping_clock.jump(LONG_S)
        while number not in client.resets:
            await client.read()
        assert (client.resets[number], number in client.ended) == (ErrorCode.NO_ERROR, True)
        assert (await client.ask("GET", "/")).status == 404


@pytest.mark.parametrize("manner", ["reset", "close"])
async def test_application_of_a_client_that_leaves_is_cancelled(manner: str) -> None:
    started, cancelled = trio.Event(), trio.Event()

    async def app(exchange: Exchange) -> None:
        await read_body(exchange)
        started.set()
        try:
            await exchange.read()
        finally:
            cancelled.set()

    async with serving(app) as service, http2(service) as client:
        number = await client.begin("GET", "/")
        await started.wait()
        if manner == "reset":
            client.h2.reset_stream(number)
            await client.flush()
        else:
            await client.stream.aclose()
        await cancelled.wait()
        await until(lambda: service.statistics().disconnects == 1)


async def test_stopping_is_not_held_up() -> None:
    """Neither by a client that does not read, nor by one that is idle, nor by a running application."""
    sending = trio.Event()

    async def app(exchange: Exchange) -> None:
        if exchange.path == b"/wait":
            await trio.sleep_forever()
        sending.set()
        await reply(exchange, bytes(50_000_000))

    async with serving(app) as service, http2(service) as deaf, http2(service) as idle, http2(service) as waiting:
        deaf.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
        deaf.h2.increment_flow_control_window(2**30)
        await deaf.begin("GET", "/")
        await waiting.begin("GET", "/wait")
        await sending.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)  # until the socket is full
        assert service.statistics().connections == 3
        await service.stop(0)
        assert service.statistics().connections == 0
        assert await read_to_end(idle.stream) is not None


@pytest.mark.parametrize("window", ["none", "wide"])
async def test_client_that_does_not_read_is_given_up(window: str) -> None:
    """If TCP stops the answer, with its connection; if HTTP/2's flow control does, its stream, and others go on."""
    unwound = trio.Event()

    async def app(exchange: Exchange) -> None:
        if exchange.path == b"/small":
            await echo(exchange)
            return
        try:
            await reply(exchange, bytes(50_000_000))
        finally:
            unwound.set()

    async with serving(app, limits=QUICK) as service, http2(service) as client:
        if window == "wide":
            client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
            client.h2.increment_flow_control_window(2**30)
        number = await client.begin("GET", "/")
        if window == "wide":
            await until(lambda: service.statistics().connections == 0)
        else:
            client.acknowledging = False
            while number not in client.resets:
                await client.read()
            client.h2.increment_flow_control_window(2**20)
            assert (await client.ask("GET", "/small")).body == b"GET /small "
        await unwound.wait()


async def test_idle_connections_are_kept() -> None:
    assert Limits().idle_timeout_s is None
    async with serving(echo, limits=QUICK) as service, http2(service) as client:
        assert (await client.ask("GET", "/")).status == 200
        await trio.sleep(0.2)
        assert (await client.ask("GET", "/")).status == 200


async def test_ping_is_no_request(leaping_clock: MockClock) -> None:
    """A connection on which nothing is asked is idle, however often its client asks whether the server is there."""
    limits = dataclasses.replace(UNHURRIED, idle_timeout_s=LONG_S)
    async with serving(echo, limits=limits) as service, http2(service) as client:
        assert (await client.ask("GET", "/")).status == 200
        (connection,) = service._http2.connections
        since_s = connection.since_s
        await until(lambda: service._roster.now_s > since_s)
        client.h2.ping(b"anyone??")
        await client.flush()
        answer = b""
        while frames.ping(b"anyone??", ack=True) not in answer:
            answer += await client.stream.receive_some()
        assert connection.since_s == since_s
        assert (await client.ask("GET", "/")).status == 200
        assert connection.since_s > since_s
        leaping_clock.jump(LONG_S + 1)
        await until(lambda: service.statistics().timeouts == 1)


async def test_alpn(tmp_path: Path) -> None:
    """Over TLS the client chooses by ALPN; both protocols on one port."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    versions: list[str] = []

    async def app(exchange: Exchange) -> None:
        versions.append(exchange.http_version)
        await echo(exchange)

    async with serving(app, tls=TlsOptions(certificate, key)) as service:
        for protocols in (["h2", "http/1.1"], ["http/1.1"]):
            context = ssl.create_default_context()
            authority.configure_trust(context)
            context.set_alpn_protocols(protocols)
            stream = trio.SSLStream(await connect(service), context, server_hostname="localhost", https_compatible=True)
            async with stream:
                await stream.do_handshake()
                assert stream.selected_alpn_protocol() == protocols[0]
                if protocols[0] == "h2":
                    client = Http2Client(stream)
                    client.h2.initiate_connection()
                    assert (await client.ask("POST", "/", b"x" * 100_000)).body == b"POST / " + b"x" * 100_000
                else:
                    await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                    assert (await Responses(stream).next()).body == b"GET / "
        await until(lambda: service.statistics().connections == 0)
    assert versions == ["2", "1.1"]


async def test_bug_in_the_application_is_500(caplog: pytest.LogCaptureFixture) -> None:
    """And a record in the log."""

    async def app(exchange: Exchange) -> None:
        if exchange.path == b"/late":
            await exchange.begin(Answer(200, TEXT))
            await exchange.send(b"begun")
        if exchange.path != b"/silent":
            raise LookupError("a bug")

    async with serving(app) as service, http2(service) as client:
        for path in ("/", "/silent"):
            response = await client.ask("GET", path)
            assert (response.status, response.body.startswith(b'{"error":')) == (500, True)
        number = await client.begin("GET", "/late")
        while number not in client.resets:
            await client.read()
        assert client.resets[number] == ErrorCode.INTERNAL_ERROR
    assert {record.name for record in caplog.records} == {"trireme.api.http.h2.connection"}


@pytest.mark.parametrize("size", [0, 10, 200_000])
async def test_a_client_that_says_its_last_before_the_answer_leaves_nothing_behind(size: int) -> None:
    """The answer cannot be sent any more, and is not waited for."""
    asked, go = trio.Event(), trio.Event()

    async def late(exchange: Exchange) -> None:
        await read_body(exchange)
        asked.set()
        await go.wait()
        await reply(exchange, bytes(size))

    async with serving(late) as service, http2(service) as client:
        await client.begin("GET", "/")
        await asked.wait()
        assert isinstance(client.stream, trio.SocketStream)
        await client.stream.send_eof()
        go.set()
        await until(lambda: service.statistics().connections == 0)


@pytest.mark.parametrize("order", [("/large", "/waits"), ("/waits", "/large")])
async def test_every_stream_hears_that_the_client_is_gone(order: tuple[str, str]) -> None:
    """Also those that come after the one whose answer could not be sent."""
    begun = 0

    async def app(exchange: Exchange) -> None:
        nonlocal begun
        begun += 1
        if exchange.path == b"/large":
            await reply(exchange, bytes(50_000_000))
        else:
            await exchange.read()

    async with serving(app) as service, http2(service) as client:
        client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
        client.h2.increment_flow_control_window(2**30)
        for path in order:
            await client.begin("POST", path, end=path == "/large")
        await until(lambda: begun == 2)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert isinstance(client.stream, trio.SocketStream)
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a reset
        await client.stream.aclose()
        await until(lambda: service.statistics().connections == 0)


TARGET = {":method": "GET", ":path": "/", ":scheme": "http", ":authority": "x"}


@pytest.mark.parametrize(
    "changed",
    [
        {":path": "/\u00e9"},
        {":method": "G\u00e9t"},
        {":path": "/a b"},
        {":path": "nowhere"},
        {":method": "CONNECT", ":path": "", ":scheme": ""},
        {":method": "CONNECT", ":protocol": "websocket"},
        {":authority": ""},
        {"host": "another"},
        {"content-length": "-1"},
        {"content-length": "1" * 19},
    ],
    ids=str,
)
async def test_malformed_request_costs_its_stream(changed: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """And nothing else: the connection goes on, and nothing is logged."""
    fields = [(name, value) for name, value in ({**TARGET, **changed}).items() if value]
    async with serving(echo) as service, http2(service) as client:
        client.h2.config.validate_outbound_headers = False
        client.h2.send_headers(1, sorted(fields), end_stream=True)
        await client.flush()
        while 1 not in client.resets:
            await client.read()
        assert client.resets[1] == ErrorCode.PROTOCOL_ERROR
        assert (await client.ask("GET", "/v2")).status == 200
        assert service.statistics().requests == 1
    assert not caplog.records


@pytest.mark.parametrize(("announced", "sent"), [(5, b"four"), (5, b"sixsix"), (5, b""), (100_000, bytes(70_000))])
async def test_body_that_is_not_as_long_as_announced(announced: int, sent: bytes) -> None:
    answered: list[bytes] = []

    async def app(exchange: Exchange) -> None:
        answered.append(await read_body(exchange))
        await reply(exchange)

    async with serving(app) as service, http2(service) as client:
        number = await client.begin("POST", "/", sent, headers=[("content-length", str(announced))])
        while number not in client.resets:
            await client.read()
        assert client.resets[number] == ErrorCode.PROTOCOL_ERROR
    assert answered == []


@pytest.mark.parametrize("announces", [False, True])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 300_000])
async def test_bodies_of_all_sizes(size: int, announces: bool) -> None:
    """A body of announced length comes in one piece; any other as it arrives."""
    pieces: list[int] = []

    async def app(exchange: Exchange) -> None:
        more = True
        while more:
            piece, more = await exchange.read()
            pieces.append(len(piece))
        await reply(exchange, b"%d" % sum(pieces))

    async with serving(app) as service, http2(service) as client:
        headers = [("content-length", str(size))] if announces else []
        number = await client.begin("POST", "/", bytes(size), headers=headers)
        assert (await client.finish(number)).body == b"%d" % size
    assert len(pieces) == 1 or not announces


async def test_body_that_is_not_read_stops_its_stream_only() -> None:
    """The client may send as much as the stream's window. Other streams go on."""
    go = trio.Event()

    async def app(exchange: Exchange) -> None:
        if exchange.path == b"/slow":
            await go.wait()
        await echo(exchange)

    body = bytes(200_000)
    async with serving(app) as service, http2(service) as client:
        number = await client.begin("POST", "/slow", b"", end=False)
        client.h2.send_data(number, body[:16_384])
        client.h2.send_data(number, body[:16_384])
        client.h2.send_data(number, body[:16_384])
        client.h2.send_data(number, body[: 65_535 - 3 * 16_384])
        await client.flush()
        assert client.h2.local_flow_control_window(number) == 0
        assert (await client.ask("POST", "/v2", body)).body == b"POST /v2 " + body
        assert client.h2.local_flow_control_window(number) == 0
        go.set()
        client.h2.end_stream(number)
        await client.flush()
        assert len((await client.finish(number)).body) == 65_535 + len(b"POST /slow ")


async def test_continue_is_said_to_who_waits_for_it() -> None:
    async with serving(echo) as service, http2(service) as client:
        number = await client.begin("POST", "/", end=False, headers=[("expect", "100-continue")])
        while number not in client.continues:
            await client.read()
        client.h2.send_data(number, b"body", end_stream=True)
        await client.flush()
        assert (await client.finish(number)).body == b"POST / body"


async def test_head_has_no_body() -> None:
    async def app(exchange: Exchange) -> None:
        await reply(exchange, b"body")

    async with serving(app) as service, http2(service) as client:
        response = await client.ask("HEAD", "/")
        assert (response.status, response.body, response.headers[2:]) == (200, b"", [(b"content-length", b"4")])


async def test_slow_body_is_408(leaping_clock: MockClock) -> None:
    """Something comes often enough, but too little of it."""
    limits = dataclasses.replace(UNHURRIED, body_grace_s=5.0, body_rate=1000, body_timeout_s=1e9)
    async with serving(echo, limits=limits) as service, http2(service) as client:
        number = await client.begin("POST", "/", end=False)
        client.h2.send_data(number, bytes(5_500))
        await client.flush()
        assert (await client.ask("GET", "/")).status == 200  # it has arrived
        leaping_clock.jump(5.4)
        await until_swept(service)
        assert number not in client.responses or not client.responses[number].status
        leaping_clock.jump(0.2)
        response = await client.finish(number)
        assert (response.status, json.loads(response.body)["error"]) == (408, "request body did not arrive in time")


async def until_swept(service: HttpService) -> None:
    now_s = trio.current_time()
    await until(lambda: service._roster.now_s > now_s + 2 * UNHURRIED.sweep_interval_s)
