"""A gRPC service that drains: its connections are told to end, and lose nothing
(docs/reference/command-line.md#shutdown)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from authority import Authority
from grpc_echo import SERVICE, Echo, serving
from grpc_peer import GrpcPeer, connect, frame
from http_sockets import until

from trireme.api.grpc.service import GrpcService
from trireme.api.http2.frames import MAX_STREAM_ID, ErrorCode

EACH = SERVICE + "Each"
UNARY = SERVICE + "Unary"


async def asked(service: GrpcService, peer: GrpcPeer) -> GrpcPeer:
    assert (await peer.call(UNARY, frame(b"x"))).status == "0"
    return peer


async def test_idle_connections_leave_in_good_order() -> None:
    """First the highest number of all, then, when the client knows, that of its last call."""
    async with serving([Echo()]) as service, await connect(service) as peer:
        await asked(service, peer)
        service.begin_drain()
        await peer.read_to_end()
        assert [(code, last) for code, last, _ in peer.goaways] == [
            (ErrorCode.NO_ERROR, MAX_STREAM_ID),
            (ErrorCode.NO_ERROR, 1),
        ]
        assert service.statistics().accepting


async def test_calls_that_are_open_or_on_their_way_are_answered() -> None:
    """Long streams go on for as long as the service does."""
    async with serving([Echo()]) as service, await connect(service) as peer:
        stream = peer.start(EACH, frame(b"1"), end=False)
        await peer.flush()
        while not peer.streams[stream].data:
            await peer.receive()
        service.begin_drain()
        on_its_way = peer.start(UNARY, frame(b"x"))
        assert (await peer.finish(on_its_way)).status == "0"
        while len(peer.goaways) < 2:
            await peer.receive()
        assert peer.goaways[-1][1] == on_its_way
        peer.h2.send_data(stream, frame(b"2"), end_stream=True)
        received = await peer.finish(stream)
        assert (received.data, received.status) == (frame(b"1") + frame(b"2"), "0")
        await peer.read_to_end()


async def test_new_connections_are_served_and_then_leave() -> None:
    """Not before they have been asked: who gets GOAWAY in place of an answer would only connect again."""
    async with serving([Echo()]) as service:
        service.begin_drain()
        async with await connect(service) as peer:
            swept_s = service._roster.now_s
            await until(lambda: service._roster.now_s > swept_s)
            assert peer.goaways == []
            await asked(service, peer)
            await peer.read_to_end()
            assert [code for code, _, _ in peer.goaways] == [ErrorCode.NO_ERROR] * 2


@pytest.mark.parametrize("greeted", [True, False])
async def test_over_tls(tmp_path: Path, greeted: bool) -> None:
    """Also a connection that has not come to an agreement when the drain begins."""
    authority = Authority(tmp_path)
    async with serving([Echo()], tls=authority.options) as service:
        plain = await trio.open_tcp_stream("127.0.0.1", service.ports[0])
        stream = trio.SSLStream(plain, authority.context("h2"), server_hostname="localhost", https_compatible=True)
        await until(lambda: service.statistics().connections == 1)
        if not greeted:
            service.begin_drain()
        async with GrpcPeer(stream) as peer:
            await asked(service, peer)
            if greeted:
                service.begin_drain()
            await peer.read_to_end()
            assert [code for code, _, _ in peer.goaways] == [ErrorCode.NO_ERROR] * 2
