"""HTTP/2, which hypercorn serves: handed over by preface, by upgrade and by ALPN."""

from __future__ import annotations

import base64
import importlib.metadata
import inspect
import socket
import ssl
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
import trio
import trustme
from http2_client import Http2Client, http2
from http_sockets import QUICK, Response, Responses, connect, echo, read_body, read_to_end, reply, serving, tell, until
from hypercorn.config import Config
from hypercorn.protocol.h2 import StreamBuffer
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from trireme.api.http.asgi import Message, Receive, Scope, Send
from trireme.api.sockets.limits import Limits
from trireme.api.sockets.tls import TlsOptions


async def test_prior_knowledge() -> None:
    """Requests and large bodies both ways, several on one connection; no Server and no Date either."""
    body = bytes(range(256)) * 2_000
    async with serving(echo) as service, http2(service) as client:
        response = await client.ask("GET", "/v2")
        assert (response.status, response.body) == (200, b"GET /v2 ")
        assert sorted(name for name, _ in response.headers) == [b":status"]
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
        answer = await tell(service, method[:1], method[1:] + b" / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert answer.endswith(method + b" / ") == (method != b"P")


async def test_many_streams_at_once() -> None:
    """Answered as they get ready, not in order."""
    gates = [trio.Event() for _ in range(20)]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await gates[int(scope["path"][1:])].wait()
        await echo(scope, receive, send)

    async with serving(app) as service, http2(service) as client:
        numbers = [await client.begin("GET", f"/{index}") for index in range(20)]
        for index in reversed(range(20)):
            gates[index].set()
            assert (await client.finish(numbers[index])).body == b"GET /%d " % index


async def test_more_than_a_thousand_requests_on_one_connection() -> None:
    """hypercorn's own default closes it."""
    async with serving(echo) as service, http2(service) as client:
        for _ in range(1100):
            assert (await client.ask("GET", "/")).status == 200


async def test_h2c_upgrade() -> None:
    """The request that asked for it is answered on stream 1."""
    async with serving(echo) as service, await connect(service) as stream:
        client = Http2Client(stream)
        settings = client.h2.initiate_upgrade_connection()
        assert settings is not None
        head = b"GET /up HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        await stream.send_all(head + b"HTTP2-Settings: " + settings + b"\r\n\r\n")
        received = b""
        while b"\r\n\r\n" not in received:
            received += await stream.receive_some(1)
        assert received.startswith(b"HTTP/1.1 101")
        client.responses[1] = Response()
        await client.flush()
        assert (await client.finish(1)).body == b"GET /up "
        assert (await client.ask("GET", "/v2")).body == b"GET /v2 "


async def test_rubbish_settings_in_an_upgrade() -> None:
    async with serving(echo) as service:
        head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        for settings in (b"!", base64.b64encode(b"\0" * 5), b""):
            answer = await tell(service, head + b"HTTP2-Settings: " + settings + b"\r\n\r\n" + b"rubbish" * 10)
            assert b"500" not in answer
        assert (await tell(service, b"GET / HTTP/1.0\r\n\r\n")).endswith(b"GET / ")


async def test_answer_before_the_body_has_been_read() -> None:
    """The connection, and the other streams on it, go on."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, b"no", status=404)

    async with serving(app) as service, http2(service) as client:
        for _ in range(3):
            response = await client.ask("POST", "/", b"x" * 300_000)
            assert (response.status, response.body) == (404, b"no")


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.mark.parametrize("manner", ["reset", "close"])
async def test_application_hears_of_a_client_that_leaves(manner: str) -> None:
    started, heard = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        started.set()
        await disconnected(receive)
        heard.set()

    async with serving(app) as service, http2(service) as client:
        number = await client.begin("GET", "/")
        await started.wait()
        if manner == "reset":
            client.h2.reset_stream(number)
            await client.flush()
        else:
            await client.stream.aclose()
        await heard.wait()


async def test_stopping_is_not_held_up() -> None:
    """Neither by a client that does not read, nor by one that is idle, nor by a running application."""
    sending = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/wait":
            await trio.sleep_forever()
        sending.set()
        await reply(send, bytes(50_000_000))

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
    """Whether it is HTTP/2's flow control or TCP's that stops the answer."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, bytes(50_000_000))

    async with serving(app, limits=QUICK) as service, http2(service) as client:
        if window == "wide":
            client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
            client.h2.increment_flow_control_window(2**30)
        await client.begin("GET", "/")
        await until(lambda: service.statistics().connections == 0)


async def test_idle_connections_are_kept() -> None:
    """hypercorn's own default closes them after five seconds."""
    assert Limits().idle_timeout_s is None
    async with serving(echo, limits=QUICK) as service, http2(service) as client:
        assert (await client.ask("GET", "/")).status == 200
        await trio.sleep(0.2)
        assert (await client.ask("GET", "/")).status == 200


async def test_websockets_are_refused() -> None:
    async with serving(echo) as service, http2(service) as client:
        number = client.h2.get_next_available_stream_id()
        while not client.h2.remote_settings.enable_connect_protocol:
            await client.read()
        names = [(":method", "CONNECT"), (":protocol", "websocket"), (":path", "/"), (":scheme", "http")]
        client.h2.send_headers(number, [*names, (":authority", "x"), ("sec-websocket-version", "13")])
        client.responses[number] = Response()
        await client.flush()
        while not client.responses[number].status:
            await client.read()
        assert client.responses[number].status == 403


async def test_alpn(tmp_path: Path) -> None:
    """Over TLS the client chooses by ALPN; both protocols on one port."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    schemes: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        schemes.append(scope["scheme"] + scope["http_version"])
        await echo(scope, receive, send)

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
                    await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
                    assert (await Responses(stream).next()).body == b"GET / "
        await until(lambda: service.statistics().connections == 0)
    assert schemes == ["https2", "https1.1"]


async def test_bug_in_the_application_is_500(caplog: pytest.LogCaptureFixture) -> None:
    """And a record in our log; hypercorn would write to standard error."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError("a bug")

    async with serving(app) as service, http2(service) as client:
        assert (await client.ask("GET", "/")).status == 500
        assert (await client.ask("GET", "/")).status == 500
    assert {record.name for record in caplog.records} == {"trireme.api.http.hypercorn_bridge"}


@pytest.mark.parametrize("size", [0, 10, 200_000])
async def test_a_client_that_says_its_last_before_the_answer_leaves_nothing_behind(size: int) -> None:
    """The answer cannot be sent any more, and nobody waits until it could be."""
    asked, go = trio.Event(), trio.Event()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        asked.set()
        await go.wait()
        await reply(send, bytes(size))

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

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal begun
        begun += 1
        if scope["path"] == "/large":
            await reply(send, bytes(50_000_000))
        else:
            assert (await receive())["type"] == "http.disconnect"

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


@pytest.mark.parametrize("field", [":path", ":method"])
async def test_what_is_not_ascii_ends_its_connection_without_an_alarm(
    field: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(echo) as service, http2(service) as client:
        target = {":method": "GET", ":path": "/", ":scheme": "http", ":authority": "x", field: "/\u00e9"}
        client.h2.send_headers(1, [*target.items()], end_stream=True)
        await client.flush()
        while not client.closed:
            await client.read()
        await until(lambda: service.statistics().connections == 0)
    assert not caplog.records


async def test_an_ordinary_connect_ends_its_connection_without_an_alarm(caplog: pytest.LogCaptureFixture) -> None:
    """It has no path."""
    async with serving(echo) as service, http2(service) as client:
        client.h2.send_headers(1, [(":method", "CONNECT"), (":authority", "x")])
        await client.flush()
        while not client.closed:
            await client.read()
        await until(lambda: service.statistics().connections == 0)
    assert not caplog.records


async def test_data_for_a_stream_that_is_gone_ends_its_connection_without_an_alarm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(echo) as service, http2(service) as client:
        target = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":path", "/")]
        client.responses[1] = Response()
        client.h2.send_headers(1, [*target, (":authority", "x"), ("sec-websocket-version", "13")])
        await client.flush()
        while 1 not in client.ended:
            await client.read()
        client.h2.send_data(1, b"more")
        await client.flush()
        while not client.closed:
            await client.read()
        await until(lambda: service.statistics().connections == 0)
    assert not caplog.records


def test_canary_of_hypercorn() -> None:
    """What `hypercorn_bridge` takes from hypercorn's insides is still there. If this fails after an upgrade, read that
    module's list of workarounds against the new source before changing the pin."""
    assert importlib.metadata.version("hypercorn") == "0.18.0"
    parameters = ["self", "app", "config", "context", "state", "stream"]
    assert list(inspect.signature(TCPServer.__init__).parameters) == parameters
    assert list(inspect.signature(WorkerContext.__init__).parameters) == ["self", "max_requests"]
    assert ConnectionState({}).copy() == {}
    assert list(inspect.signature(StreamBuffer.__init__).parameters) == ["self", "event_class"]
    assert {"buffer", "_complete", "_is_empty", "_paused"} == set(vars(StreamBuffer(trio.Event)))  # type: ignore[arg-type]
    expected: Message = {
        "keep_alive_max_requests": 1000,
        "keep_alive_timeout": 5,
        "include_date_header": True,
        "include_server_header": True,
        "h2_max_concurrent_streams": 100,
        "h2_max_header_list_size": 2**16,
        "h11_max_incomplete_size": 2**14,
    }
    assert {name: getattr(Config, name) for name in expected} == expected
