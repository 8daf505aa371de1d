"""The clients that people use: grpcio, with and without asyncio, and grpclib's. TLS, plain and mutual."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from authority import Authority
from grpc_echo import SERVICE, BytesCodec, Echo, ImmediateEcho, serving_in_thread
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from trireme.api.grpc.compression import CompressionLevel
from trireme.api.http2.limits import Http2Limits
from trireme.api.http2.server import Http2Server

PATIENCE_S = 60.0
UNARY = SERVICE + "Unary"
EACH = SERVICE + "Each"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(scope="module")
def echo() -> ImmediateEcho:
    return ImmediateEcho()


@pytest.fixture(scope="module")
def port(echo: ImmediateEcho) -> Iterator[int]:
    with serving_in_thread([echo]) as port:
        yield port


@pytest.fixture
def channel(port: int) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED) as channel:
        yield channel


def message(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_384, 65_536, 1 << 20, 8 << 20])
@pytest.mark.parametrize("task", [False, True])
def test_message_sizes(channel: grpc.Channel, size: int, task: bool) -> None:
    metadata = (("do", "nothing"),) if task else ()
    sent = message(size)
    assert channel.unary_unary(UNARY)(sent, timeout=PATIENCE_S, metadata=metadata) == sent


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@pytest.mark.parametrize("size", [0, 1000, 8 << 20])
def test_compressed_requests(channel: grpc.Channel, algorithm: grpc.Compression, size: int) -> None:
    """From either server, and however large."""
    sent = message(size)
    answer = channel.unary_unary(UNARY)(sent, timeout=PATIENCE_S, compression=algorithm)
    assert answer == sent
    received = channel.stream_stream(EACH)(iter([sent] * 3), timeout=PATIENCE_S, compression=algorithm)
    assert list(received) == [sent] * 3


@pytest.mark.parametrize("size", [0, 10, 1000, 8 << 20])
def test_compressed_responses(size: int) -> None:
    """Of the methods that are to be compressed, and of others."""
    sent = bytes(size)
    level = CompressionLevel.HIGH
    with (
        serving_in_thread([ImmediateEcho()], compression_level=level, infer_paths=frozenset({UNARY, EACH})) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED) as channel,
    ):
        answer, call = channel.unary_unary(UNARY).with_call(sent, timeout=PATIENCE_S)
        assert answer == sent
        assert call.code() is grpc.StatusCode.OK
        assert list(channel.stream_stream(EACH)(iter([sent] * 3), timeout=PATIENCE_S)) == [sent] * 3
        assert channel.stream_unary(SERVICE + "Join")(iter([sent] * 3), timeout=PATIENCE_S) == sent * 3


def test_metadata_has_a_limit(port: int) -> None:
    """Much is taken; too much costs the call, not the connection."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(UNARY)
        metadata = tuple((f"x-{index}", "v" * 1000) for index in range(12))
        assert call(b"x", timeout=PATIENCE_S, metadata=metadata) == b"x"
        with pytest.raises(grpc.RpcError):
            call(b"x", timeout=PATIENCE_S, metadata=metadata * 2)
        assert call(b"x", timeout=PATIENCE_S) == b"x"


def test_cancelling(channel: grpc.Channel, echo: ImmediateEcho) -> None:
    """The handler hears of it."""
    cancelled = echo.cancelled
    future = channel.unary_unary(UNARY).future(b"x", metadata=(("hold", "yes"),), timeout=PATIENCE_S)
    wait_for(lambda: bool(echo.begun))
    echo.begun.clear()
    future.cancel()
    wait_for(lambda: echo.cancelled == cancelled + 1)
    assert future.code() is grpc.StatusCode.CANCELLED


def test_deadlines(channel: grpc.Channel, echo: ImmediateEcho) -> None:
    cancelled = echo.cancelled
    for timeout_s in (0.05, 1.0, 10.0):  # on a busy machine the first one may not even reach the handler
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(UNARY)(b"x", metadata=(("hold", "yes"),), timeout=timeout_s)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
        if echo.begun:
            break
    wait_for(lambda: echo.cancelled > cancelled)
    echo.begun.clear()


def wait_for(condition: Any) -> None:
    """Waits for what another thread does."""
    waiting = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if condition():
            return
        waiting.wait(0.005)
    raise AssertionError("it has not happened")


def test_many_calls_at_once_on_one_connection(channel: grpc.Channel) -> None:
    """Of both kinds, each with its own answer."""

    def call(index: int) -> bool:
        sent = message(index * 37 % 30_000) + b"%d" % index
        metadata = (("do", "nothing"),) if index % 3 == 0 else ()
        return channel.unary_unary(UNARY)(sent, timeout=PATIENCE_S, metadata=metadata) == sent

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(call, range(600)))


def test_grpcio_on_asyncio(port: int) -> None:
    async def main() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            unary = channel.unary_unary(UNARY)
            answers = await asyncio.gather(*[unary(b"%d" % index, timeout=PATIENCE_S) for index in range(100)])
            assert answers == [b"%d" % index for index in range(100)]
            stream = channel.stream_stream(EACH)(timeout=PATIENCE_S)
            for index in range(10):
                await stream.write(b"%d" % index)
                assert await stream.read() == b"%d" % index
            await stream.done_writing()
            assert not await stream.read()
            assert await stream.code() is grpc.StatusCode.OK

    asyncio.run(main())


def test_grpclib(port: int) -> None:
    async def main() -> None:
        channel = Channel("127.0.0.1", port, codec=BytesCodec())
        unary = UnaryUnaryMethod(channel, UNARY, bytes, bytes)
        assert await unary(b"x" * 100_000, timeout=PATIENCE_S) == b"x" * 100_000
        with pytest.raises(GRPCError) as caught:
            await unary(b"x", metadata={"do": "fail", "text": "not ready: %"}, timeout=PATIENCE_S)
        assert (caught.value.status, caught.value.message) == (Status.FAILED_PRECONDITION, "not ready: %")
        with pytest.raises((GRPCError, StreamTerminatedError, asyncio.TimeoutError)):
            await unary(b"x", metadata={"hold": "yes"}, timeout=0.05)
        channel.close()

    asyncio.run(main())


def test_large_messages_are_received_where_they_belong(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what comes together with their heads; and none of it is counted twice or lost."""
    direct: list[int] = []
    landed = Http2Server.landed

    def note(core: Http2Server[Any], piece: memoryview, now_s: float) -> Any:
        direct.append(len(piece))
        return landed(core, piece, now_s)

    monkeypatch.setattr(Http2Server, "landed", note)
    message = random.Random(1).randbytes(3_000_000)
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED) as channel:
        assert channel.unary_unary(UNARY)(message, timeout=PATIENCE_S) == message
        unary = sum(direct)
        assert 0 < unary <= len(message)
        answers = channel.stream_stream(EACH)(iter([message, b"small", message]), timeout=PATIENCE_S)
        assert list(answers) == [message, b"small", message]
        assert unary < sum(direct) <= 3 * len(message)


# ---- TLS ----


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def test_tls(authority: Authority) -> None:
    """Small, large, many at once, streams, and a client that speaks plainly."""
    with serving_in_thread([ImmediateEcho()], tls=authority.options) as port:
        with grpc.secure_channel(f"localhost:{port}", authority.credentials(), options=UNLIMITED) as channel:
            for size in (0, 100, 5 << 20):
                assert channel.unary_unary(UNARY)(message(size), timeout=PATIENCE_S) == message(size)
            with ThreadPoolExecutor(8) as pool:
                answers = pool.map(lambda index: channel.unary_unary(UNARY)(b"%d" % index), range(200))
                assert list(answers) == [b"%d" % index for index in range(200)]
            received = channel.stream_stream(EACH)(iter([message(100_000)] * 20), timeout=PATIENCE_S)
            assert list(received) == [message(100_000)] * 20
        with grpc.insecure_channel(f"localhost:{port}") as channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(UNARY)(b"x", timeout=PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


def test_mutual_tls(authority: Authority) -> None:
    """Only clients whose certificate the authority has signed."""
    tls = authority.mutual_options
    with serving_in_thread([Echo()], tls=tls) as port:
        with grpc.secure_channel(f"localhost:{port}", authority.credentials(authority.ca)) as channel:
            assert channel.unary_unary(UNARY)(b"x", timeout=PATIENCE_S) == b"x"
        for credentials in (authority.credentials(), authority.credentials(trustme.CA())):
            with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary(UNARY)(b"x", timeout=PATIENCE_S)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


def test_tls_without_http2(authority: Authority) -> None:
    """A client that does not agree on h2 is sent away."""
    with serving_in_thread([Echo()], tls=authority.options) as port:
        plain = socket.create_connection(("localhost", port), PATIENCE_S)
        with authority.context("http/1.1").wrap_socket(plain, server_hostname="localhost") as secure:
            said = b""
            with contextlib.suppress(ConnectionError):  # a reset, if the server has left before it had read that
                secure.sendall(b"GET / HTTP/1.1\r\n\r\n")
                said = secure.recv(100)
            assert said == b""


def test_small_windows_over_tls(authority: Authority) -> None:
    limits = Http2Limits(stream_window_bytes=65_535, connection_window_bytes=65_535)
    tls = authority.options
    with (
        serving_in_thread([Echo()], tls=tls, http2=limits) as port,
        grpc.secure_channel(f"localhost:{port}", authority.credentials(), options=UNLIMITED) as channel,
    ):
        sent = message(3 << 20)
        assert channel.unary_unary(UNARY)(sent, timeout=PATIENCE_S) == sent
