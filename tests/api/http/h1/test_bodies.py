"""Bodies that arrive, over real sockets: refused from the head, counted while they come, and never for nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest
import trio
import trio.testing
from gated_server import GatedServer, gated_server
from http2_client import Http2Client, http2
from http_sockets import UNHURRIED, Response, Responses, connect, read_to_end, reply, serving, until
from trio.testing import MockClock

from trireme.actors.offload import ArrivingBytes
from trireme.api.http.exchange import Exchange
from trireme.api.http.h1 import connection as h1_connection
from trireme.api.sockets.roster import ConnectionPhase
from trireme.api.sockets.transport import PlainTransport

MIB = 1 << 20
INFER = "/v2/models/gated/infer"
PATHS = [
    ("POST", INFER),
    ("POST", "/v2/models/gated/generate"),
    ("POST", "/v2/models/gated/generate_stream"),
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/gated/load"),
    ("POST", "/v2/repository/models/gated/unload"),
    ("POST", "/v2/systemsharedmemory/region/r/register"),
    ("POST", "/v2/systemsharedmemory/unregister"),
    ("POST", "/v2/trace/setting"),
    ("POST", "/v2/logging"),
    ("GET", "/v2/health/live"),
    ("GET", "/v2/models/gated"),
]
UNKNOWN = [
    ("POST", "/v2/models/nobody/infer"),
    ("POST", "/nowhere"),
    ("PUT", INFER),
]


@pytest.fixture
async def gated(tmp_path: Path) -> AsyncIterator[GatedServer]:
    async with gated_server(tmp_path, ("gated", "other"), max_inflight_bytes=8 * MIB, address_share=1.0) as server:
        yield server


def head(method: str = "POST", path: str = INFER, **headers: object) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def body_of(nbytes: int) -> bytes:
    """An inference request in JSON, filled up to so many bytes."""
    end = b"]}]}"
    return b'{"id":"1","inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[1'.ljust(nbytes - len(end)) + end


async def status_of(service: GatedServer, sent: bytes) -> Response:
    """The first response to what is sent, whatever else the server expects."""
    async with await connect(service.http) as stream:
        await stream.send_all(sent)
        return await Responses(stream).next()


class TestFromTheHead:
    @pytest.mark.parametrize(("method", "path"), PATHS)
    @pytest.mark.parametrize("expect", [{}, {"Expect": "100-continue"}])
    async def test_an_absurd_length_is_refused_on_every_route(
        self, gated: GatedServer, method: str, path: str, expect: dict[str, str]
    ) -> None:
        async with await connect(gated.http) as stream:
            await stream.send_all(head(method, path, Content_Length=10**12, **expect) + b"{")
            await stream.send_eof()
            answer = await read_to_end(stream)
        assert answer.startswith(b"HTTP/1.1 413 "), "and no 100 before"
        assert b"Connection: close" in answer
        assert b"request size of 1000000000000 bytes exceeds the maximum allowed input size of " in answer
        assert gated.server.budget_statistics().leases == 0

    @pytest.mark.parametrize(("method", "path"), UNKNOWN)
    async def test_what_is_not_there_is_said_before_the_body(self, gated: GatedServer, method: str, path: str) -> None:
        answer = await status_of(gated, head(method, path, Content_Length=MIB, Expect="100-continue"))
        assert answer.status == {"PUT": 405}.get(method, 404)

    async def test_an_absurd_length_is_refused_over_http2(self, gated: GatedServer) -> None:
        async with http2(gated.http) as client:
            number = await client.begin("POST", INFER, end=False, headers=[("content-length", str(10**12))])
            assert (await client.finish(number)).status == 413

    async def test_a_model_with_a_full_queue_is_not_sent_the_body(self, tmp_path: Path) -> None:
        config = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
        async with (
            gated_server(tmp_path, queue=config) as gated,
            await connect(gated.http) as first,
            await connect(gated.http) as second,
        ):
            await first.send_all(head(Content_Length=100) + body_of(100))
            await until(lambda: gated.begun == ["1"])
            await second.send_all(head(Content_Length=100) + body_of(100))
            await until(lambda: gated.server.budget_statistics().requests == 2)
            refused = await status_of(gated, head(Content_Length=MIB, Expect="100-continue"))
            text = "[request id: <id_unknown>] Exceeds maximum queue size"
            assert (refused.status, orjson.loads(refused.body)) == (503, {"error": text})
            gated.gate.set()

    async def test_nor_one_that_has_its_share_in_flight(self, tmp_path: Path) -> None:
        async with gated_server(tmp_path, max_inflight_requests=1) as gated, await connect(gated.http) as first:
            await first.send_all(head(Content_Length=100) + body_of(100))
            await until(lambda: gated.begun == ["1"])
            refused = await status_of(gated, head(Content_Length=MIB, Expect="100-continue"))
            assert refused.status == 503
            assert (
                b"model 'gated' has too many requests in flight: 1 requests, 4 bytes; try again later" in refused.body
            )
            gated.gate.set()

    async def test_a_body_that_may_come_is_asked_for(self, gated: GatedServer) -> None:
        gated.gate.set()
        body = body_of(MIB)
        async with await connect(gated.http) as stream:
            await stream.send_all(head(Content_Length=MIB, Expect="100-continue"))
            assert bytes(await stream.receive_some()) == b"HTTP/1.1 100 Continue\r\n\r\n"
            await stream.send_all(body)
            assert (await Responses(stream).next()).status == 200


class TestChunks:
    async def test_a_body_without_a_length_is_refused_when_it_is_too_large(self, gated: GatedServer) -> None:
        async with await connect(gated.http) as stream:
            await stream.send_all(head("POST", "/v2/logging", Transfer_Encoding="chunked"))
            chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
            for _ in range(17):
                await stream.send_all(chunk)
            answer = await Responses(stream).next()
        assert answer.status == 413
        assert b"request size exceeds the maximum allowed input size of 1048576 bytes" in answer.body
        await until(lambda: gated.server.budget_statistics().bytes == 0)

    async def test_a_malformed_chunk_that_comes_with_the_head_is_refused_at_once(self, gated: GatedServer) -> None:
        async with await connect(gated.http) as stream:
            await stream.send_all(head(Transfer_Encoding="chunked") + b"zz\r\n")
            answer = await Responses(stream).next()
        assert answer.status == 400
        assert b"malformed request body: " in answer.body

    async def test_or_later(self, gated: GatedServer) -> None:
        async with await connect(gated.http) as stream:
            await stream.send_all(head(Transfer_Encoding="chunked") + b"3\r\nabc\r\n")
            await trio.testing.wait_all_tasks_blocked(0.001)
            await stream.send_all(b"zz\r\n")
            assert (await Responses(stream).next()).status == 400

    async def test_a_request_without_a_host_is_refused(self, gated: GatedServer) -> None:
        answer = await status_of(gated, b"GET /v2/health/live HTTP/1.1\r\n\r\n")
        assert (answer.status, b"Host" in answer.body) == (400, True)


async def over_http1(stack: AsyncExitStack, gated: GatedServer, body: bytes) -> Callable[[], Awaitable[int]]:
    stream = await stack.enter_async_context(await connect(gated.http))
    nursery = await stack.enter_async_context(trio.open_nursery())
    nursery.start_soon(stream.send_all, head(Content_Length=len(body)) + body)

    async def status() -> int:
        return (await Responses(stream).next()).status

    return status


async def over_http1_in_chunks(stack: AsyncExitStack, gated: GatedServer, body: bytes) -> Callable[[], Awaitable[int]]:
    stream = await stack.enter_async_context(await connect(gated.http))
    nursery = await stack.enter_async_context(trio.open_nursery())
    chunks = [b"%x\r\n%b\r\n" % (len(each), each) for each in (body[at : at + MIB] for at in range(0, len(body), MIB))]
    nursery.start_soon(stream.send_all, head(Transfer_Encoding="chunked") + b"".join(chunks) + b"0\r\n\r\n")

    async def status() -> int:
        return (await Responses(stream).next()).status

    return status


async def over_http2(stack: AsyncExitStack, gated: GatedServer, body: bytes) -> Callable[[], Awaitable[int]]:
    client: Http2Client = await stack.enter_async_context(http2(gated.http))
    nursery = await stack.enter_async_context(trio.open_nursery())
    begun: list[int] = []
    done = trio.Event()

    async def send() -> None:
        begun.append(await client.begin("POST", INFER, body, headers=[("content-length", str(len(body)))]))
        done.set()

    nursery.start_soon(send)

    async def status() -> int:
        await done.wait()
        return (await client.finish(begun[0])).status

    return status


Sender = Callable[[AsyncExitStack, GatedServer, bytes], Awaitable[Callable[[], Awaitable[int]]]]


@pytest.mark.parametrize("send", [over_http1, over_http1_in_chunks, over_http2])
async def test_bodies_that_arrive_are_counted_and_wait_for_room(gated: GatedServer, send: Sender) -> None:
    """Twenty bodies of 2 MiB against a budget of 8 MiB: all are answered, and never more than the budget is held, but
    for what one body that has no announced length may overdraw. Small requests go on meanwhile."""
    most = 0
    body = body_of(2 * MIB)
    async with AsyncExitStack() as stack:
        answers = [await send(stack, gated, body) for _ in range(20)]
        await until(lambda: gated.begun != [])
        small = await status_of(gated, b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert small.status == 200
        async with await connect(gated.http) as stream:
            text = body_of(200)
            await stream.send_all(head(path="/v2/models/other/infer", Content_Length=200) + text)
            await until(lambda: gated.begun.count("1") == 2)
            statistics = gated.server.budget_statistics()
            assert statistics.waiting > 0
            assert 2 * MIB <= statistics.bytes <= 10 * MIB
            gated.gate.set()
            assert (await Responses(stream).next()).status == 200
        for answer in answers:
            assert await answer() == 200
            most = max(most, gated.server.budget_statistics().bytes)
    assert most <= 10 * MIB
    await until(lambda: gated.server.budget_statistics().leases == 0)
    assert gated.server.budget_statistics().bytes == 0


async def test_a_body_that_is_received_in_its_place_is_counted_before_it_has_one(
    gated: GatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its announced size, while most of it is still to come; one that has no room has no memory either."""
    places: list[tuple[int, int]] = []

    class Spied(ArrivingBytes):
        def __init__(self, nbytes: int, memory: Callable[[int], memoryview]) -> None:
            places.append((nbytes, gated.server.budget_statistics().bytes))
            super().__init__(nbytes, memory)

    monkeypatch.setattr(h1_connection, "ArrivingBytes", Spied)
    gated.gate.set()
    body = body_of(6 * MIB)
    async with await connect(gated.http) as first, await connect(gated.http) as second:
        await first.send_all(head(Content_Length=len(body)) + body[:MIB])
        await until(lambda: places != [])
        await second.send_all(head(Content_Length=len(body)) + body[:1000])
        await until(lambda: gated.server.budget_statistics().waiting == 1)
        assert (places, gated.server.budget_statistics().bytes) == ([(len(body), len(body))], len(body))
        for stream, rest in ((first, body[MIB:]), (second, body[1000:])):
            await stream.send_all(rest)
            assert (await Responses(stream).next()).status == 200
    assert places == [(len(body), len(body))] * 2
    await until(lambda: gated.server.budget_statistics().bytes == 0)


async def test_small_bodies_that_share_a_connection_are_counted(gated: GatedServer) -> None:
    """Over HTTP/1.1 a connection brings one at a time, and a small one is as much as one read takes; here it may be a
    hundred."""
    async with http2(gated.http) as client:
        length = 60_000
        for _ in range(20):
            number = await client.begin("POST", INFER, end=False, headers=[("content-length", str(length))])
            client.h2.send_data(number, b"{")
        await client.flush()
        await until(lambda: gated.server.budget_statistics().bytes == 20 * length)
    await until(lambda: gated.server.budget_statistics().bytes == 0)


async def test_a_client_that_leaves_while_it_waits_for_room_holds_nothing(gated: GatedServer) -> None:
    body = body_of(6 * MIB)
    async with AsyncExitStack() as stack:
        first = await over_http1(stack, gated, body)
        await until(lambda: gated.begun == ["1"])
        async with await connect(gated.http) as second:
            await second.send_all(head(Content_Length=len(body)) + body[:1000])
            await until(lambda: gated.server.budget_statistics().waiting == 1)
        await until(lambda: gated.server.budget_statistics().leases == 1)
        assert gated.server.budget_statistics().waiting == 0
        gated.gate.set()
        assert await first() == 200
    await until(lambda: gated.server.budget_statistics().leases == 0)


async def test_streams_that_wait_for_room_do_not_hold_up_their_connection(gated: GatedServer) -> None:
    """Five fill their windows before they have room, which together are more than the connection's."""
    async with AsyncExitStack() as stack:
        first = await over_http1(stack, gated, body_of(6 * MIB))
        await until(lambda: gated.begun == ["1"])
        client = await stack.enter_async_context(http2(gated.http))
        body = body_of(2 * MIB)
        length = [("content-length", str(len(body)))]
        for _ in range(5):
            number = await client.begin("POST", INFER, end=False, headers=length)
            left = 65_535
            while left:
                size = min(left, client.h2.local_flow_control_window(number), 16_384)
                if size:
                    client.h2.send_data(number, body[:size])
                    left -= size
                    await client.flush()
                else:
                    await client.read()
        await until(lambda: gated.server.budget_statistics().waiting == 5)
        small = await client.begin("POST", "/v2/models/other/infer", body_of(200))
        await until(lambda: gated.begun.count("1") == 2)
        assert gated.http._http2.held_streams == 5
        gated.gate.set()
        assert (await client.finish(small)).status == 200
        assert await first() == 200
    await until(lambda: gated.server.budget_statistics().leases == 0)
    assert gated.http._http2.held_streams == 0


async def test_a_body_that_waited_for_room_has_its_time_all_the_same(
    leaping_clock: MockClock, gated: GatedServer
) -> None:
    """Over a connection whose requests are begun without its task."""
    body = body_of(6 * MIB)
    async with AsyncExitStack() as stack:
        first = await over_http1(stack, gated, body)
        await until(lambda: gated.begun == ["1"])
        stream = await stack.enter_async_context(await connect(gated.http))
        responses = Responses(stream)
        await stream.send_all(head("GET", "/v2/health/live"))
        assert (await responses.next()).status == 200
        await stream.send_all(head(Content_Length=len(body)))
        await until(lambda: gated.server.budget_statistics().waiting == 1)
        leaping_clock.jump(30.0)
        gated.gate.set()
        assert await first() == 200
        roster = gated.http._roster
        await until(lambda: any(each.phase is ConnectionPhase.BODY for each in roster._connections))
        now_s = roster.now_s
        await until(lambda: roster.now_s > now_s + 0.5)
        await stream.send_all(body)
        assert (await responses.next()).status == 200


async def test_a_client_that_leaves_amid_its_body_holds_nothing(gated: GatedServer) -> None:
    async with await connect(gated.http) as stream:
        await stream.send_all(head(Content_Length=MIB) + b"x" * 1000)
        await until(lambda: gated.server.budget_statistics().bytes == MIB)
    await until(lambda: gated.server.budget_statistics().bytes == 0)
    assert gated.server.budget_statistics().leases == 0


async def test_what_a_body_holds_is_given_back_when_its_request_is_refused(gated: GatedServer) -> None:
    answer = await status_of(gated, head(Content_Length=MIB) + b"{".ljust(MIB))
    assert answer.status == 500
    await until(lambda: gated.server.budget_statistics().leases == 0)
    assert gated.server.budget_statistics().bytes == 0


CHUNK = b"fff8\r\n" + b"x" * 0xFFF8 + b"\r\n"
"""As much as one read takes."""


class Torrent:
    """A client that has always sent more than is asked for: reads never wait once `on` is set.

    Attributes:
        turns: how often another task had its turn since.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        self.turns = 0
        receive, receive_into = PlainTransport.receive, PlainTransport.receive_into

        async def receive_at_once(transport: PlainTransport, max_bytes: int) -> bytes:
            return CHUNK if self.on else await receive(transport, max_bytes)

        async def receive_into_at_once(transport: PlainTransport, view: memoryview) -> int:
            if view.obj is transport.buffer.obj:  # a head
                return await receive_into(transport, view)
            self.on = True
            return len(view)

        monkeypatch.setattr(PlainTransport, "receive", receive_at_once)
        monkeypatch.setattr(PlainTransport, "receive_into", receive_into_at_once)

    async def count(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.turns += self.on


@pytest.mark.parametrize(
    ("framing", "pieces", "turns"),
    [({"Transfer_Encoding": "chunked"}, 64, 50), ({"Content_Length": 8 * MIB}, 1, 4)],
)
async def test_a_body_that_comes_as_fast_as_it_is_read_lets_others_run(
    monkeypatch: pytest.MonkeyPatch, framing: dict[str, object], pieces: int, turns: int
) -> None:
    torrent = Torrent(monkeypatch)

    async def app(exchange: Exchange) -> None:
        torrent.on = "Transfer_Encoding" in framing
        for _ in range(pieces):
            await exchange.read()
        torrent.on = False
        await reply(exchange)

    async with serving(app) as service, trio.open_nursery() as nursery, await connect(service) as stream:
        nursery.start_soon(torrent.count)
        await stream.send_all(head("POST", "/", Connection="close", **framing))
        assert (await Responses(stream).next()).status == 200
        nursery.cancel_scope.cancel()
    assert torrent.turns >= turns


async def test_so_does_a_client_that_goes_on_after_its_request_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torrent = Torrent(monkeypatch)

    async def app(exchange: Exchange) -> None:
        torrent.on = True
        await reply(exchange, status=413)

    async with serving(app, limits=UNHURRIED) as service, trio.open_nursery() as nursery:
        nursery.start_soon(torrent.count)
        async with await connect(service) as stream:
            await stream.send_all(head("POST", "/", Content_Length=10**12))
            await until(lambda: torrent.turns >= 100)
            torrent.on = False
        nursery.cancel_scope.cancel()


async def test_one_address_cannot_hold_all_that_bodies_may(tmp_path: Path) -> None:
    """It announces more than there is, and sends next to nothing; a large body from another address is served."""
    async with gated_server(tmp_path, max_inflight_bytes=8 * MIB) as gated, AsyncExitStack() as stack:
        gated.gate.set()
        for _ in range(4):
            slow = await stack.enter_async_context(await connect(gated.http))
            await slow.send_all(head(Content_Length=MIB) + b" ")
        await until(lambda: gated.server.budget_statistics().leases == 4)
        assert gated.server.budget_statistics().bytes == MIB
        port = gated.http.ports[0]
        other = await trio.open_tcp_stream("127.0.0.1", port, local_address="127.0.0.2")
        await stack.enter_async_context(other)
        body = body_of(2 * MIB)
        await other.send_all(head(Content_Length=len(body)) + body)
        assert (await Responses(other).next()).status == 200
