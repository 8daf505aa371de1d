"""What HTTP connections hold beside the requests in flight: of requests that are not complete, and of unread answers.

It counts while it lasts, it does not exceed what it may be, and a request that comes whole has nothing to do with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from gated_server import GatedServer, gated_server
from h2.settings import SettingCodes
from http2_client import http2
from http_sockets import UNHURRIED, Responses, connect, echo, read_body, read_to_end, reply, serving, until

from trireme.api.http.exchange import Exchange
from trireme.api.http.h1 import connection as http_connection
from trireme.api.http2 import frames
from trireme.api.http2.frames import ErrorCode
from trireme.api.sockets.limits import Limits
from trireme.api.sockets.transport import PlainTransport
from trireme.engine.admission.client_bytes import ClientAccounts, ClientBytes
from trireme.engine.tensor import Buffer

KIB = 1024
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
GET_READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"
_INPUT = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,1],"data":[1]}]}'
INFER = b"POST /v2/models/gated/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(_INPUT), _INPUT)
HALF_HEAD = GET + b"X: " + b"x" * 20 * KIB
HALF_BODY = POST + b"Content-Length: 40000\r\n\r\n" + bytes(20 * KIB)
HALF_CHUNK = POST + b"Transfer-Encoding: chunked\r\n\r\n9c40\r\n" + bytes(20 * KIB)


def accounts(unfinished: int = 1 << 30, unread: int = 1 << 30) -> ClientAccounts:
    return ClientAccounts(ClientBytes(unfinished), ClientBytes(unread))


@pytest.fixture
async def gated(tmp_path: Path) -> AsyncIterator[GatedServer]:
    async with gated_server(tmp_path, max_inflight_bytes=8 << 20) as server:
        yield server


async def after(held: ClientBytes, step: Awaitable[object]) -> None:
    """Waits until the account has changed after `step`."""
    before = held.held_bytes, held.given_up
    await step
    await until(lambda: (held.held_bytes, held.given_up) != before)


async def never_ask(exchange: Exchange) -> None:
    await trio.sleep_forever()


class TestUnfinished:
    @pytest.mark.parametrize("first", [b"", GET + b"\r\n"], ids=["first", "later"])
    @pytest.mark.parametrize(
        ("sent", "rest"),
        [
            (HALF_HEAD, b"\r\n\r\n"),
            (HALF_BODY, bytes(40_000 - 20 * KIB)),
            (HALF_CHUNK, bytes(40_000 - 20 * KIB) + b"\r\n0\r\n\r\n"),
        ],
        ids=["head", "body", "chunk"],
    )
    async def test_counts_until_it_is_complete(self, first: bytes, sent: bytes, rest: bytes) -> None:
        """Whether it is the first request of a connection or not, and whether an application waits for it or not."""
        async with serving(echo) as service, await connect(service) as stream:
            account = service._roster.accounts.unfinished
            responses = Responses(stream)
            if first:
                await stream.send_all(first)
                await responses.next()
            await stream.send_all(sent)
            await until(lambda: account.held_bytes >= 20 * KIB)
            assert account.held_bytes < 40 * KIB
            await stream.send_all(rest)
            assert (await responses.next()).status == 200
            assert account.held_bytes == 0

    @pytest.mark.parametrize("cut", [200, -1])
    async def test_counts_where_no_task_waits_for_it(self, gated: GatedServer, cut: int) -> None:
        """The request would be answered without the connection's task, if it came whole."""
        gated.gate.set()
        account = gated.server.client_accounts.unfinished
        text = b'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[1]}]}'.ljust(10 * KIB)
        head = b"POST /v2/models/gated/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nX: %b\r\n\r\n"
        request = head % (len(text), b"x" * 1000) + text
        async with await connect(gated.http) as stream:
            responses = Responses(stream)
            for _ in range(2):
                await stream.send_all(request[:cut])
                await until(lambda: account.held_bytes >= len(request[:cut]))
                await stream.send_all(request[cut:])
                assert (await responses.next()).status == 200
                assert account.held_bytes == 0

    async def test_ends_with_its_connection(self) -> None:
        async with serving(echo) as service:
            account = service._roster.accounts.unfinished
            async with await connect(service) as stream:
                await stream.send_all(HALF_BODY)
                await until(lambda: account.held_bytes > 0)
            await until(lambda: account.held_bytes == 0)

    async def test_requests_that_wait_behind_another_count(self) -> None:
        """By what those take in memory that have been read, which is far more than their bytes."""
        async with serving(never_ask) as service, await connect(service) as stream:
            account = service._roster.accounts.unfinished
            await stream.send_all((GET + b"\r\n") * 1000)  # 28 KiB, of which a step is read
            await until(lambda: account.held_bytes > 100 * KIB)

    async def test_headers_count_by_what_they_take_in_memory(self) -> None:
        async with serving(echo) as service, await connect(service) as stream:
            account = service._roster.accounts.unfinished
            await stream.send_all(GET + b"a:b\r\n" * 1000)
            await until(lambda: account.held_bytes > 250 * KIB)

    async def test_too_many_headers_are_431(self) -> None:
        limits = Limits(head_fields=10, linger_timeout_s=0.1)
        async with serving(echo, limits=limits) as service, await connect(service) as stream:
            await stream.send_all(GET + b"a:b\r\n" * 9 + b"\r\n")
            responses = Responses(stream)
            assert (await responses.next()).status == 200
            await stream.send_all(GET + b"a:b\r\n" * 10 + b"\r\n")
            response = await responses.next()
            assert response.status == 431
            assert response.body == b'{"error":"request header block has more than 10 headers"}'

    async def test_whole_requests_do_not_touch_the_account(
        self, gated: GatedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Small requests, one after the other, with and without the connection's task, cost nothing for it."""
        calls: list[str] = []
        for name in ("hold", "drop", "progressed"):
            monkeypatch.setattr(ClientBytes, name, lambda *_args, name=name: calls.append(name))
        gated.gate.set()
        text = b'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[1]}]}'
        request = b"POST /v2/models/gated/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)
        async with await connect(gated.http) as stream, http2(gated.http) as client:
            responses = Responses(stream)
            for each in (request, request, b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", request):
                await stream.send_all(each)
                assert (await responses.next()).status == 200
            calls.clear()  # the other connection began with HTTP/1.1, until its preface was seen
            for _ in range(3):
                assert (await client.ask("POST", "/v2/models/gated/infer", text)).status == 200
            assert not calls

    @pytest.mark.parametrize("sent", [HALF_HEAD, HALF_BODY, HALF_CHUNK], ids=["head", "body", "chunk"])
    async def test_thousands_hold_no_more_than_they_may(self, sent: bytes) -> None:
        """The oldest are refused, the others are let alone, and who sends something whole is answered."""
        given = accounts(unfinished=200 * KIB)
        async with serving(echo, limits=UNHURRIED, accounts=given) as service, AsyncExitStack() as stack:
            streams = []
            for _ in range(30):
                stream = await stack.enter_async_context(await connect(service))
                await stream.send_all(sent)
                await until(lambda: service.statistics().connections > 0)
                streams.append(stream)
            await until(lambda: given.unfinished.given_up >= 10)
            assert given.unfinished.held_bytes <= 200 * KIB
            assert b" 503 " in await read_to_end(streams[0])
            async with await connect(service) as other:
                await other.send_all(GET + b"\r\n")
                assert (await Responses(other).next()).status == 200

    async def test_what_waits_for_the_server_is_not_refused(self) -> None:
        """It is the application that does not go on; the others, which wait for their clients, give up."""
        given = accounts(unfinished=100 * KIB)
        asked = trio.Event()

        async def app(exchange: Exchange) -> None:
            if exchange.path == b"/large":
                await asked.wait()
            await echo(exchange)

        async with serving(app, limits=UNHURRIED, accounts=given) as service, await connect(service) as waiting:
            head = b"POST /large HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n"
            await waiting.send_all(head + bytes(30 * KIB))
            await until(lambda: given.unfinished.held_bytes > 30 * KIB)
            async with await connect(service) as first, await connect(service) as second:
                for stream in (first, second):
                    body = POST + b"Content-Length: 60000\r\n\r\n" + bytes(50 * KIB)
                    await after(given.unfinished, stream.send_all(body))
                assert b" 503 " in await read_to_end(first)
                asked.set()
                await waiting.send_all(bytes(70_000 - 30 * KIB))
                assert len((await Responses(waiting).next()).body) == len(b"POST /large ") + 70_000

    async def test_little_is_read_while_much_is_held(self) -> None:
        """So that many may wait for room in the server's budget."""
        given = accounts(unfinished=100 * KIB)
        async with serving(never_ask, limits=UNHURRIED, accounts=given) as service, AsyncExitStack() as stack:
            for _ in range(19):
                stream = await stack.enter_async_context(await connect(service))
                body = POST + b"Content-Length: 1000000\r\n\r\n" + bytes(30 * KIB)
                await after(given.unfinished, stream.send_all(body))
            assert given.unfinished.given_up == 0
            assert given.unfinished.held_bytes < 4 * 31 * KIB + 15 * 5 * KIB


class TestUnfinishedOverHttp2:
    @pytest.mark.parametrize("what", ["headers", "data"])
    async def test_counts(self, what: str) -> None:
        """A header block that goes on in other frames, and data that no application has asked for."""
        async with serving(never_ask) as service, await connect(service) as stream:
            account = service._roster.accounts.unfinished
            begun = frames.PREFACE + frames.settings(())
            if what == "headers":
                begun += frames.frame(frames.HEADERS, 0, 1, bytes(10 * KIB))
            else:
                block = bytes((0x83, 0x86, 0x84)) + b"\x41\x09localhost"
                begun += frames.frame(frames.HEADERS, frames.END_HEADERS, 1, block)
                begun += frames.frame(frames.DATA, 0, 1, bytes(2000)) + frames.frame(frames.DATA, 0, 1, bytes(48))
                begun += frames.frame(frames.HEADERS, frames.END_HEADERS, 3, block)
                begun += frames.frame(frames.DATA, 0, 3, bytes(2048))
            await stream.send_all(begun)
            await until(lambda: account.held_bytes > 4096)
        await until(lambda: account.held_bytes == 0)

    async def test_the_connection_that_is_oldest_is_closed(self) -> None:
        given = accounts(unfinished=30 * KIB)
        block = frames.frame(frames.HEADERS, 0, 1, bytes(10 * KIB))
        async with serving(echo, limits=UNHURRIED, accounts=given) as service, AsyncExitStack() as stack:
            streams = []
            for _ in range(4):
                stream = await stack.enter_async_context(await connect(service))
                await after(given.unfinished, stream.send_all(frames.PREFACE + frames.settings(()) + block))
                streams.append(stream)
            await until(lambda: given.unfinished.given_up > 0)
            said = await read_to_end(streams[0])
            assert bytes((0, 0, 0, ErrorCode.ENHANCE_YOUR_CALM)) + b"too much that is not complete" in said
            assert given.unfinished.held_bytes <= 30 * KIB


ANSWER_BYTES = 20 << 20
"""More than sockets take."""


async def say_much(exchange: Exchange) -> None:
    await read_body(exchange)
    await reply(exchange, bytes(ANSWER_BYTES) if exchange.path == b"/" else b"small")


class TestUnread:
    async def test_counts_until_it_is_read(self) -> None:
        async with serving(say_much) as service, await connect(service) as stream:
            account = service._roster.accounts.unread
            await stream.send_all(GET + b"\r\n")
            await until(lambda: account.held_bytes > ANSWER_BYTES // 2)
            assert len((await Responses(stream).next()).body) == ANSWER_BYTES
            await until(lambda: account.held_bytes == 0)

    async def test_who_does_not_read_gives_way_to_who_does(self) -> None:
        """Two do not read, and hold more than there may be; the one that comes later gets all."""
        given = accounts(unread=30 << 20)
        async with serving(say_much, limits=UNHURRIED, accounts=given) as service, AsyncExitStack() as stack:
            streams = []
            for _ in range(3):
                streams.append(await stack.enter_async_context(await connect(service)))
                await after(given.unread, streams[-1].send_all(GET + b"\r\n"))
            assert given.unread.given_up == 2
            assert given.unread.held_bytes <= ANSWER_BYTES
            assert len((await Responses(streams[2]).next()).body) == ANSWER_BYTES
            for stream in streams[:2]:
                assert len(await read_to_end(stream)) < ANSWER_BYTES

    async def test_does_not_count_if_the_client_has_read_when_the_task_comes_to_it(
        self, gated: GatedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The answer comes without the connection's task, and the socket takes nothing; a moment later it takes all."""
        monkeypatch.setattr(http_connection, "_FEW_BYTES", 0)
        send_now, refused = PlainTransport.send_now, []

        def send_later(transport: PlainTransport, buffers: list[Buffer]) -> list[Buffer]:
            if refused:
                return send_now(transport, buffers)
            refused.extend(buffers)
            return list(buffers)

        account = gated.server.client_accounts.unread
        async with await connect(gated.http) as stream:
            responses = Responses(stream)
            await stream.send_all(GET_READY)
            assert (await responses.next()).status == 200
            monkeypatch.setattr(PlainTransport, "send_now", send_later)
            await stream.send_all(INFER)
            gated.gate.set()
            assert (await responses.next()).status == 200
            assert refused
            await stream.send_all(GET_READY)
            assert (await responses.next()).status == 200
            assert account.held_bytes == 0

    @pytest.mark.parametrize("held_back_by", ["window", "socket"])
    async def test_http2_stream_that_is_not_read_is_reset(self, held_back_by: str) -> None:
        """If its window holds the answer back, others on its connection go on; if TCP does, nothing can be said."""
        given = accounts(unread=30 << 20)
        async with serving(say_much, limits=UNHURRIED, accounts=given) as service, http2(service) as client:
            if held_back_by == "socket":
                client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
                client.h2.increment_flow_control_window(2**30)
            number = await client.begin("GET", "/")
            await until(lambda: given.unread.held_bytes > ANSWER_BYTES // 2)
            async with await connect(service) as other:
                await other.send_all(GET + b"\r\n")
                if held_back_by == "window":
                    client.acknowledging = False
                    while number not in client.resets:
                        await client.read()
                    assert client.resets[number] == ErrorCode.ENHANCE_YOUR_CALM
                    client.h2.increment_flow_control_window(1 << 20)
                    assert (await client.ask("GET", "/small")).body == b"small"
                else:
                    await until(lambda: service.statistics().connections == 1)
                assert len((await Responses(other).next()).body) == ANSWER_BYTES


async def test_who_is_no_server_has_accounts_of_its_own() -> None:
    async with serving(echo) as service:
        assert service._roster.accounts.unfinished.limit_bytes == 64 << 20
