"""Calls over a connection, as a client sees them that sends what it likes. What gRPC's own server says to the same was
asked of Triton 2.51."""

from __future__ import annotations

import gzip
import logging
import zlib

import pytest
import trio
from grpc_echo import SERVICE, Echo, ImmediateEcho, serving
from grpc_peer import Received, connect, frame, request_headers
from http2_held import watch
from http_sockets import QUICK, until
from trio.testing import MockClock, wait_all_tasks_blocked

from trireme.api.grpc.call import UnaryCall
from trireme.api.grpc.compression import CompressionLevel
from trireme.api.grpc.service import GrpcService
from trireme.api.http2.frames import ErrorCode
from trireme.api.sockets.transport import PlainTransport
from trireme.engine.tensor import Buffer

UNARY = SERVICE + "Unary"
EACH = SERVICE + "Each"


async def ask(service: GrpcService, path: str, body: bytes | None, *extra: tuple[str, str], **changed: str) -> Received:
    async with await connect(service) as peer:
        return await peer.call(path, body, *extra, **changed)


# ---- messages ----


@pytest.mark.parametrize("service_class", [Echo, ImmediateEcho])
async def test_messages_in_any_pieces(service_class: type[Echo]) -> None:
    """A message over many DATA frames, its prefix torn apart, with and without an end of their own."""
    body = frame(b"0123456789" * 10)
    async with serving([service_class()]) as service, await connect(service) as peer:
        stream_id = peer.start(UNARY, end=False)
        for at in range(0, len(body), 3):
            peer.h2.send_data(stream_id, body[at : at + 3])
            await peer.flush()
        peer.h2.end_stream(stream_id)
        received = await peer.finish(stream_id)
        assert (received.data, received.status) == (body, "0")


@pytest.mark.parametrize("service_class", [Echo, ImmediateEcho])
async def test_a_unary_call_needs_no_end_of_its_request(service_class: type[Echo]) -> None:
    """It is answered when its message is there; the client is told to stop without an error."""
    async with serving([service_class()]) as service, await connect(service) as peer:
        received = await peer.call(UNARY, frame(b"x"), end=False)
        assert (received.data, received.status) == (frame(b"x"), "0")
        while received.reset is None:
            await peer.receive()
        assert received.reset == ErrorCode.NO_ERROR


@pytest.mark.parametrize("rest", [frame(b"second"), b"\0\0", b"rubbish"])
async def test_what_follows_the_message_of_a_unary_call_is_dropped(rest: bytes) -> None:
    async with serving([ImmediateEcho()]) as service:
        received = await ask(service, UNARY, frame(b"first") + rest)
        assert (received.data, received.status) == (frame(b"first"), "0")


@pytest.mark.parametrize("body", [None, b"", b"\0\0", b"\0\0\0\0\x09abc"])
@pytest.mark.parametrize("service_class", [Echo, ImmediateEcho])
async def test_a_unary_call_without_a_complete_message(service_class: type[Echo], body: bytes | None) -> None:
    async with serving([service_class()]) as service:
        received = await ask(service, UNARY, body)
        assert received.trailers_only
        assert (received.status, received.message) == ("13", "Unable to parse request")


async def test_a_stream_that_ends_in_the_middle_of_a_message() -> None:
    """What came before it is answered."""
    async with serving([Echo()]) as service:
        received = await ask(service, EACH, frame(b"whole") + frame(b"half")[:-1])
        assert received.data == frame(b"whole")
        assert (received.status, received.message) == ("13", "The request ends in the middle of a message")


@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_request_messages_have_a_limit(path: str) -> None:
    """Refused when announced, however little of them has come."""
    async with serving([ImmediateEcho()], max_message_bytes=1000) as service, await connect(service) as peer:
        assert (await peer.call(path, frame(bytes(1000)))).status == "0"
        received = await peer.call(path, frame(bytes(1001))[:10], end=False)
        assert (received.status, received.message) == ("8", "Received message larger than max (1001 vs. 1000)")


@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_unpacked_messages_have_the_same_limit(path: str) -> None:
    """Small ones, and ones that a thread unpacks."""
    encoding = ("grpc-encoding", "gzip")
    for limit, size in ((1000, 1001), (10_000_000, 10_000_001)):
        async with serving([ImmediateEcho()], max_message_bytes=limit) as service:
            received = await ask(service, path, frame(gzip.compress(bytes(size)), True), encoding)
            assert (received.status, received.message) == (
                "8",
                f"Received message larger than max ({size} vs. {limit})",
            )


@pytest.mark.parametrize("path", [UNARY, EACH])
@pytest.mark.parametrize(
    ("body", "encoding", "text"),
    [
        (frame(b"rubbish", True), "gzip", "Unexpected error decompressing data for algorithm gzip"),
        (frame(bytes(100_000), True), "gzip", "Unexpected error decompressing data for algorithm gzip"),
        (
            frame(gzip.compress(b"x", mtime=0), True),
            "identity",
            "Message is compressed, but grpc-encoding names no compression",
        ),
        (b"\2\0\0\0\0", "gzip", "Message has an invalid compressed flag: 2, expected 0 or 1"),
    ],
)
async def test_messages_that_cannot_be_unpacked(path: str, body: bytes, encoding: str, text: str) -> None:
    async with serving([ImmediateEcho()]) as service:
        received = await ask(service, path, body, ("grpc-encoding", encoding))
        assert (received.status, received.message) == ("13", text)


# ---- heads ----


@pytest.mark.parametrize(
    ("headers", "http_status", "status", "message"),
    [
        (request_headers(UNARY, method="GET"), "405", "2", "Bad method header"),
        (
            request_headers(UNARY, ("content-type", "text/html"), without="content-type"),
            "415",
            "2",
            "Unacceptable content-type header",
        ),
        (request_headers(UNARY, without="te"), "200", "2", "Missing :te header"),
        (request_headers(UNARY, ("grpc-timeout", "soon")), "200", "13", "Invalid grpc-timeout: 'soon'"),
        (request_headers(SERVICE + "Nothing"), "200", "12", ""),
        (request_headers("/"), "200", "12", ""),
    ],
)
async def test_heads_that_make_no_call(
    headers: list[tuple[str, str]], http_status: str, status: str, message: str
) -> None:
    """Answered at once, and the connection goes on."""
    async with serving([ImmediateEcho()]) as service, await connect(service) as peer:
        received = await peer.finish(peer.start_headers(headers, frame(b"x"), end=False))
        assert received.trailers_only
        assert (received.headers[0][":status"], received.status, received.message) == (http_status, status, message)
        assert (await peer.call(UNARY, frame(b"x"))).status == "0"
        assert service.statistics().requests == 1


async def test_unknown_encodings_are_told_which_are_known() -> None:
    async with serving([ImmediateEcho()]) as service:
        received = await ask(service, UNARY, frame(b"x"), ("grpc-encoding", "snappy"))
        assert (received.status, received.message) == ("12", "Compression algorithm 'snappy' is not supported")
        assert received.headers[0]["grpc-accept-encoding"] == "identity, deflate, gzip"


async def test_answers_look_as_from_triton() -> None:
    async with serving([ImmediateEcho()]) as service:
        received = await ask(service, UNARY, frame(b"x"))
        assert received.headers == [
            {
                ":status": "200",
                "content-type": "application/grpc",
                "grpc-accept-encoding": "identity, deflate, gzip",
            },
            {"grpc-status": "0"},
        ]


@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_packed_answers(path: str) -> None:
    """As from Triton at level high: deflate is chosen, what would not get smaller is sent as it is, errors and other
    methods know nothing of it."""
    options = {"compression_level": CompressionLevel.HIGH, "infer_paths": frozenset({UNARY, EACH})}
    accepted = ("grpc-accept-encoding", "identity, deflate, gzip")
    async with serving([ImmediateEcho()], **options) as service, await connect(service) as peer:
        for size, message in ((1000, frame(zlib.compress(bytes(1000)), True)), (1, frame(bytes(1)))):
            received = await peer.call(path, frame(bytes(size)), accepted)
            assert received.headers[0]["grpc-encoding"] == "deflate"
            assert received.data == message
        large = await peer.call(path, frame(bytes(100_000)), ("grpc-accept-encoding", "gzip"))
        assert large.headers[0]["grpc-encoding"] == "gzip"
        assert gzip.decompress(large.data[5:]) == bytes(100_000)
        for other in (
            await peer.call(path, frame(bytes(1000))),
            await peer.call(SERVICE + "Join", frame(bytes(1000)), accepted),
        ):
            assert other.data == frame(bytes(1000))
            assert "grpc-encoding" not in other.headers[0]
        failed = await peer.call(path, frame(b"x"), accepted, ("do", "fail"), ("text", "no"))
        assert failed.trailers_only
        assert "grpc-encoding" not in failed.headers[0]


async def test_answers_of_one_pass_share_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they come from; and a lone answer does not wait for a pass."""
    writes: list[int] = []
    send_now = PlainTransport.send_now

    def counting(transport: PlainTransport, buffers: list[Buffer]) -> list[Buffer]:
        writes.append(sum(map(len, buffers)))
        return send_now(transport, buffers)

    echo = ImmediateEcho()
    async with serving([echo]) as service, await connect(service) as peer:
        streams = [peer.start(UNARY, frame(b"x"), ("hold", "yes")) for _ in range(6)]
        await peer.flush()
        await until(lambda: len(echo.begun) == 6)
        monkeypatch.setattr(PlainTransport, "send_now", counting)
        for call in echo.begun[:5]:
            call.answer([b"y"])
        assert writes == []
        for stream_id in streams[:5]:
            assert (await peer.finish(stream_id)).data == frame(b"y")
        assert len(writes) == 1
        echo.begun[5].answer([b"y"])
        assert len(writes) == 2
        assert (await peer.finish(streams[5])).data == frame(b"y")


# ---- deadlines ----


@pytest.mark.parametrize("timeout", ["0S", "20m"])
@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_deadlines(timeout: str, path: str) -> None:
    """The client is told, and nothing of the call is left: whether it is not answered, the request is not complete, or
    there was no time from the start."""
    echo = ImmediateEcho()
    async with serving([echo]) as service, await connect(service) as peer:
        body = frame(b"x") if path == UNARY else b""
        received = await peer.call(path, body, ("grpc-timeout", timeout), ("hold", "yes"), end=path == UNARY)
        assert received.trailers_only
        assert (received.status, received.message) == ("4", "Deadline Exceeded")
        await until(lambda: watch(service).calls == 0)
        assert watch(service).deadlines == 0
        assert echo.cancelled == len(echo.begun) == (timeout != "0S" and path == UNARY)
        for call in echo.begun:
            call.answer([b"too late"])


async def test_a_deadline_after_the_first_answers(leaping_clock: MockClock) -> None:
    """Trailers, since response headers have been sent."""
    async with serving([Echo()]) as service, await connect(service) as peer:
        stream_id = peer.start(EACH, frame(b"x"), ("grpc-timeout", "20S"), end=False)
        await peer.flush()
        while not peer.streams[stream_id].data:
            await peer.receive()
        leaping_clock.jump(20)
        received = await peer.finish(stream_id)
        assert received.data == frame(b"x")
        assert len(received.headers) == 2
        assert received.status == "4"


async def test_answered_calls_take_their_deadlines_back() -> None:
    async with serving([ImmediateEcho()]) as service, await connect(service) as peer:
        for path in (UNARY, EACH):
            assert (await peer.call(path, frame(b"x"), ("grpc-timeout", "1H"))).status == "0"
        assert watch(service).deadlines == 0


# ---- clients that go ----


class Waiting(ImmediateEcho):
    """Handlers that wait for ever, and note how that ends."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0

    async def each(self, stream: object) -> None:
        self.waiting += 1
        try:
            await trio.sleep_forever()
        finally:
            self.waiting -= 1


@pytest.mark.parametrize("how", ["reset", "vanish", "half-close", "goaway"])
async def test_clients_that_go_cancel_their_calls(how: str) -> None:
    """Of both kinds: the task is cancelled, the immediate call is told, a call that is not complete is forgotten."""
    echo = Waiting()
    async with serving([echo]) as service, await connect(service) as peer:
        ids = [
            peer.start(EACH, end=False),
            peer.start(UNARY, frame(b"x"), ("hold", "yes")),
            peer.start(UNARY, frame(b"x")[:3], end=False),
        ]
        await peer.flush()
        await until(lambda: watch(service).calls == 3 and echo.waiting == len(echo.begun) == 1)
        if how == "reset":
            for stream_id in ids:
                peer.h2.reset_stream(stream_id, ErrorCode.CANCEL)
            await peer.flush()
        elif how == "goaway":
            peer.h2.close_connection(ErrorCode.PROTOCOL_ERROR)
            await peer.flush()
            await trio.aclose_forcefully(peer.stream)
        elif how == "vanish":
            await trio.aclose_forcefully(peer.stream)
        else:
            await peer.stream.send_eof()
        await until(lambda: watch(service).calls == 0 and echo.waiting == 0)
        assert echo.cancelled == 1
        assert service.statistics().disconnects == 3
        for call in echo.begun:
            call.answer([b"too late"])
            assert call.over


async def test_a_connection_that_breaks_the_rules_loses_its_calls() -> None:
    """The client is told why, and its calls are cancelled."""
    echo = Waiting()
    async with serving([echo]) as service, await connect(service) as peer:
        peer.start(EACH, end=False)
        await peer.flush()
        await until(lambda: echo.waiting == 1)
        await peer.stream.send_all(b"\0\0\0\x00\0\0\0\0\0")  # DATA on the connection itself
        await peer.read_to_end()
        assert peer.goaways[0][0] == ErrorCode.PROTOCOL_ERROR
        await until(lambda: echo.waiting == 0)


@pytest.mark.parametrize("sent", [b"", b"PRI * HTTP/2.0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n" + bytes(100)])
async def test_what_is_no_http2_is_ended(sent: bytes) -> None:
    """Silence and half a greeting after a time, anything else at once."""
    async with serving([Echo()], limits=QUICK) as service:
        stream = await trio.open_tcp_stream("127.0.0.1", service.ports[0])
        await stream.send_all(sent)
        while await stream.receive_some():
            pass
        await until(lambda: service.statistics().connections == 0)


async def test_defects_in_handlers_cost_their_call(caplog: pytest.LogCaptureFixture) -> None:
    """In a task, before one, and while being cancelled; the connection goes on."""
    caplog.set_level(logging.CRITICAL)

    class Broken(ImmediateEcho):
        def begin(self, call: UnaryCall) -> bool:
            if "hold" in call.head.metadata:
                call.on_cancel = self._break
                return True
            raise KeyError("a defect")

        def _break(self) -> None:
            raise KeyError("another")

    async with serving([Broken()]) as service, await connect(service) as peer:
        for path, metadata in ((UNARY, ("x", "y")), (EACH, ("do", "crash"))):
            received = await peer.call(path, frame(b"x"), metadata)
            assert (received.status, received.message) == ("2", "Internal Server Error")
        held = await peer.call(UNARY, frame(b"x"), ("hold", "yes"), ("grpc-timeout", "10m"))
        assert held.status == "4"
        await wait_all_tasks_blocked()
        assert (await peer.call(SERVICE + "Join", frame(b"x"))).status == "0"
