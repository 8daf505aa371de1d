"""Bad input and trouble on HTTP/1.1 connections: each ends as it should, and the server lives on."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import socket

import pytest
import trio
from http_sockets import (
    LONG_S,
    QUICK,
    UNHURRIED,
    Response,
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
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from trireme.api.http.app import HttpService
from trireme.api.http.exchange import TEXT, Answer, Exchange
from trireme.api.sockets.limits import Limits
from trireme.api.sockets.roster import ConnectionPhase

TYPE = b"Content-Type: text/plain\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


class Recorder:
    """An app that reads the body, then waits for `proceed`; it notes what happens to it."""

    def __init__(self) -> None:
        self.started = trio.Event()
        self.cancelled = trio.Event()
        self.proceed = trio.Event()
        self.finished = 0

    async def __call__(self, exchange: Exchange) -> None:
        self.started.set()
        try:
            await read_body(exchange)
            await self.proceed.wait()
        except trio.Cancelled:
            self.cancelled.set()
            raise
        await reply(exchange)
        self.finished += 1


async def still_serves(service: HttpService) -> bool:
    async with await connect(service) as stream:
        await stream.send_all(GET + b"\r\n")
        return (await Responses(stream).next()).status == 200


@pytest.mark.parametrize("rubbish", [b"GARBAGE\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", GET + b"no colon\r\n\r\n"])
async def test_malformed_request_is_dropped_without_a_word(rubbish: bytes) -> None:
    async with serving(echo) as service:
        assert await tell(service, rubbish) == b""
        assert await still_serves(service)


async def test_rubbish_after_a_request() -> None:
    """The request is answered, the rubbish is not."""
    async with serving(echo) as service:
        answer = await tell(service, GET + b"\r\n" + b"GARBAGE\r\n\r\n")
        assert answer == b"HTTP/1.1 200 OK\r\n" + TYPE + b"Content-Length: 6\r\n\r\nGET / "


async def test_content_length_too_short() -> None:
    """The rest of the body is read as a request, which it is not; nothing of it reaches the application."""
    async with serving(echo) as service:
        answer = await tell(service, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcdefgh\r\n\r\n")
        assert answer == b"HTTP/1.1 200 OK\r\n" + TYPE + b"Content-Length: 10\r\n\r\nPOST / abc"


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 3\r\nContent-Length: 4\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
    ],
)
async def test_ambiguous_length_is_400_and_closes(framing: bytes) -> None:
    async with serving(echo) as service:
        answer = await tell(service, GET + framing + b"\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert answer.count(b"HTTP/1.1") == 1
        assert b"\r\nConnection: close\r\n" in answer
        assert service.statistics().requests == 0


async def test_megabytes_of_headers_are_431() -> None:
    """The client gets to read the answer although it never stops sending."""
    async with serving(echo, limits=Limits(linger_timeout_s=0.1)) as service, await connect(service) as stream:

        async def send() -> None:
            await stream.send_all(GET)
            while True:
                await stream.send_all(b"X: " + b"y" * 10_000 + b"\r\n")

        async def receive() -> None:
            responses.append(await Responses(stream).next())

        responses: list[Response] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            with pytest.raises(trio.BrokenResourceError):
                await send()
        (response,) = responses
        assert response.status == 431
        assert response.body == b'{"error":"request header block exceeds 65536 bytes"}'
        await until(lambda: service.statistics().connections == 0)


async def test_refusal_is_readable_by_who_reads_late() -> None:
    """A server that closed with unread bytes would reset the connection, and the answer would be lost."""
    async with serving(echo) as service, await connect(service) as stream:
        await stream.send_all(GET + b"X: " + b"y" * 1_000_000)
        await until(lambda: service.statistics().connections == 1)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert (await Responses(stream).next()).status == 431


async def test_too_many_chunks_are_400() -> None:
    """docs/reference/http.md#request-bodies, with its text; the application is cancelled."""
    recorder = Recorder()
    async with serving(recorder) as service:
        answer = await tell(service, CHUNKED + b"1\r\na\r\n" * 65_537)
        text = "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert answer.endswith(b'{"error":"%b"}' % text.encode())
        assert recorder.cancelled.is_set()


async def test_the_most_chunks_allowed() -> None:
    async with serving(echo) as service, await connect(service) as stream:
        await stream.send_all(CHUNKED + b"1\r\na\r\n" * 65_536 + b"0\r\n\r\n")
        assert (await Responses(stream).next()).body == b"POST / " + b"a" * 65_536


@pytest.mark.parametrize("sent", [b"", b"GE", GET, GET + b"Host: x\r\n", b"\r\n", b"PRI * HTTP/2.0\r\n"])
async def test_slow_head(sent: bytes) -> None:
    """A head that does not come to its end is 408. Before its first byte there is no hurry."""
    async with serving(echo, limits=QUICK) as service, await connect(service) as stream:
        if not sent:
            await until(lambda: service.statistics().connections == 1)
            await trio.sleep(0.1)
            sent = GET + b"\r\n"
            await stream.send_all(sent)
            assert (await Responses(stream).next()).status == 200
            return
        await stream.send_all(sent)
        response = await Responses(stream).next()
        assert (response.status, response.body) == (408, b'{"error":"request head did not arrive in time"}')
        assert service.statistics().timeouts == 1


async def test_head_drop_by_drop_is_too_slow() -> None:
    """Progress does not extend the time for a head."""
    async with serving(echo, limits=QUICK) as service, await connect(service) as stream:

        async def drip() -> None:
            await stream.send_all(GET)
            with contextlib.suppress(trio.BrokenResourceError):  # the answer was given long ago
                while True:
                    await stream.send_all(b"X: y\r\n")
                    await trio.sleep(0.005)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip)
            response = await Responses(stream).next()
            nursery.cancel_scope.cancel()
        assert response.status == 408


async def test_body_that_stops_coming() -> None:
    """408, and the application that waits for it is cancelled."""
    recorder = Recorder()
    async with serving(recorder, limits=QUICK) as service, await connect(service) as stream:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nabc")
        response = await Responses(stream).next()
        assert (response.status, response.body) == (408, b'{"error":"request body did not arrive in time"}')
        assert recorder.cancelled.is_set()


SLOW = [
    (b"Content-Length: 60000", b"x" * 100),
    (b"Content-Length: 600000", b"x" * 100),
    (b"Transfer-Encoding: chunked", b"64\r\n" + b"x" * 100 + b"\r\n"),
]


@pytest.mark.parametrize(("framing", "piece"), SLOW, ids=["short", "long", "chunked"])
async def test_body_that_comes_too_slowly(framing: bytes, piece: bytes, leaping_clock: MockClock) -> None:
    """Something comes all the time, but too little: 408 when the grace is over."""
    limits = dataclasses.replace(UNHURRIED, body_grace_s=LONG_S, body_rate=100)
    async with serving(collect, limits=limits) as service, await connect(service) as stream:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n")
        await until(lambda: any(each.phase is ConnectionPhase.BODY for each in service._roster._connections))
        (connection,) = service._roster._connections
        for _ in range(4):
            leaping_clock.jump(LONG_S / 4 - 1)
            before_s = connection.since_s
            await stream.send_all(piece)
            await until(lambda before_s=before_s: connection.since_s > before_s)
            assert connection.phase is ConnectionPhase.BODY
        leaping_clock.jump(LONG_S / 4)
        response = await Responses(stream).next()
        assert (response.status, response.body) == (408, b'{"error":"request body did not arrive in time"}')


async def collect(exchange: Exchange) -> None:
    """Answers when it has the whole body."""
    while (await exchange.read())[1]:
        pass
    await reply(exchange)


@pytest.mark.parametrize("half", [b"GET / HT", GET, GET + b"Content-Length: 3\r\n\r\nab", CHUNKED + b"5\r\nab"])
@pytest.mark.parametrize("size", ["small", "large"])
async def test_half_a_request(half: bytes, size: str) -> None:
    """A client that closes in the middle gets nothing; an application that waits for the body is cancelled."""
    if size == "large":
        half = half.replace(b"Content-Length: 3", b"Content-Length: 3000000")
    recorder = Recorder()
    async with serving(recorder) as service:
        async with await connect(service) as stream:
            await stream.send_all(half)
            await stream.send_eof()
            assert await read_to_end(stream) == b""
        await until(lambda: service.statistics().connections == 0)
        assert recorder.cancelled.is_set() == recorder.started.is_set()
        assert recorder.started.is_set() == (b"\r\n\r\n" in half)


@pytest.mark.parametrize("manner", ["close", "reset", "half-close"])
async def test_vanishing_client_cancels_the_application(manner: str) -> None:
    """Tearing the request down cancels the inference (docs/reference/http.md#transport)."""
    recorder = Recorder()
    async with serving(recorder) as service, await connect(service) as stream:
        await stream.send_all(GET + b"\r\n" + GET + b"\r\n")
        await recorder.started.wait()
        if manner == "half-close":
            await stream.send_eof()
        else:
            if manner == "reset":
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            stream.socket.close()
        await recorder.cancelled.wait()
        await until(lambda: service.statistics().connections == 0)
        assert service.statistics().disconnects == 1
        assert service.statistics().requests == 1
        assert recorder.finished == 0


async def test_quick_answer_reaches_a_half_closing_client() -> None:
    """As with ``printf … | nc``: what is answered before the sweep comes round, is."""
    async with serving(echo) as service, await connect(service) as stream:
        await stream.send_all((GET + b"\r\n") * 5)
        await stream.send_eof()
        assert (await read_to_end(stream)).count(b"GET / ") == 5


async def test_patient_client_is_not_disturbed() -> None:
    """Neither by the sweep nor by any limit on reading, however long the application takes."""
    recorder = Recorder()
    async with serving(recorder, limits=QUICK) as service, await connect(service) as stream:
        await stream.send_all(GET + b"\r\n")
        await recorder.started.wait()
        await trio.sleep(0.2)
        recorder.proceed.set()
        assert (await Responses(stream).next()).status == 200


async def answer_endlessly(exchange: Exchange) -> None:
    await exchange.begin(Answer(200, TEXT))
    while True:
        await exchange.send(b"x" * 100_000)


async def answer_hugely(exchange: Exchange) -> None:
    await reply(exchange, bytes(100_000_000))


@pytest.mark.parametrize("app", [answer_endlessly, answer_hugely])
async def test_client_that_does_not_read_is_given_up(app: object) -> None:
    async with serving(app, limits=QUICK) as service, await connect(service) as stream:  # type: ignore[arg-type]
        await stream.send_all(GET + b"\r\n")
        await until(lambda: service.statistics().timeouts == 1)
        await until(lambda: service.statistics().connections == 0)


async def test_client_that_does_not_read_does_not_hold_up_shutdown() -> None:
    sending = trio.Event()

    async def app(exchange: Exchange) -> None:
        sending.set()
        await reply(exchange, bytes(100_000_000))

    async with serving(app) as service, await connect(service) as stream:
        await stream.send_all(GET + b"\r\n")
        await sending.wait()
        await service.stop(0)
        assert service.statistics().connections == 0


async def test_client_that_leaves_while_being_answered() -> None:
    async with serving(answer_endlessly) as service:
        async with await connect(service) as stream:
            await stream.send_all(GET + b"\r\n")
            await stream.receive_some()
        await until(lambda: service.statistics().connections == 0)


async def fail_before(exchange: Exchange) -> None:
    raise LookupError("a bug")


async def fail_in_a_group(exchange: Exchange) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_before, exchange)
        await trio.sleep_forever()


async def fail_between(exchange: Exchange) -> None:
    await exchange.begin(Answer(200, TEXT))
    raise LookupError("a bug")


async def fail_to_answer(exchange: Exchange) -> None:
    pass


@pytest.mark.parametrize("app", [fail_before, fail_in_a_group, fail_between, fail_to_answer])
async def test_bug_in_the_application_costs_one_connection(app: object, caplog: pytest.LogCaptureFixture) -> None:
    """500, a log record, and the next client is served."""

    async def either(exchange: Exchange) -> None:
        await (app if exchange.path == b"/bug" else echo)(exchange)  # type: ignore[operator]

    async with serving(either) as service:
        with caplog.at_level(logging.ERROR):
            answer = await tell(service, b"GET /bug HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert len(caplog.records) == 1
        assert await still_serves(service)


async def test_bug_in_the_middle_of_an_answer_cuts_it_off(caplog: pytest.LogCaptureFixture) -> None:
    """No second head is written into the body, and the client can see that the end is missing."""

    async def app(exchange: Exchange) -> None:
        await exchange.begin(Answer(200, TEXT))
        await exchange.send(b"abc")
        raise LookupError("a bug")

    async with serving(app) as service:
        answer = await tell(service, GET + b"\r\n")
        assert answer.endswith(b"\r\n\r\n3\r\nabc\r\n")


async def test_thousand_idle_connections() -> None:
    """They cost no task but their own, and no other client is kept from being served."""
    async with serving(echo, limits=QUICK) as service:
        idle = [await connect(service) for _ in range(1000)]
        await until(lambda: service.statistics().connections == 1000)
        assert await still_serves(service)
        for stream in idle[::100]:
            await stream.send_all(GET + b"\r\n")
            assert (await Responses(stream).next()).status == 200
        assert service.statistics().timeouts == 0
        for stream in idle:
            await stream.aclose()
        await until(lambda: service.statistics().connections == 0)


async def test_idle_limit_if_there_is_one(leaping_clock: MockClock) -> None:
    limits = dataclasses.replace(UNHURRIED, idle_timeout_s=LONG_S)
    async with serving(echo, limits=limits) as service, await connect(service) as new, await connect(service) as old:
        await old.send_all(GET + b"\r\n")
        responses = Responses(old)
        assert (await responses.next()).body == b"GET / "
        await until(lambda: [each.phase for each in service._roster._connections] == [ConnectionPhase.IDLE] * 2)
        leaping_clock.jump(LONG_S + 1)
        assert [await read_to_end(stream) for stream in (new, old)] == [b"", b""]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.binary(max_size=50)
        | st.sampled_from([GET, b"\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", CHUNKED, b"1\r\na"]),
        max_size=6,
    )
)
async def test_rubbish_harms_no_other_client(pieces: list[bytes]) -> None:
    """Whatever a client sends, its connection ends and the next one is served."""
    async with serving(echo) as service:
        async with await connect(service) as stream:
            try:
                for piece in pieces:
                    await stream.send_all(piece)
                await stream.send_eof()
            except trio.BrokenResourceError:
                pass
            await read_to_end(stream)
        await until(lambda: service.statistics().connections == 0)
        assert await still_serves(service)
