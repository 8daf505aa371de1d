"""Listening, accepting, and stopping."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import resource
import socket
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from http2_client import http2
from http2_peer import parse
from http_sockets import (
    LONG_S,
    PATIENCE_S,
    UNHURRIED,
    Responses,
    connect,
    connect_now,
    echo,
    read_to_end,
    reply,
    serving,
    tell,
    until,
)
from trio.testing import MockClock

from trireme.api.http.app import HttpService
from trireme.api.http.exchange import Exchange
from trireme.api.http2 import frames
from trireme.api.http2.frames import ErrorCode
from trireme.api.sockets.limits import Limits, raise_open_file_limit, within_open_files
from trireme.api.sockets.listener import BindError, listen, reserve
from trireme.api.sockets.roster import Connection, ConnectionPhase
from trireme.api.sockets.service import ServiceOptions
from trireme.api.sockets.transport import TlsOptions
from trireme.engine.admission.client_bytes import ClientBytes
from trireme.engine.errors import ErrorKind

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def service_at(*bind: str, reuse_port: bool = False, app: object = echo) -> HttpService:
    return HttpService(app, ServiceOptions(bind=bind, reuse_port=reuse_port))  # type: ignore[arg-type]


async def test_taken_port_is_one_clear_error() -> None:
    """docs/reference/command-line.md#start, with its text; nothing stays open."""
    async with serving(echo) as service:
        bind = f"127.0.0.1:{service.ports[0]}"
        other = service_at("127.0.0.1:0", bind)
        with pytest.raises(BindError) as caught:
            other.bind()
        assert caught.value.message == f"Socket '{bind}' already in use "
        assert caught.value.kind is ErrorKind.UNAVAILABLE
        assert other.ports == ()


async def test_port_is_taken_from_bind_on() -> None:
    """Not only once the service runs: two servers that start together cannot both believe that they have it."""
    first = service_at("127.0.0.1:0")
    first.bind()
    bind = f"127.0.0.1:{first.ports[0]}"
    with pytest.raises(BindError, match="already in use"):
        service_at(bind).bind()
    async with trio.open_nursery() as nursery:
        await nursery.start(first.serve)
        assert (await tell(first, b"GET / HTTP/1.0\r\n\r\n")).endswith(b"GET / ")
        first.close()
    second = service_at(bind)
    second.bind()
    second.close()
    await second.serve()  # which closes the port


@pytest.mark.parametrize(
    ("bind", "reason"),
    [("192.0.2.1:0", "Cannot assign"), ("no.such.host.invalid:0", "cannot be bound"), ("127.0.0.1:70000", "port")],
)
def test_other_bind_errors_name_the_address(bind: str, reason: str) -> None:
    with pytest.raises(BindError, match=reason) as caught:
        service_at(bind).bind()
    assert f"'{bind}'" in caught.value.message


async def test_reuse_port_only_when_asked() -> None:
    first, second = service_at("127.0.0.1:0", reuse_port=True), None
    async with trio.open_nursery() as nursery:
        (port,) = await nursery.start(first.serve)
        second = service_at(f"127.0.0.1:{port}", reuse_port=True)
        assert await nursery.start(second.serve) == (port,)
        first.close()
        second.close()


async def test_several_addresses_and_ipv6() -> None:
    service = service_at("127.0.0.1:0", "[::1]:0")
    async with trio.open_nursery() as nursery:
        ports = await nursery.start(service.serve)
        assert service.addresses == (("127.0.0.1", ports[0]), ("::1", ports[1]))
        for host, port in service.addresses:
            async with await trio.open_tcp_stream(host, port) as stream:
                await stream.send_all(GET)
                assert (await Responses(stream).next()).body == b"GET / "
        service.close()


async def test_listening_sockets_are_not_inherited() -> None:
    """A child process would hold the port after the server is gone."""
    service = service_at("127.0.0.1:0")
    service.bind()
    assert not service._sockets[0].get_inheritable()
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        service.close()


async def test_small_responses_are_not_delayed() -> None:
    """TCP_NODELAY (docs/reference/http.md#transport)."""
    flags: list[int] = []
    service: HttpService

    async def app(exchange: Exchange) -> None:
        (connection,) = service._roster._connections
        with socket.socket(fileno=os.dup(connection.fileno())) as copy:
            flags.append(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await reply(exchange)

    async with serving(app) as service:
        await tell(service, b"GET / HTTP/1.0\r\n\r\n")
    assert flags == [1]


async def test_a_connection_notes_when_it_came_though_there_was_none_before(
    leaping_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service's clock stands still while it has no connections. By that, the first one would have been silent for
    long, and be given up before its client has said anything."""
    async with serving(echo, limits=UNHURRIED) as service:
        roster, noted_s = service._roster, []
        add = roster.add
        monkeypatch.setattr(roster, "add", lambda new, address: noted_s.append(new.since_s) or add(new, address))
        for _ in range(2):
            leaping_clock.jump(1.0)
            now_s = trio.current_time()
            async with await connect(service) as stream:
                await stream.send_all(GET)
                assert (await Responses(stream).next()).status == 200
            assert noted_s.pop() >= now_s
            await until(lambda: not service.statistics().connections)


async def test_accepting_pauses_at_the_limit() -> None:
    """Who comes too many waits in the kernel's queue, and is served when a place is free."""
    async with serving(echo, limits=Limits(max_connections=2, address_share=1.0)) as service:
        first, second = await connect(service), await connect(service)
        await until(lambda: service.statistics().connections == 2)
        async with await connect(service) as third:
            await third.send_all(GET)
            await second.send_all(GET)
            assert (await Responses(second).next()).status == 200
            assert service.statistics().accepted == 2
            await first.aclose()
            assert (await Responses(third).next()).status == 200
        await second.aclose()
        assert service.statistics().peak_connections == 2


async def test_limit_holds_for_a_crowd() -> None:
    """Many who come at once are not let in together."""
    async with serving(echo, limits=Limits(max_connections=2, address_share=1.0)) as service:
        crowd = [connect_now(service) for _ in range(6)]
        for number, client in enumerate(crowd, 1):
            await until(lambda number=number: service.statistics().accepted >= number)
            client.close()
        await until(lambda: service.statistics().accepted == 6)
        assert service.statistics().peak_connections == 2


async def test_a_crowd_of_one_address_does_not_keep_another_waiting() -> None:
    """All of a crowd are accepted, and of another address the next one begins, before the crowd has begun."""
    begun: list[str] = []

    class Noted(HttpService):
        def connection(self, transport: Any, client: Any, roster: Any) -> Any:
            begun.append(client[0])
            return super().connection(transport, client, roster)

    service = Noted(echo, ServiceOptions(bind=("127.0.0.1:0",)))
    service.bind()
    with contextlib.ExitStack() as stack:
        (port,) = service.ports
        for _ in range(41):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)))
        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            await until(lambda: len(begun) == 42)
            service.close()
    assert begun.index("127.0.0.2") < 20


@pytest.mark.filterwarnings("error::ResourceWarning")
async def test_clients_that_have_not_begun_are_closed_at_the_end() -> None:
    gc.collect()  # nothing that earlier tests have left is to be found here
    service = service_at("127.0.0.1:0")
    service.bind()
    with contextlib.ExitStack() as stack:
        port = service.ports[0]
        crowd = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(60)]
        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            await until(lambda: service.statistics().accepted >= 1)
            service.close()
        for client in crowd:
            client.settimeout(PATIENCE_S)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""


@pytest.mark.parametrize("secure", [False, True])
async def test_clients_that_are_gone_before_they_are_accepted(secure: bool, tmp_path: Path) -> None:
    async with serving(echo, tls=self_signed(tmp_path) if secure else None) as service:
        for _ in range(5):
            client = connect_now(service)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset, not end of stream
            client.close()
        await until(lambda: service.statistics().accepted == 5)
        await until(lambda: service.statistics().connections == 0)


def self_signed(folder: Path) -> TlsOptions:
    issued = trustme.CA().issue_cert("localhost")
    options = TlsOptions(folder / "server.pem", folder / "server.key")
    issued.cert_chain_pems[0].write_to_path(options.certificate)
    issued.private_key_pem.write_to_path(options.key)
    return options


async def test_running_out_of_files_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    """Accepting pauses, says so once, and goes on when there are files again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(echo) as service:
        gc.collect()  # nothing that earlier tests have left is to be closed meanwhile
        with connect_now(service) as client, caplog.at_level(logging.ERROR):
            lowest_free = os.dup(0)
            os.close(lowest_free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
            try:
                await until(lambda: service.statistics().accept_failures >= 3)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            client.sendall(GET)
            client.setblocking(False)
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(client))
            assert (await Responses(stream).next()).status == 200
    assert [record.getMessage() for record in caplog.records if "Too many open files" in record.getMessage()] != []
    assert len(caplog.records) == 1


def test_open_file_limit_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        assert raise_open_file_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_draining_answers_what_is_asked_and_drops_new_ones(caplog: pytest.LogCaptureFixture) -> None:
    """Idle connections close at once, new ones without a word. What is asked is answered, and its connection closes."""
    started, go = trio.Event(), trio.Event()

    async def app(exchange: Exchange) -> None:
        started.set()
        await go.wait()
        await echo(exchange)

    async with serving(app) as service, await connect(service) as idle, await connect(service) as busy:
        await busy.send_all(GET)
        await started.wait()
        await until(lambda: service.statistics().connections == 2)
        left: list[float] = []

        async def drain() -> None:
            left.append(await service.drain(30))

        with caplog.at_level(logging.INFO):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain)
                assert await read_to_end(idle) == b""
                assert await tell(service) == b""
                assert await tell(service, GET) == b""
                assert left == []
                go.set()
                response = await Responses(busy).next()
                assert (response.body, (b"Connection", b"close") in response.headers) == (b"GET / ", True)
                assert await read_to_end(busy) == b""
        assert 0 < left[0] <= 30
        assert service.statistics().dropped == 2
        assert "Timeout 30: Found 2 HTTP service connections" in caplog.text


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GET])
async def test_idle_clients_do_not_hold_up_the_end(sent: bytes, leaping_clock: MockClock) -> None:
    """They are gone at once. One that has begun to ask and does not go on gets a little time."""
    half = sent == b"GET / HT"
    limits = dataclasses.replace(UNHURRIED, linger_timeout_s=LONG_S if half else 10 * PATIENCE_S)
    async with serving(echo, limits=limits) as service, await connect(service) as stream:
        await stream.send_all(sent)
        if sent == GET:
            assert (await Responses(stream).next()).status == 200
        phase = ConnectionPhase.HEAD if half else ConnectionPhase.IDLE
        await until(lambda: any(each.phase is phase for each in service._roster._connections))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.drain, 3 * LONG_S)
            if half:
                await until(lambda: not service.statistics().accepting)
                leaping_clock.jump(LONG_S)
                assert (await Responses(stream).next()).status == 408
                await stream.aclose()  # else it lingers
            else:
                assert await read_to_end(stream) == b""
        assert service.statistics().connections == 0


async def test_idle_connections_are_reaped(leaping_clock: MockClock) -> None:
    limits = dataclasses.replace(UNHURRIED, idle_timeout_s=LONG_S)
    async with serving(echo, limits=limits) as service, http2(service) as second, await connect(service) as first:
        for _ in range(2):
            await first.send_all(GET)
            assert (await Responses(first).next()).status == 200
            assert (await second.ask("GET", "/")).status == 200
            leaping_clock.jump(LONG_S - 1)
        leaping_clock.jump(2)
        assert await read_to_end(first) == b""
        last = parse(await read_to_end(second.stream))
        assert [frame.kind for frame in last][:2] == [frames.GOAWAY, frames.PING]
        assert {frame.code for frame in last if frame.kind == frames.GOAWAY} == {ErrorCode.NO_ERROR}


async def test_probe_gets_in_from_an_address_that_holds_what_it_may() -> None:
    """In place of the connection that has been idle for longest. A busy one is left alone."""
    async with serving(echo, limits=Limits(max_connections=8)) as service:
        held = [await connect(service) for _ in range(4)]
        await until(lambda: service.statistics().connections == 4)
        async with await connect(service) as probe:
            await probe.send_all(GET)
            assert (await Responses(probe).next()).status == 200
            ended = 0
            async with trio.open_nursery() as nursery:

                async def count(stream: trio.SocketStream) -> None:
                    nonlocal ended
                    await read_to_end(stream)
                    ended += 1

                for stream in held:
                    nursery.start_soon(count, stream)
                await until(lambda: ended == 1)
                nursery.cancel_scope.cancel()
        assert service.statistics().evicted == 1
        for stream in held:
            await trio.aclose_forcefully(stream)


async def test_address_whose_connections_are_all_busy_is_refused() -> None:
    go = trio.Event()

    async def app(exchange: Exchange) -> None:
        await go.wait()
        await echo(exchange)

    async with serving(app, limits=Limits(max_connections=4)) as service:
        async with await connect(service) as first, await connect(service) as second:
            for stream in (first, second):
                await stream.send_all(GET)
            await until(lambda: service.statistics().requests == 2)
            assert await tell(service, GET) == b""
            go.set()
            for stream in (first, second):
                assert (await Responses(stream).next()).status == 200
        assert (service.statistics().refused, service.statistics().evicted) == (1, 0)


def test_connections_are_bounded_by_open_files() -> None:
    """Half of the files: other services and models need some, too."""
    limits = Limits()
    assert within_open_files(limits, -1) is limits
    assert within_open_files(limits, 1 << 20) is limits
    assert within_open_files(limits, 1000).max_connections == 500
    assert within_open_files(limits, 1).max_connections == 1


class IdleConnection(Connection):
    """Never goes away."""

    def __init__(self) -> None:
        self.phase = ConnectionPhase.IDLE
        self.since_s = 0.0

    async def run(self) -> None:
        raise AssertionError("only a listener runs connections")

    def fileno(self) -> int:
        return -1

    def time_out(self) -> None:
        pass

    abort = go_away = retire = time_out

    def make_way(self, account: ClientBytes) -> bool:
        return False


async def test_draining_ends_with_its_budget(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """One line a second (docs/reference/command-line.md#shutdown)."""
    service = service_at("127.0.0.1:0")
    service._roster.add(IdleConnection())
    started_s = trio.current_time()
    with caplog.at_level(logging.INFO):
        assert await service.drain(3) == 0
    assert trio.current_time() - started_s == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"Timeout {seconds}: Found 1 HTTP service connections" for seconds in (3, 2, 1)
    ]
    assert await service.drain(0) == 0
    assert trio.current_time() - started_s == 3


async def test_draining_without_connections_takes_no_time() -> None:
    async with serving(echo) as service:
        assert await service.drain(30) == 30
        assert await tell(service) == b""


async def test_stop_cancels_what_is_left() -> None:
    cancelled = trio.Event()
    started = trio.Event()

    async def app(exchange: Exchange) -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    service = service_at("127.0.0.1:0", app=app)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        async with await connect(service) as busy, await connect(service) as idle:
            await busy.send_all(GET)
            await started.wait()
            assert await service.stop(0) == 0
            assert cancelled.is_set()
            assert await read_to_end(busy) == b""
            assert await read_to_end(idle) == b""
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream("127.0.0.1", service.ports[0] if service.ports else 1)


async def test_statistics() -> None:
    async with serving(echo) as service:
        await tell(service, b"GET / HTTP/1.0\r\n\r\n")
        await until(lambda: service.statistics().connections == 0)
        statistics = service.statistics()
        assert (statistics.accepted, statistics.requests, statistics.accepting) == (1, 1, True)


def test_a_reserved_port_is_for_sockets_that_share_it() -> None:
    held, bind = reserve("127.0.0.1:0", shared=False)
    with held:
        with pytest.raises(BindError):
            reserve(f"256.0.0.1:{bind.rpartition(':')[2]}", shared=True)
        with listen(bind, reuse_port=True, backlog=1) as one, listen(bind, reuse_port=True, backlog=1):
            with pytest.raises(BindError):
                reserve(bind, shared=False)  # another server does not get a part of the connections
            with socket.create_connection(one.getsockname()):
                pass
