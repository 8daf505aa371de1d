"""Whatever a client sends, and whenever it goes: an answer, or an orderly end, and nothing is left."""

from __future__ import annotations

import gzip
import socket
import struct
from collections.abc import Sequence

import pytest
import trio
from grpc_echo import SERVICE, ImmediateEcho, serving
from grpc_peer import connect, frame
from http2_held import watch
from http_sockets import until
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from trireme.api.http2 import frames
from trireme.api.http2.frames import ErrorCode
from trireme.api.http2.headers import encode_block

PATHS = [SERVICE + name for name in ("Unary", "Split", "Join", "Each")]


def conversation() -> bytes:
    """A greeting, a unary call that is held, one that is answered, a stream with two messages, and a reset."""
    head = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x")]

    def request(stream_id: int, method: str, *extra: tuple[bytes, bytes]) -> bytes:
        block = encode_block([*head, (b":path", (SERVICE + method).encode()), (b"te", b"trailers"), *extra])
        return frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, block)

    def data(stream_id: int, message: bytes, flags: int = 0) -> bytes:
        return frames.frame(frames.DATA, flags, stream_id, frame(message))

    return b"".join(
        (
            frames.PREFACE,
            frames.settings(()),
            request(1, "Unary", (b"hold", b"yes"), (b"grpc-timeout", b"1H")),
            data(1, b"held", frames.END_STREAM),
            request(3, "Unary"),
            data(3, b"answered", frames.END_STREAM),
            request(5, "Each", (b"grpc-timeout", b"1H")),
            data(5, b"one"),
            data(5, b"two"),
            request(7, "Each"),
            frames.rst_stream(7, ErrorCode.CANCEL),
            data(5, b"three", frames.END_STREAM),
        )
    )


@pytest.mark.parametrize("brutal", [False, True])
async def test_clients_that_are_lost_at_every_stage(brutal: bool) -> None:
    """After any number of bytes, by FIN or by RST: calls are cancelled, nothing stays."""
    echo = ImmediateEcho()
    sent = conversation()
    async with serving([echo]) as service:
        for size in range(0, len(sent) + 1, 3):
            stream = await trio.open_tcp_stream("127.0.0.1", service.ports[0])
            await stream.send_all(sent[:size])
            if brutal:
                await wait_all_tasks_blocked()
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await trio.aclose_forcefully(stream)
        await until(lambda: service.statistics().accepted == len(range(0, len(sent) + 1, 3)))
        await until(lambda: service.statistics().connections == 0)
        assert (watch(service).calls, watch(service).deadlines) == (0, 0)
        assert echo.cancelled == len(echo.begun) > 10
        async with await connect(service) as peer:
            assert (await peer.call(PATHS[0], frame(b"x"))).status == "0"


BODIES = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.binary(max_size=30).map(frame),
        st.binary(max_size=30).map(lambda message: frame(message, compressed=True)),
        st.binary(max_size=30).map(lambda message: frame(gzip.compress(message), compressed=True)),
    ),
    max_size=5,
)
ENCODINGS = st.sampled_from(["identity", "gzip", "deflate"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), BODIES, ENCODINGS), min_size=1, max_size=8))
def test_every_request_gets_a_status(calls: Sequence[tuple[str, list[bytes], str]]) -> None:
    """Requests of messages, half messages and rubbish, on one connection at the same time."""

    async def main() -> None:
        async with serving([ImmediateEcho()], max_message_bytes=1000) as service, await connect(service) as peer:
            streams = []
            for path, pieces, encoding in calls:
                stream_id = peer.start(path, None, ("grpc-encoding", encoding), end=False)
                for piece in pieces:
                    peer.h2.send_data(stream_id, piece)
                peer.h2.end_stream(stream_id)
                streams.append(stream_id)
            for stream_id in streams:
                received = await peer.finish(stream_id)
                assert received.status in {"0", "8", "13"}
                assert received.ended
            assert not peer.goaways
            assert watch(service).calls == 0

    trio.run(main)
