"""The service as a whole: shutting down, keepalive, many streams, and that nothing is left of what is over."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest
import trio
from authority import Authority
from grpc_echo import SERVICE, Echo, ImmediateEcho, serving
from grpc_peer import GrpcPeer, connect, frame
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from http2_held import watch
from http_sockets import LONG_S, QUICK, UNHURRIED, until
from trio.testing import MockClock, wait_all_tasks_blocked

from trireme.api.grpc.call_head import CallHead
from trireme.api.http2 import frames
from trireme.api.http2.frames import ErrorCode
from trireme.api.http2.limits import Http2Limits, KeepaliveOptions

GREETED = dataclasses.replace(QUICK, head_timeout_s=60.0)
"""Limits for clients that say who they are, on a busy machine, before they are silent."""
EACH = SERVICE + "Each"
UNARY = SERVICE + "Unary"


def count_tasks() -> int:
    """Every task of this run of trio."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    waiting = [root]
    count = 0
    while waiting:
        task = waiting.pop()
        count += 1
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return count


async def test_calls_are_shown_where_the_log_is_verbose(caplog: pytest.LogCaptureFixture) -> None:
    async with serving([Echo()]) as service, await connect(service) as peer:
        for level in (logging.INFO, logging.DEBUG):
            with caplog.at_level(level, "trireme"):
                await peer.call(UNARY, b"1")
    assert [message for message in caplog.messages if "request" in message] == [f"GRPC request: {UNARY}"]


async def test_first_client_after_a_long_silence_may_take_its_time(leaping_clock: MockClock) -> None:
    """Its time to say who it is begins when it connects, not when the clock was last read."""
    async with serving([Echo()], limits=UNHURRIED) as service:
        leaping_clock.jump(LONG_S + 1)
        async with await trio.open_tcp_stream("127.0.0.1", service.ports[0]) as stream:
            await stream.send_all(frames.PREFACE)
            await until(lambda: service.statistics().connections == 1)
            accepted_s = trio.current_time()
            await until(lambda: service._roster.now_s > accepted_s)  # it has been swept
            await stream.send_all(frames.settings(()))
            received = b""
            while frames.SETTINGS_ACK not in received:
                data = await stream.receive_some()
                assert data, "the server has closed the connection"
                received += data


# ---- shutting down ----


async def test_draining_finishes_open_calls() -> None:
    """Idle connections close at once. Open calls are finished; and a client that has read that there is an end opens no
    new ones. Who connects now is not served."""
    async with serving([Echo()]) as service, await connect(service) as idle, await connect(service) as busy:
        stream_id = busy.start(EACH, frame(b"1"), end=False)
        await busy.flush()
        while not busy.streams[stream_id].data:
            await busy.receive()
        async with trio.open_nursery() as nursery:
            left_s: list[float] = []

            async def drain() -> None:
                left_s.append(await service.drain(10))

            nursery.start_soon(drain)
            await idle.read_to_end()
            assert [code for code, _, _ in idle.goaways] == [ErrorCode.NO_ERROR] * 2
            busy.h2.send_data(stream_id, frame(b"2"), end_stream=True)
            received = await busy.finish(stream_id)
            assert (received.data, received.status) == (frame(b"1") + frame(b"2"), "0")
            await busy.read_to_end()
            assert busy.goaways[-1][1] == stream_id
        assert 0 < left_s[0] <= 10
        async with await connect(service) as late:
            await late.read_to_end()
            assert late.goaways == []


async def test_draining_over_tls(tmp_path: Path) -> None:
    """One connection with a call, one without, and one that has not come to an agreement."""
    authority = Authority(tmp_path)
    async with serving([Echo()], tls=authority.options) as service, trio.open_nursery() as nursery:
        peers = []
        for _ in range(2):
            plain = await trio.open_tcp_stream("127.0.0.1", service.ports[0])
            stream = trio.SSLStream(plain, authority.context("h2"), server_hostname="localhost", https_compatible=True)
            peers.append(await GrpcPeer(stream).__aenter__())
        undecided = await trio.open_tcp_stream("127.0.0.1", service.ports[0])
        idle, busy = peers
        stream_id = busy.start(EACH, end=False)
        await busy.flush()
        await until(lambda: watch(service).calls == 1 and service.statistics().connections == 3)
        nursery.start_soon(service.drain, 10)
        await idle.read_to_end()
        assert len(idle.goaways) == 2
        await undecided.aclose()
        busy.h2.send_data(stream_id, frame(b"x"), end_stream=True)
        assert (await busy.finish(stream_id)).data == frame(b"x")
        await busy.read_to_end()
        await until(lambda: service.statistics().connections == 0)


async def test_draining_gives_up_after_its_budget() -> None:
    """The call goes on until the service is closed."""
    async with serving([Echo()]) as service, await connect(service) as peer:
        peer.start(EACH, end=False)
        await peer.flush()
        await until(lambda: watch(service).calls == 1)
        assert await service.drain(0.05) == 0
        assert watch(service).calls == 1
        service.close()
        await peer.read_to_end()


async def test_calls_that_come_while_draining() -> None:
    """On their way before the client knew: served. After: refused in a way that lets the client try elsewhere."""
    async with serving([Echo()]) as service, await connect(service) as peer, trio.open_nursery() as nursery:
        first = peer.start(EACH, end=False)
        await peer.flush()
        await until(lambda: watch(service).calls == 1)
        nursery.start_soon(service.drain, 10)
        await until(lambda: not service._roster.accepting)
        on_its_way = peer.start(UNARY, frame(b"x"))
        assert (await peer.finish(on_its_way)).status == "0"
        while len(peer.goaways) < 2:
            await peer.receive()
        refused = await peer.call(UNARY, frame(b"x"))
        assert refused.reset == ErrorCode.REFUSED_STREAM
        peer.h2.end_stream(first)
        assert (await peer.finish(first)).status == "0"
        await peer.read_to_end()


async def test_closing_ends_everything_at_once() -> None:
    echo = ImmediateEcho()
    async with serving([echo]) as service, await connect(service) as peer:
        peer.start(EACH, end=False)
        peer.start(UNARY, frame(b"x"), ("hold", "yes"))
        await peer.flush()
        await until(lambda: watch(service).calls == 2)
        service.close()
        await peer.read_to_end()
        assert echo.cancelled == 1
        assert service.statistics().disconnects == 0


# ---- time ----


async def test_a_tls_client_that_never_reads_is_given_up(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with serving([Echo()], tls=authority.options, limits=GREETED) as service:
        plain = await trio.open_tcp_stream("127.0.0.1", service.ports[0])
        stream = trio.SSLStream(plain, authority.context("h2"), server_hostname="localhost", https_compatible=True)
        async with GrpcPeer(stream, initial_window=(1 << 31) - 1) as peer:
            peer.h2.increment_flow_control_window((1 << 31) - 1 - 65_535)
            stream_id = peer.start(SERVICE + "Split", end=False)
            peer.h2.send_data(stream_id, frame(bytes(900_000)), end_stream=True)
            await peer.flush()  # the answer has more bytes than the kernel holds: seven for each
            await until(lambda: service.statistics().connections == 0)
            assert service.statistics().timeouts == 1
            assert watch(service).calls == 0


async def test_silent_clients_are_asked_and_given_up() -> None:
    """Keepalive: a PING, and without an answer the end."""
    keepalive = KeepaliveOptions(time_s=0.02, timeout_s=0.05, permit_without_calls=True)
    limits = Http2Limits(keepalive=keepalive)
    async with serving([Echo()], http2=limits, limits=GREETED) as service, await connect(service) as peer:
        await until(lambda: service.statistics().connections == 0)
        await peer.read_to_end()
        assert peer.goaways[-1][2] == b"keepalive_timeout"


async def test_clients_that_answer_stay(leaping_clock: MockClock) -> None:
    keepalive = KeepaliveOptions(time_s=15.0, timeout_s=15.0, permit_without_calls=True, max_pings_without_data=0)
    async with serving([Echo()], http2=Http2Limits(keepalive=keepalive)) as service, await connect(service) as peer:
        leaping_clock.jump(15)
        await peer.receive()  # a PING, which is answered
        assert (await peer.call(UNARY, frame(b"x"))).status == "0"
        leaping_clock.jump(15)  # by now its answer must have come
        await trio.sleep(0.2)
        assert not peer.goaways
        assert (await peer.call(UNARY, frame(b"x"))).status == "0"


async def test_old_connections_are_wound_up(leaping_clock: MockClock) -> None:
    """With its calls finished in the grace that they have."""
    keepalive = KeepaliveOptions(max_connection_age_s=LONG_S)
    async with serving([Echo()], http2=Http2Limits(keepalive=keepalive)) as service, await connect(service) as peer:
        stream_id = peer.start(EACH, end=False)
        await peer.flush()
        await until(lambda: watch(service).calls == 1)
        leaping_clock.jump(LONG_S)
        while not peer.goaways:
            await peer.receive()
        assert peer.goaways[0][2] == b"max_age"
        peer.h2.end_stream(stream_id)
        assert (await peer.finish(stream_id)).status == "0"
        await peer.read_to_end()


# ---- guards ----


@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_guards_refuse_before_anything_happens(path: str) -> None:
    """Once a call, on its head."""
    seen: list[str] = []

    def guard(head: CallHead) -> None:
        seen.append(head.path)
        if head.metadata.get("key") != "secret":
            raise GRPCError(Status.UNAVAILABLE, "restricted")

    async with serving([ImmediateEcho()], guards=[guard]) as service, await connect(service) as peer:
        received = await peer.call(path, frame(b"x"), end=False)
        assert received.trailers_only
        assert (received.status, received.message) == ("14", "restricted")
        assert (await peer.call(path, frame(b"x"), ("key", "secret"))).status == "0"
        assert (await peer.call(path, frame(b"x"), ("key", "secret"), ("do", "nothing"))).status == "0"
        assert seen == [path] * 3


# ---- many ----


async def test_a_thousand_streams_of_which_a_hundred_are_cut() -> None:
    """On ten connections, one of which is lost: the others lose nothing, and no task is left."""
    async with serving([Echo()]) as service:
        await wait_all_tasks_blocked()
        before = count_tasks()
        peers = [await (await connect(service)).__aenter__() for _ in range(10)]
        streams = {peer: [peer.start(EACH, frame(b"%d" % index), end=False) for index in range(100)] for peer in peers}
        for peer in peers:
            await peer.flush()
        await until(lambda: watch(service).calls == 1000)
        assert count_tasks() >= before + 1000
        for peer in peers[5:]:  # fifty by resets, on five of the connections
            for stream_id in streams[peer][::10]:
                peer.h2.reset_stream(stream_id, ErrorCode.CANCEL)
                streams[peer].remove(stream_id)
            await peer.flush()
        lost = peers.pop(0)  # and fifty more, with as many that are answered before, by a connection that is lost
        for stream_id in streams[lost][50:]:
            lost.h2.end_stream(stream_id)
        await lost.flush()
        await until(lambda: watch(service).calls == 900)
        await trio.aclose_forcefully(lost.stream)
        await until(lambda: watch(service).calls == 850)
        for peer in peers:
            await check_streams(peer, streams[peer])
            await trio.aclose_forcefully(peer.stream)
        await until(lambda: service.statistics().connections == 0)
        assert service.statistics().disconnects == 100
        await wait_all_tasks_blocked()
        assert count_tasks() == before


async def check_streams(peer: GrpcPeer, streams: list[int]) -> None:
    """Each answers what it is sent, and ends well."""
    for stream_id in streams:
        peer.h2.send_data(stream_id, frame(b"last"), end_stream=True)
    await peer.flush()
    for stream_id in streams:
        received = await peer.finish(stream_id)
        assert received.status == "0"
        assert received.data == frame(b"%d" % (stream_id // 2)) + frame(b"last")


async def test_more_calls_than_streams_are_refused() -> None:
    """As HTTP/2 provides: the client may try again, and loses nothing."""
    async with (
        serving([Echo()], http2=Http2Limits(max_concurrent_streams=3)) as service,
        await connect(service) as peer,
    ):
        assert peer.h2.remote_settings.max_concurrent_streams == 3
        peer.h2.remote_settings.max_concurrent_streams = 100  # a client that does not care
        peer.h2.remote_settings.acknowledge()
        streams = [peer.start(EACH, end=False) for _ in range(3)]
        refused = await peer.call(EACH)
        assert refused.reset == ErrorCode.REFUSED_STREAM
        for stream_id in streams:
            peer.h2.end_stream(stream_id)
            assert (await peer.finish(stream_id)).status == "0"
        assert (await peer.call(EACH)).status == "0"


async def test_statistics() -> None:
    echo = ImmediateEcho()
    async with serving([echo]) as service, await connect(service) as peer:
        peer.start(EACH, frame(b"x"), end=False)
        peer.start(UNARY, frame(b"x"), ("hold", "yes"), ("grpc-timeout", "1H"))
        await peer.flush()
        await until(lambda: bool(echo.begun))
        await wait_all_tasks_blocked()
        statistics = watch(service)
        assert (statistics.calls, statistics.streams, statistics.deadlines) == (2, 2, 1)
        assert (statistics.pending_bytes, statistics.unconsumed_bytes, statistics.blocked) == (0, 0, 0)
        assert (service.statistics().requests, service.statistics().connections) == (2, 1)
