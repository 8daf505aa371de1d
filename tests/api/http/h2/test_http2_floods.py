"""What it costs who floods the HTTP port with HTTP/2: a connection. Others are served meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import count, islice, repeat

import pytest
import trio
from http2_client import http2
from http2_peer import parse
from http_sockets import connect, echo, read_to_end, serving, until

from trireme.api.http2 import frames
from trireme.api.http2.frames import ErrorCode
from trireme.api.http2.headers import encode_block
from trireme.api.http2.limits import Http2Limits
from trireme.api.sockets.transport import PlainTransport

TARGET = {":method": "GET", ":path": "/", ":scheme": "http", ":authority": "x"}


def opening(stream_id: int, *fields: tuple[bytes, bytes], end: bool = True) -> bytes:
    block = encode_block([*((name.encode(), value.encode()) for name, value in TARGET.items()), *fields])
    return frames.frame(frames.HEADERS, frames.END_HEADERS | (frames.END_STREAM if end else 0), stream_id, block)


def rapid_resets() -> Iterator[bytes]:
    for stream_id in count(1, 2):
        yield opening(stream_id) + frames.rst_stream(stream_id, ErrorCode.CANCEL)


def crumbs() -> Iterator[bytes]:
    yield opening(1, end=False)
    yield from repeat(frames.frame(frames.DATA, 0, 1, b"x"))


def continuations() -> Iterator[bytes]:
    yield frames.frame(frames.HEADERS, 0, 1, b"")
    yield from repeat(frames.frame(frames.CONTINUATION, 0, 1, b"\x88"))


def priority_chain() -> Iterator[bytes]:
    """Each stream depends on the one before it: who keeps the tree walks it, and h2's library recursively."""
    for stream_id in count(1, 2):
        yield frames.frame(frames.PRIORITY, 0, stream_id + 2, frames.WORD.pack(stream_id) + b"\x0f")


def empty_data() -> Iterator[bytes]:
    yield opening(1, end=False)
    yield from repeat(frames.frame(frames.DATA, 0, 1))


FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "resets": rapid_resets,
    "settings": lambda: repeat(frames.settings(())),
    "pings": lambda: repeat(frames.ping(b"12345678")),
    "empty data": empty_data,
    "crumbs": crumbs,
    "continuations": continuations,
    "priorities": priority_chain,
    "unknown frames": lambda: repeat(frames.frame(0xBE, 0, 0)),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_flood_ends_its_connection_and_no_other_suffers(flood: str, caplog: pytest.LogCaptureFixture) -> None:
    said = FLOODS[flood]()
    async with serving(echo) as service, http2(service) as other:
        async with await connect(service) as stream, trio.open_nursery() as nursery:
            heard: list[bytes] = []

            async def hear() -> None:
                heard.append(await read_to_end(stream))

            nursery.start_soon(hear)
            await stream.send_all(frames.PREFACE + frames.settings(()))
            with contextlib.suppress(trio.BrokenResourceError):
                while not heard:
                    await stream.send_all(b"".join(islice(said, 100)))
                    assert (await other.ask("GET", "/v2")).status == 200
            await until(lambda: bool(heard))
        last = parse(heard[0])[-1]
        assert (last.kind, last.code) == (frames.GOAWAY, ErrorCode.ENHANCE_YOUR_CALM)
        await until(lambda: service.statistics().connections == 1)
        assert (await other.ask("GET", "/v2")).status == 200
    assert not caplog.records


async def test_more_than_is_taken_in_at_once_in_the_first_packet() -> None:
    """What is left of it is not forgotten."""
    number = 2 * Http2Limits().frames_at_once
    async with serving(echo) as service, await connect(service) as stream:
        said = frames.window_update(0, 1) * number + opening(1)
        await stream.send_all(frames.PREFACE + frames.settings(()) + said)
        received = b""
        while b"GET / " not in received:
            received += await stream.receive_some()
        await stream.send_all(said[: -len(opening(1))] + opening(3))
        while received.count(b"GET / ") < 2:
            received += await stream.receive_some()


@pytest.mark.parametrize("kind", [frames.DATA, frames.HEADERS, frames.SETTINGS, frames.PING, 0xBE])
async def test_frame_that_is_too_large_is_refused_by_its_header(kind: int) -> None:
    """Nothing of its payload has to come."""
    async with serving(echo) as service, await connect(service) as stream:
        head = frames.FRAME_HEADER.pack((1 << 20) << 8 | kind, 0, 0 if kind == frames.SETTINGS else 1)
        await stream.send_all(frames.PREFACE + frames.settings(()) + head)
        last = parse(await read_to_end(stream))[-1]
        assert (last.kind, last.code) == (frames.GOAWAY, ErrorCode.FRAME_SIZE_ERROR)


async def test_who_sends_on_after_the_last_word_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that never wait, for as long as the goodbye takes."""
    reads = turns = 0

    async def receive_at_once(_transport: PlainTransport, max_bytes: int) -> bytes:
        nonlocal reads
        reads += 1
        return bytes(max_bytes) if reads <= 200 else b""

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 0 < reads <= 200

    async with serving(echo) as service, trio.open_nursery() as nursery, http2(service) as client:
        assert (await client.ask("GET", "/")).status == 200
        monkeypatch.setattr(PlainTransport, "receive", receive_at_once)
        nursery.start_soon(count)
        await client.stream.send_all(bytes(9))  # DATA on the connection
        await until(lambda: service.statistics().connections == 0)
        nursery.cancel_scope.cancel()
    assert reads == 201
    assert turns >= 100
