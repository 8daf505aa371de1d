"""Readiness of sockets: woken by data, by the end of the stream, not by anything else; and without epoll, too."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing
from http_sockets import until

from trireme.actors.actor import Recipient
from trireme.actors.socket_readiness import Readiness
from trireme.api.sockets.transport import PlainTransport

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A connected TCP pair: (ours, non-blocking; the client's)."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    ours.setblocking(False)
    with ours, client:
        yield ours, client


Waking = Callable[[], AbstractAsyncContextManager[Readiness]]


@pytest.fixture(params=[True, False], ids=["epoll", "trio"])
def waking(request: pytest.FixtureRequest) -> Waking:
    """Opens a `Readiness` that wakes; on either way of waiting."""

    @asynccontextmanager
    async def open_readiness() -> AsyncIterator[Readiness]:
        readiness = Readiness(use_epoll=request.param)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readiness.keep_waking)
            yield readiness
            nursery.cancel_scope.cancel()

    return open_readiness


async def test_data_that_came_before_and_data_that_comes_later_are_received(pair: Pair, waking: Waking) -> None:
    ours, client = pair
    client.sendall(b"early")
    async with waking() as readiness:
        transport = PlainTransport(ours, readiness)
        assert await transport.receive(100) == b"early"
        async with trio.open_nursery() as nursery:
            received: list[bytes] = []

            async def receive() -> None:
                received.append(await transport.receive(100))

            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            assert not received
            client.sendall(b"later")
        assert received == [b"later"]
        transport.close()


async def test_more_than_one_read_holds_is_received_in_pieces(pair: Pair, waking: Waking) -> None:
    ours, client = pair
    async with waking() as readiness:
        transport = PlainTransport(ours, readiness)
        client.sendall(b"0123456789")
        assert await transport.receive(4) == b"0123"
        assert await transport.receive(4) == b"4567"
        assert await transport.receive(4) == b"89"
        transport.close()


async def test_the_end_that_comes_together_with_data_is_seen_after_it(pair: Pair, waking: Waking) -> None:
    ours, client = pair
    client.sendall(b"goodbye")
    client.shutdown(socket.SHUT_WR)
    async with waking() as readiness:
        transport = PlainTransport(ours, readiness)
        with trio.fail_after(20):
            assert await transport.receive(100) == b"goodbye"
            assert await transport.receive(100) == b""
        transport.close()


async def test_the_end_wakes_who_waits(pair: Pair, waking: Waking) -> None:
    ours, client = pair
    async with waking() as readiness:
        transport = PlainTransport(ours, readiness)
        received: list[bytes] = []
        async with trio.open_nursery() as nursery:

            async def receive() -> None:
                received.append(await transport.receive(100))

            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            client.close()
        assert received == [b""]
        transport.close()


async def test_a_cancelled_wait_loses_nothing(pair: Pair, waking: Waking) -> None:
    ours, client = pair
    async with waking() as readiness:
        transport = PlainTransport(ours, readiness)
        with trio.move_on_after(0) as scope:
            await transport.receive(100)
        assert scope.cancelled_caught
        client.sendall(b"still here")
        assert await transport.receive(100) == b"still here"
        transport.close()


async def test_two_sockets_do_not_share_what_they_read(pair: Pair, waking: Waking) -> None:
    ours, client = pair
    with socket.create_server(("127.0.0.1", 0)) as listening:
        other_client = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    other.setblocking(False)
    with other, other_client:
        async with waking() as readiness:
            first, second = PlainTransport(ours, readiness), PlainTransport(other, readiness)
            client.sendall(b"a" * 1000)
            other_client.sendall(b"b" * 1000)
            one = await first.receive(65_536)
            two = await second.receive(65_536)
            assert (set(one), set(two)) == (set(b"a"), set(b"b"))
            first.close()
            second.close()


async def test_a_listener_takes_in_what_comes_and_the_waiting_task_sleeps_on(pair: Pair) -> None:
    """It is woken for what the listener leaves, and for the end of the stream."""
    ours, client = pair
    readiness = Readiness()
    if not readiness.watch(ours).listens:
        pytest.skip("there is no epoll on this system, so nobody could call a listener")
    readiness.forget(ours.fileno())
    transport = PlainTransport(ours, readiness)
    heard: list[bytes] = []
    view = memoryview(bytearray(4))

    def listen() -> bool:
        count = transport.receive_now(view)
        heard.append(bytes(view[: max(0, count)]))
        return not transport.watch.ready

    transport.watch.listener = listen
    received: list[bytes] = []

    async def receive() -> None:
        while data := await transport.receive(100):
            received.append(data)
        received.append(b"")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(readiness.keep_waking)
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked(0.001)
        client.sendall(b"abc")
        await until(lambda: heard == [b"abc"])
        assert received == []
        client.sendall(b"defgh")
        await until(lambda: received == [b"h"])
        assert heard == [b"abc", b"defg"]
        client.shutdown(socket.SHUT_WR)
        await until(lambda: received == [b"h", b""])
        nursery.cancel_scope.cancel()


async def test_a_hearer_is_called_until_it_has_heard_enough(pair: Pair, waking: Waking) -> None:
    """It need not read all that has come: it is called again for the rest. What it raises ends its hearing."""
    ours, client = pair
    heard: list[bytes] = []

    def hear() -> bool:
        heard.append(ours.recv(2))
        return heard[-1] != b"ef"

    async with waking() as readiness:
        client.sendall(b"abcdef")
        with trio.fail_after(20):
            await readiness.keep_hearing(ours.fileno(), hear)
        assert heard == [b"ab", b"cd", b"ef"]

        def fail() -> bool:
            raise ValueError(ours.recv(10))

        client.sendall(b"bad")
        with trio.fail_after(20), pytest.raises(ValueError, match="bad"):
            await readiness.keep_hearing(ours.fileno(), fail)
        with trio.move_on_after(0.001) as scope:
            await readiness.keep_hearing(ours.fileno(), hear)
        assert scope.cancelled_caught
        assert repr(readiness) == "<Readiness of 0 sockets>"


async def test_what_listeners_cause_is_heard_in_the_same_turn_but_not_for_ever() -> None:
    """Two hearers that answer each other do not keep the event loop from anybody."""
    if not hasattr(select, "epoll"):
        pytest.skip("there is no epoll on this system")
    one, other = socket.socketpair()
    turns = 0
    heard: list[int] = []

    def echo(sock: socket.socket) -> bool:
        heard.append(turns)
        sock.send(sock.recv(1))
        return True

    with one, other:
        async with trio.open_nursery() as nursery:
            readiness = Readiness(nursery.start_soon)
            nursery.start_soon(readiness.keep_hearing, one.fileno(), lambda: echo(one))
            nursery.start_soon(readiness.keep_hearing, other.fileno(), lambda: echo(other))
            one.send(b"x")
            while len(heard) < 100:
                await trio.lowlevel.checkpoint()
                turns += 1
            nursery.cancel_scope.cancel()
    in_each = [heard.count(turn) for turn in set(heard)]
    assert max(in_each) > 1
    assert max(in_each) <= 2 * 16  # the counting task may have its turn before the waking one, and then after it


# Turns (rule 5)


def connected(stack: contextlib.ExitStack, count: int) -> list[Pair]:
    """So many pairs: (ours, non-blocking; the client's)."""
    listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=count))
    pairs = []
    for _ in range(count):
        client = stack.enter_context(socket.create_connection(listening.getsockname()))
        ours = stack.enter_context(listening.accept()[0])
        ours.setblocking(False)
        pairs.append((ours, client))
    return pairs


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll")
async def test_many_sockets_of_one_address_do_not_keep_another_waiting() -> None:
    heard: list[str] = []
    readiness = Readiness()
    with contextlib.ExitStack() as stack:
        pairs = connected(stack, 101)
        transports = []
        for number, (ours, client) in enumerate(pairs):
            address = "quiet" if number == 100 else "loud"
            transport = PlainTransport(ours, readiness, address)
            transports.append(transport)
            client.sendall(b"hello")

            def hear(transport: PlainTransport = transport, address: str = address) -> bool:
                heard.append(address)
                transport.receive_now(transport.buffer[:100])
                return True

            transport.watch.listener = hear
        async with trio.open_nursery() as nursery:
            for transport in transports:
                nursery.start_soon(transport.watch.wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(readiness.keep_waking)
            await until(lambda: len(heard) == 101)
            nursery.cancel_scope.cancel()
        for transport in transports:
            transport.close()
    assert heard.index("quiet") <= 1
    assert heard.count("loud") == 100


async def order_of_hearing(clients: int, rings: tuple[int, ...], *, ahead: bool, turns_away: bool = False) -> list[str]:
    """What happens, in order, when so many clients have said something, and a process does when some were heard.

    Args:
        rings: after how many clients.
        ahead: see `Readiness.keep_hearing`.
        turns_away: the clients' requests are.
    """
    seen: list[str] = []
    readiness = Readiness()
    turn = readiness.turn

    class Scheduler(Recipient):
        def take_turn(self) -> None:
            seen.append("dispatch")

        def fail(self, error: Exception) -> None:
            raise error

    scheduler = Scheduler()
    process, its_end = socket.socketpair()
    with contextlib.ExitStack() as stack:
        stack.enter_context(process)
        stack.enter_context(its_end)
        transports = []
        for ours, client in connected(stack, clients):
            transport = PlainTransport(ours, readiness, "one")
            transports.append(transport)
            client.sendall(b"hello")

            def hear(transport: PlainTransport = transport) -> bool:
                seen.append("client")
                transport.receive_now(transport.buffer[:100])
                if turns_away:
                    turn.turned_away_in = turn.number
                if seen.count("client") in rings:
                    its_end.sendall(b"x")
                return True

            transport.watch.listener = hear

        def hear_process() -> bool:
            process.recv(100)
            seen.append("process")
            turn.post(scheduler)
            return True

        async with trio.open_nursery() as nursery:
            for transport in transports:
                nursery.start_soon(transport.watch.wait)
            nursery.start_soon(partial(readiness.keep_hearing, process.fileno(), hear_process, ahead=ahead))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(readiness.keep_waking)
            await until(lambda: len(seen) == clients + 2 * len(rings))
            nursery.cancel_scope.cancel()
        for transport in transports:
            transport.close()
    return seen


TOLD = ["process", "dispatch"]


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll")
async def test_a_process_is_heard_between_two_clients_of_a_crowd_and_what_it_causes_comes_first() -> None:
    """A model is not to wait until many clients have been refused. A front end's link has none: each turn rings."""
    seen = await order_of_hearing(40, (3, 20), ahead=True)
    assert seen == ["client"] * 3 + TOLD + ["client"] * 17 + TOLD + ["client"] * 20
    seen = await order_of_hearing(40, (3, 20), ahead=False)
    assert seen[:8] == ["client"] * 8  # what the first of them have caused is one turn with what the last have


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll")
async def test_where_requests_are_turned_away_a_process_is_heard_between_a_few_clients_too() -> None:
    seen = await order_of_hearing(10, (4,), ahead=True, turns_away=True)
    assert seen == ["client"] * 4 + TOLD + ["client"] * 6
    seen = await order_of_hearing(10, (4,), ahead=True)
    assert seen == ["client"] * 10 + TOLD  # what all of them ask for may be in one batch


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll")
async def test_tasks_that_yield_go_on_few_at_a_time_and_addresses_in_turn() -> None:
    readiness = Readiness()
    order: list[str] = []
    passes: list[int] = []
    gone = 0

    async def work(address: str) -> None:
        nonlocal gone
        for _ in range(3):
            await readiness.yield_turn(address)
            order.append(address)
            gone += 1

    async def count_passes() -> None:
        nonlocal gone
        while True:
            await trio.lowlevel.checkpoint()
            passes.append(gone)
            gone = 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(readiness.keep_waking)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(count_passes)
        async with trio.open_nursery() as working:
            for _ in range(100):
                working.start_soon(work, "loud")
            working.start_soon(work, "quiet")
        nursery.cancel_scope.cancel()
    assert len(order) == 303
    assert [at for at, address in enumerate(order) if address == "quiet"][-1] < 60
    assert max(passes) <= 2 * 8  # those that found nobody before them, and those that waited


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll")
async def test_a_task_that_waits_for_its_turn_can_be_cancelled() -> None:
    readiness = Readiness()
    went_on = 0

    async def work() -> None:
        nonlocal went_on
        await readiness.yield_turn("one")
        went_on += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(readiness.keep_waking)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as working:
            for _ in range(50):
                working.start_soon(work)
            working.cancel_scope.cancel()
        assert went_on == 0
        async with trio.open_nursery() as working:
            for _ in range(50):
                working.start_soon(work)
        nursery.cancel_scope.cancel()
    assert went_on == 50


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll")
async def test_a_socket_closed_while_it_waits_for_its_turn_is_not_heard() -> None:
    heard: list[int] = []
    readiness = Readiness()
    with contextlib.ExitStack() as stack:
        transports: list[PlainTransport] = []
        for number, (ours, client) in enumerate(connected(stack, 40)):
            transport = PlainTransport(ours, readiness, "one")
            transports.append(transport)
            client.sendall(b"hello")

            def hear(number: int = number, transport: PlainTransport = transport) -> bool:
                heard.append(number)
                transport.receive_now(transport.buffer[:100])
                if number == 0:
                    for other in transports[1:]:
                        other.close()
                return True

            transport.watch.listener = hear
        async with trio.open_nursery() as nursery:
            for transport in transports:
                nursery.start_soon(transport.watch.wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(readiness.keep_waking)
            await until(lambda: heard == [0])
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        transports[0].close()
    assert heard == [0]
