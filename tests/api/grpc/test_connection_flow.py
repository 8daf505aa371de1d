"""No client can make the server hold more than it should: not by not reading, nor by sending what was not asked for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from garbage import watched_garbage
from grpc_echo import SERVICE, ImmediateEcho, serving
from grpc_peer import connect, frame
from http2_held import watch
from http_sockets import LONG_S, QUICK, UNHURRIED, until
from trio.testing import MockClock, wait_all_tasks_blocked

from trireme.api.http2.frames import ErrorCode
from trireme.api.http2.limits import Http2Limits
from trireme.engine.admission.client_bytes import ClientAccounts, ClientBytes

EACH = SERVICE + "Each"
UNARY = SERVICE + "Unary"
MIB = 1 << 20


class Chatty(ImmediateEcho):
    """`Each` says a thousand messages of a mebibyte, whatever it hears; `Join` takes messages when it may.

    Attributes:
        sent: messages that have been accepted for sending.
        taken: messages that were taken.
        may_take: how many may be.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.taken = 0
        self.may_take = trio.Semaphore(0)

    async def each(self, stream: Any) -> None:
        for _ in range(1000):
            await stream.send_message(bytes(MIB))
            self.sent += 1

    async def join(self, stream: Any) -> None:
        size = 0
        while True:
            await self.may_take.acquire()
            message = await stream.recv_message()
            if message is None:
                break
            self.taken += 1
            size += len(message)
        await stream.send_message(b"%d" % size)


async def test_a_client_that_gives_no_window_costs_one_message() -> None:
    """It reads its socket, and says nothing about windows."""
    echo = Chatty()
    async with serving([echo]) as service, await connect(service, initial_window=100) as peer:
        peer.acknowledging = False
        stream_id = peer.start(EACH, end=False)
        await peer.flush()
        await until(lambda: watch(service).pending_bytes > 0)
        await wait_all_tasks_blocked()
        assert echo.sent == 1
        assert watch(service).pending_bytes == MIB + 5 - 100
        assert watch(service).blocked == 0
        peer.h2.increment_flow_control_window(3 * MIB, stream_id)
        peer.h2.increment_flow_control_window(3 * MIB)
        await peer.flush()
        while len(peer.streams[stream_id].data) < 3 * MIB + 100:
            await peer.receive()
        await wait_all_tasks_blocked()
        assert echo.sent == 4
        assert watch(service).pending_bytes <= MIB + 5


@pytest.mark.parametrize("path", [UNARY, SERVICE + "Join"])
async def test_small_messages_that_are_not_complete_count(path: str) -> None:
    """They take no lease, but they are in memory, as their streams are: until they are complete, or over."""
    async with serving([ImmediateEcho()]) as service, await connect(service) as peer:
        account = service._roster.accounts.unfinished
        message = frame(bytes(4000))
        streams = [peer.start(path, message[:3000], end=False) for _ in range(10)]
        await peer.flush()
        await until(lambda: account.held_bytes > 10 * 3000 + 10 * 1000)
        assert watch(service).unconsumed_bytes == 10 * 3000
        for stream_id in streams[1:]:
            peer.h2.send_data(stream_id, message[3000:], end_stream=True)
        peer.h2.reset_stream(streams[0])
        await peer.flush()
        while not all(peer.streams[stream_id].ended for stream_id in streams[1:]):
            await peer.receive()
        assert all(peer.streams[stream_id].status == "0" for stream_id in streams[1:])
        await until(lambda: account.held_bytes == 0)
        assert watch(service).unconsumed_bytes == 0


async def test_answers_to_unary_calls_that_are_not_read_are_given_up() -> None:
    """The calls are over; what they have answered is held back by the client's windows."""
    echo = ImmediateEcho()
    accounts = ClientAccounts(ClientBytes(1 << 30), ClientBytes(100_000))
    echo.client_accounts = accounts  # type: ignore[attr-defined]
    async with (
        serving([echo]) as service,
        await connect(service, initial_window=100) as deaf,
        await connect(service, initial_window=100) as other,
    ):
        ours = [deaf.start(UNARY, frame(bytes(15_000))) for _ in range(4)]
        await deaf.flush()
        await until(lambda: accounts.unread.held_bytes >= 4 * 14_900)
        assert watch(service).calls == 0
        theirs = [other.start(UNARY, frame(bytes(15_000))) for _ in range(3)]
        await other.flush()
        while not all(deaf.streams[stream_id].reset for stream_id in ours):
            await deaf.receive()
        assert {deaf.streams[stream_id].reset for stream_id in ours} == {ErrorCode.ENHANCE_YOUR_CALM}
        assert not any(other.streams[stream_id].reset for stream_id in theirs)
        assert accounts.unread.given_up == 1
        last = deaf.start(UNARY, frame(b"small"))
        await deaf.flush()
        while not deaf.streams[last].ended:
            await deaf.receive()
        assert deaf.streams[last].data == frame(b"small"), "its connection goes on"


async def test_a_client_that_does_not_read_costs_one_message_a_call() -> None:
    """It gives windows without end, and leaves its socket alone. The others are served."""
    echo = Chatty()
    async with serving([echo]) as service, await connect(service, initial_window=(1 << 31) - 1) as peer:
        peer.h2.increment_flow_control_window((1 << 31) - 1 - 65_535)
        for _ in range(3):
            peer.start(EACH, end=False)
        await peer.flush()
        await until(lambda: watch(service).blocked == 1)
        await wait_all_tasks_blocked(0.05)
        accepted = echo.sent
        assert accepted < 40  # what fits into the kernel's buffers, and a message a call
        async with await connect(service) as other:
            assert (await other.call(UNARY, frame(b"x"))).status == "0"
        peer.start(UNARY, frame(b"still read"))
        await peer.flush()
        await until(lambda: service.statistics().requests == 5)
        assert echo.sent == accepted
        while echo.sent == accepted:
            await peer.stream.receive_some(MIB)


@pytest.mark.parametrize("sends", [False, True])
async def test_a_client_that_never_reads_is_given_up(sends: bool) -> None:
    """Also one that goes on sending."""
    async with serving([Chatty()], limits=dataclasses.replace(QUICK, head_timeout_s=60.0)) as service:
        async with await connect(service, initial_window=(1 << 31) - 1) as peer:
            peer.h2.increment_flow_control_window((1 << 31) - 1 - 65_535)
            stream_id = peer.start(EACH, end=False)
            await peer.flush()
            with contextlib.suppress(trio.BrokenResourceError):
                while sends and service.statistics().connections:
                    peer.h2.send_data(stream_id, b"\0")
                    await peer.flush()
                    await trio.sleep(0.005)
            await until(lambda: service.statistics().connections == 0)
        assert service.statistics().timeouts == 1
        assert watch(service).calls == 0


async def test_a_client_that_reads_slowly_is_not_given_up(leaping_clock: MockClock) -> None:
    """Each read makes the limit begin anew."""
    echo = Chatty()
    async with (
        serving([echo], limits=UNHURRIED) as service,
        await connect(service, initial_window=(1 << 31) - 1) as peer,
    ):
        peer.h2.increment_flow_control_window((1 << 31) - 1 - 65_535)
        peer.start(EACH, end=False)
        await peer.flush()
        await until(lambda: watch(service).blocked == 1)
        for _ in range(5):
            before = echo.sent
            while echo.sent == before:
                await peer.stream.receive_some(MIB)
            leaping_clock.jump(0.4 * LONG_S)
            await trio.sleep(2 * UNHURRIED.sweep_interval_s)
        assert service.statistics().timeouts == 0


async def test_messages_that_are_not_taken_hold_the_client_back() -> None:
    """A window's worth waits in the server; then the client has to."""
    echo = Chatty()
    limits = Http2Limits(stream_window_bytes=100_000)
    message = frame(bytes(10_000))
    async with serving([echo], http2=limits) as service, await connect(service) as peer:
        stream_id = peer.start(SERVICE + "Join", end=False)
        for _ in range(9):
            peer.h2.send_data(stream_id, message)
        await peer.flush()
        await until(lambda: watch(service).unconsumed_bytes == 9 * len(message))
        window = peer.h2.local_flow_control_window(stream_id)
        assert window == 100_000 - 9 * len(message)
        for _ in range(8):  # half a window, and two messages
            echo.may_take.release()
        while peer.h2.local_flow_control_window(stream_id) == window:
            await peer.receive()
        await until(lambda: echo.taken == 8)
        assert watch(service).unconsumed_bytes == 2 * len(message)  # one is being worked on


async def test_a_message_larger_than_the_windows_arrives() -> None:
    """It is taken in as it comes, since a call waits for it."""
    echo = Chatty()
    limits = Http2Limits(stream_window_bytes=65_535, connection_window_bytes=65_535)
    body = frame(bytes(range(256)) * 4096)
    async with serving([echo], http2=limits) as service, await connect(service) as peer:
        for path in (UNARY, SERVICE + "Join"):
            for _ in range(2):
                echo.may_take.release()
            stream_id = peer.start(path, end=False)
            at = 0
            while at < len(body):
                window = min(peer.h2.local_flow_control_window(stream_id), peer.h2.max_outbound_frame_size)
                if window:
                    peer.h2.send_data(stream_id, body[at : at + window])
                    at += window
                    await peer.flush()
                else:
                    await peer.receive()
            peer.h2.end_stream(stream_id)
            received = await peer.finish(stream_id)
            assert received.status == "0"
            assert received.data == (body if path == UNARY else frame(b"%d" % MIB))
        assert watch(service).unconsumed_bytes == 0


async def test_a_handler_that_leaves_its_request_unread_costs_no_window() -> None:
    """What it has not taken is given back to the connection when the call ends."""
    limits = Http2Limits(connection_window_bytes=100_000)
    async with serving([ImmediateEcho()], http2=limits) as service, await connect(service) as peer:
        for _ in range(20):
            body = frame(bytes(30_000))
            while peer.h2.outbound_flow_control_window < len(body):
                await peer.receive()
            received = await peer.call(EACH, body, ("do", "fail"), ("text", "no"))
            assert received.status == "9"
        assert watch(service).unconsumed_bytes == 0


async def test_an_answer_of_many_frames() -> None:
    """More pieces than the kernel takes in one call: frames of 16 KiB for 64 MiB."""
    echo = ImmediateEcho()
    async with serving([echo]) as service, await connect(service, initial_window=(1 << 31) - 1) as peer:
        peer.h2.increment_flow_control_window((1 << 31) - 1 - 65_535)
        stream_id = peer.start(UNARY, frame(b"x"), ("hold", "yes"))
        await peer.flush()
        await until(lambda: bool(echo.begun))
        echo.begun[0].answer([bytes(64 * MIB)])
        size = 0
        peer.acknowledging = False
        while not peer.streams[stream_id].ended:
            await peer.receive()
            size += len(peer.streams[stream_id].data)
            peer.streams[stream_id].data = b""
        assert size == 64 * MIB + 5
        assert peer.streams[stream_id].status == "0"


async def test_a_busy_client_does_not_starve_the_others() -> None:
    """One that sends without a pause, as fast as it is served."""
    ignored = b"\0\0\x05\x02\0\0\0\0\1" + bytes(5)  # PRIORITY

    async def flood(stream: trio.SocketStream) -> None:
        while True:
            await stream.send_all(ignored * 100_000)

    async with serving([ImmediateEcho()]) as service, await connect(service) as busy, trio.open_nursery() as nursery:
        nursery.start_soon(flood, busy.stream)
        async with await connect(service) as other:
            for _ in range(5):
                assert (await other.call(UNARY, frame(b"x"))).status == "0"
        nursery.cancel_scope.cancel()


@pytest.fixture
def garbage() -> Iterator[Callable[[], list[object]]]:
    with watched_garbage() as find:
        yield find


async def test_calls_and_connections_leave_no_garbage(garbage: Callable[[], list[object]]) -> None:
    """Nothing of them waits for the garbage collector, which hardly ever runs in a server."""
    echo = ImmediateEcho()
    async with serving([echo]) as service:
        async with await connect(service) as peer:
            for path in (UNARY, EACH):
                for body in (frame(b"x"), frame(b"x", compressed=True), b""):
                    await peer.call(path, body, ("grpc-timeout", "1H"))
                await peer.call(path, frame(b"x"), ("do", "fail"), ("text", "no"))
                await peer.call(path, frame(b"x"), ("hold", "yes"), ("grpc-timeout", "5m"), end=False)
            stream_id = peer.start(UNARY, frame(b"x"), ("hold", "yes"))
            peer.h2.reset_stream(stream_id)
            assert (await peer.call(EACH, frame(b"x"))).status == "0"
            echo.begun.clear()
            assert garbage() == []
        await until(lambda: service.statistics().connections == 0)
        assert garbage() == []
