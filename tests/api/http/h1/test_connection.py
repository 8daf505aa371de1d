"""The HTTP/1.1 connection loop over real sockets: what a client sends, and what it gets."""

from __future__ import annotations

import itertools

import pytest
import trio
from http_sockets import Responses, connect, echo, read_body, read_to_end, reply, serving, tell
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.http.exchange import TEXT, Answer, Exchange
from trireme.api.sockets.limits import Limits

TYPE = b"Content-Type: text/plain\r\n"
CLOSE = b"Connection: close\r\n\r\n"


async def test_request_and_response() -> None:
    """Only the application's headers and the framing are sent (docs/reference/http.md#transport)."""
    async with serving(echo) as service:
        answer = await tell(service, b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + CLOSE)
    assert answer == b"HTTP/1.1 200 OK\r\n" + TYPE + b"Content-Length: 8\r\nConnection: close\r\n\r\nGET /v2 "


async def test_what_the_application_sees() -> None:
    """No percent-decoding of the path, which is without the query."""
    seen: list[Exchange] = []

    async def app(exchange: Exchange) -> None:
        seen.append(exchange)
        await reply(exchange)

    async with serving(app) as service, await connect(service) as stream:
        client = stream.socket.getsockname()
        await stream.send_all(b"PUT /a%5Fb//c?d=%20 HTTP/1.0\r\nX-UPPER:  v \r\nX-Upper: w\r\n\r\n")
        await read_to_end(stream)
        (exchange,) = seen
        assert (exchange.http_version, exchange.method, exchange.path) == ("1.0", "PUT", b"/a%5Fb//c")
        assert exchange.headers == ((b"x-upper", b"v"), (b"x-upper", b"w"))
        assert exchange.header_names == (b"X-UPPER", b"X-Upper")
        assert (exchange.client, exchange.address) == (client, "127.0.0.1")


async def test_absolute_target_is_reduced_to_its_path() -> None:
    async with serving(echo) as service:
        assert (await tell(service, b"GET http://host:1/v2?q HTTP/1.1\r\nHost: x\r\n" + CLOSE)).endswith(b"GET /v2 ")
        assert (await tell(service, b"GET http://host HTTP/1.1\r\nHost: x\r\n" + CLOSE)).endswith(b"GET / ")
        assert (await tell(service, b"GET http://h:1/x://[:y HTTP/1.1\r\nHost: x\r\n" + CLOSE)).endswith(
            b"GET /x://[:y "
        )
        assert (await tell(service, b"GET http://h:999999/ HTTP/1.1\r\nHost: x\r\n" + CLOSE)).endswith(
            b"GET http://h:999999/ "
        )


async def test_http_1_0_closes_unless_asked_to_stay() -> None:
    async with serving(echo) as service:
        closed = await tell(service, b"GET / HTTP/1.0\r\n\r\n")
        assert closed == b"HTTP/1.0 200 OK\r\n" + TYPE + b"Content-Length: 6\r\n\r\nGET / "
        kept = await tell(service, b"GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", b"GET /2 HTTP/1.0\r\n\r\n")
        first = b"HTTP/1.0 200 OK\r\n" + TYPE + b"Content-Length: 7\r\nConnection: keep-alive\r\n\r\nGET /1 "
        assert kept == first + b"HTTP/1.0 200 OK\r\n" + TYPE + b"Content-Length: 7\r\n\r\nGET /2 "


async def test_a_hundred_pipelined_requests_are_answered_in_order() -> None:
    """Even when the first takes the longest."""

    async def app(exchange: Exchange) -> None:
        if exchange.path == b"/0":
            await trio.sleep(0.01)
        await echo(exchange)

    requests = b"".join(
        b"POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (number, number, b"x" * number)
        for number in range(100)
    )
    async with serving(app) as service, await connect(service) as stream:
        await stream.send_all(requests)
        responses = Responses(stream)
        for number in range(100):
            assert (await responses.next()).body == b"POST /%d " % number + b"x" * number
        assert service.statistics().requests == 100


async def test_pipelining_does_not_starve_others() -> None:
    """Between two requests that are already there, the other tasks get a turn."""
    order: list[bytes] = []

    async def app(exchange: Exchange) -> None:
        order.append(exchange.path)
        await reply(exchange)

    async with serving(app) as service, await connect(service) as greedy, await connect(service) as modest:
        await trio.testing.wait_all_tasks_blocked(0.01)
        await greedy.send_all(b"GET /greedy HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        await modest.send_all(b"GET /modest HTTP/1.1\r\nHost: x\r\n\r\n")
        await Responses(modest).next()
        assert order.index(b"/modest") < 999


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("size", [0, 1, 65_536, 70_000, 1 << 20, (1 << 20) + 1, 5_000_000])
async def test_bodies_of_every_size_arrive_whole(size: int, pieces: int) -> None:
    """Also those that bypass the parser; the next request on the connection is read from the right place."""
    bodies: list[bytes] = []

    async def app(exchange: Exchange) -> None:
        bodies.append(await read_body(exchange))
        await reply(exchange)

    body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + body
    step = len(request) // pieces + 1
    async with serving(app) as service, await connect(service) as stream:
        responses = Responses(stream)
        for _ in range(2):
            for start in range(0, len(request), step):
                await stream.send_all(request[start : start + step])
            assert (await responses.next()).status == 200
    assert bodies[0] == body
    assert bodies[1] == body


async def test_a_large_body_of_known_length_comes_in_one_piece() -> None:
    """It is received into one buffer, without joining."""
    sizes: list[int] = []

    async def app(exchange: Exchange) -> None:
        more = True
        while more:
            body, more = await exchange.read()
            sizes.append(len(body))
        await reply(exchange)

    async with serving(app) as service, await connect(service) as stream:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n"
        await stream.send_all(head + b"x" * 300_000)
        responses = Responses(stream)
        await responses.next()
        await stream.send_all(head.replace(b"300000", b"2000000") + b"x" * 2_000_000)
        await responses.next()
        assert sizes == [300_000, 2_000_000]


async def test_chunked_body() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + CLOSE
    async with serving(echo) as service:
        answer = await tell(service, head + b"3\r\nab", b"c\r\n", b"2;ext\r\nde\r\n0\r\nTrailer: t\r\n", b"\r\n")
    assert answer.endswith(b"POST / abcde")


async def test_continue_is_sent_when_the_application_asks_for_the_body() -> None:
    async with serving(echo) as service, await connect(service) as stream:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n" + CLOSE)
        assert await stream.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await stream.send_all(b"ab")
        await trio.testing.wait_all_tasks_blocked(0.005)
        await stream.send_all(b"c")
        answer = await read_to_end(stream)
        assert answer.startswith(b"HTTP/1.1 200 OK")  # not told to continue a second time
        assert answer.endswith(b"POST / abc")


async def test_continue_is_not_sent_when_the_body_is_not_wanted() -> None:
    """The connection closes instead: whether the body follows is unknown."""

    async def app(exchange: Exchange) -> None:
        await reply(exchange, b"no", status=404)

    async with serving(app) as service, await connect(service) as stream:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        answer = await stream.receive_some()
        assert answer == b"HTTP/1.1 404 Not Found\r\n" + TYPE + b"Content-Length: 2\r\nConnection: close\r\n\r\nno"
        assert await read_to_end(stream) == b""


async def test_continue_is_not_sent_to_who_did_not_wait() -> None:
    async with serving(echo) as service:
        request = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n" + CLOSE + b"abc"
        assert (await tell(service, request)).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("size", [10, 70_000, 200_000])
@pytest.mark.parametrize("chunked", [False, True])
async def test_body_left_unread_is_skipped(size: int, chunked: bool) -> None:
    async def app(exchange: Exchange) -> None:
        await reply(exchange, exchange.path)

    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (size, b"x" * size) if chunked else b"x" * size
    async with serving(app) as service, await connect(service) as stream:
        await stream.send_all(b"POST /1 HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n" + body)
        await stream.send_all(b"GET /2 HTTP/1.1\r\nHost: x\r\n\r\n")
        responses = Responses(stream)
        assert (await responses.next()).body == b"/1"
        assert (await responses.next()).body == b"/2"


async def test_too_much_unread_body_closes_the_connection() -> None:
    """The answer still reaches the client, who is told."""

    async def app(exchange: Exchange) -> None:
        await reply(exchange, b"enough")

    async with serving(app, limits=Limits(drain_bytes=1000)) as service, await connect(service) as stream:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n" + b"x" * 500_000)
        response = await Responses(stream).next()
        assert response.body == b"enough"
        assert (b"Connection", b"close") in response.headers
        assert await read_to_end(stream) == b""


async def test_too_much_unread_chunked_body_closes_the_connection() -> None:
    """How much it is is unknown, so it can only be found out."""

    async def app(exchange: Exchange) -> None:
        await reply(exchange, b"enough")

    async with serving(app, limits=Limits(drain_bytes=1000)) as service, await connect(service) as stream:
        responses = Responses(stream)
        await stream.send_all(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1024
        )
        assert (await responses.next()).body == b"enough"
        with pytest.raises(EOFError):
            await responses.next()


async def test_streaming_does_not_starve_others() -> None:
    """An app that has all its pieces ready yields between them."""
    order: list[bytes] = []

    async def app(exchange: Exchange) -> None:
        await exchange.begin(Answer(200, TEXT))
        for _ in range(500 if exchange.path == b"/greedy" else 1):
            order.append(exchange.path)
            await exchange.send(b"piece")
        await exchange.send(b"", last=True)

    async with serving(app) as service, await connect(service) as greedy, await connect(service) as modest:
        await trio.testing.wait_all_tasks_blocked(0.01)
        await greedy.send_all(b"GET /greedy HTTP/1.1\r\nHost: x\r\n\r\n")
        await modest.send_all(b"GET /modest HTTP/1.1\r\nHost: x\r\n\r\n")
        await Responses(modest).next()
        assert order.index(b"/modest") < 499


async def test_streamed_response() -> None:
    """Each piece is on its way before the next is there."""
    proceed = trio.Event()

    async def app(exchange: Exchange) -> None:
        await exchange.begin(Answer(200, TEXT))
        await exchange.send(b"first")
        await proceed.wait()
        await exchange.send(b"second", last=True)

    async with serving(app) as service, await connect(service) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n" + CLOSE)
        head = b"HTTP/1.1 200 OK\r\n" + TYPE + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        assert await stream.receive_some() == head + b"5\r\nfirst\r\n"
        proceed.set()
        assert await read_to_end(stream) == b"6\r\nsecond\r\n0\r\n\r\n"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_large_response_arrives_whole(kind: type) -> None:
    """Many times what a socket takes at once."""
    body = bytes(range(256)) * 40_000

    async def app(exchange: Exchange) -> None:
        await reply(exchange, kind(body))

    async with serving(app) as service, await connect(service) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        responses = Responses(stream)
        assert (await responses.next()).body == body
        assert (await responses.next()).body == body


async def test_many_small_responses_to_who_reads_late() -> None:
    """The socket fills up in the middle of one of them."""
    body = bytes(range(250)) * 40

    async def app(exchange: Exchange) -> None:
        await reply(exchange, body)

    async with serving(app) as service, await connect(service) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2000)
        await trio.testing.wait_all_tasks_blocked(0.05)
        responses = Responses(stream)
        for _ in range(2000):
            assert (await responses.next()).body == body


async def test_reason_phrase_and_head() -> None:
    async def app(exchange: Exchange) -> None:
        await reply(exchange, b"abc", status=405)

    async with serving(app) as service:
        answer = await tell(service, b"HEAD / HTTP/1.1\r\nHost: x\r\n" + CLOSE)
        assert answer == b"HTTP/1.1 405 Not Allowed\r\n" + TYPE + b"Content-Length: 3\r\nConnection: close\r\n\r\n"


PIPELINED = (
    b"POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
    b"POST /2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    b"GET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
)


@settings(max_examples=50, deadline=None)
@given(cuts=st.sets(st.integers(1, len(PIPELINED) - 1), max_size=6))
async def test_pieces_make_no_difference_on_the_wire(cuts: set[int]) -> None:
    """Pipelined requests cut up anywhere get the answers that they get in one piece."""
    edges = [0, *sorted(cuts), len(PIPELINED)]
    pieces = [PIPELINED[a:b] for a, b in itertools.pairwise(edges)]
    expected = [b"POST /1 hello", b"POST /2 abc", b"GET /3 "]
    async with serving(echo) as service:
        answer = await tell(service, *pieces)
    kept = b"".join(
        (b"HTTP/1.1 200 OK\r\n" + TYPE + b"Content-Length: %d\r\n\r\n%b") % (len(b), b) for b in expected[:2]
    )
    assert (
        answer == kept + b"HTTP/1.1 200 OK\r\n" + TYPE + b"Content-Length: 7\r\nConnection: close\r\n\r\n" + expected[2]
    )
