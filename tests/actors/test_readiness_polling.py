"""Polling before sleeping (rule 6 of `socket_readiness`): what it finds, and for whom it makes way."""

from __future__ import annotations

import math
import select
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from trireme.actors.socket_readiness import Readiness
from trireme.engine.clock import SystemClock

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll")

POLL_S = 10e-6
STEP_S = 1e-6


class LookingClock(SystemClock):
    """Goes on by `STEP_S` at each reading, before which `look` is called: with the number of readings before."""

    def __init__(self, look: Callable[[int], object]) -> None:
        super().__init__(self._read)
        self.readings = 0
        self._look = look

    def _read(self) -> float:
        self.readings += 1
        self._look(self.readings)
        return self.readings * STEP_S


Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@asynccontextmanager
async def hearing(readiness: Readiness, ours: socket.socket, heard: list[bytes]) -> AsyncIterator[None]:
    """What comes is noted."""

    def hear() -> bool:
        heard.append(ours.recv(100))
        return True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(readiness.keep_waking)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(readiness.keep_hearing, ours.fileno(), hear)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def until_heard(count: int, heard: list[bytes]) -> None:
    with trio.fail_after(60):
        while len(heard) < count:
            await trio.testing.wait_all_tasks_blocked()


async def test_what_comes_while_it_polls_is_heard_before_it_sleeps(pair: Pair) -> None:
    ours, theirs = pair
    heard: list[bytes] = []
    seen: list[int] = []

    def look(reading: int) -> None:
        seen.append(len(heard))
        if reading == 3:
            theirs.send(b"second")

    clock = LookingClock(look)
    readiness = Readiness(poll_s=POLL_S, clock=clock)
    async with hearing(readiness, ours, heard):
        theirs.send(b"first")
        await until_heard(1, heard)
    assert heard == [b"first", b"second"]
    assert seen[:4] == [1, 1, 1, 1]
    assert seen[4] == 2  # the next poll follows what the first one has found
    assert clock.readings <= 4 + 1 + POLL_S / STEP_S + 1


async def test_a_poll_in_vain_ends_at_its_limit_and_the_next_waits_are_not_polled(pair: Pair) -> None:
    ours, theirs = pair
    heard: list[bytes] = []
    clock = LookingClock(lambda reading: None)
    readiness = Readiness(poll_s=POLL_S, clock=clock)
    async with hearing(readiness, ours, heard):
        theirs.send(b"1")
        await until_heard(1, heard)
        after_one = clock.readings
        theirs.send(b"2")
        await until_heard(2, heard)
    assert POLL_S / STEP_S <= after_one <= POLL_S / STEP_S + 2
    assert clock.readings == after_one


async def test_without_a_limit_it_sleeps_at_once(pair: Pair) -> None:
    ours, theirs = pair
    heard: list[bytes] = []
    clock = LookingClock(lambda reading: None)
    async with hearing(Readiness(clock=clock), ours, heard):
        theirs.send(b"1")
        await until_heard(1, heard)
    assert clock.readings == 0


@pytest.mark.parametrize("due", ["task", "deadline"])
async def test_it_does_not_poll_while_others_are_due(pair: Pair, due: str) -> None:
    ours, theirs = pair
    heard: list[bytes] = []
    clock = LookingClock(lambda reading: None)
    readiness = Readiness(poll_s=POLL_S, clock=clock)
    went_on = trio.Event()

    async def wait() -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await went_on.wait()

    scopes: list[trio.CancelScope] = []

    def hear() -> bool:
        heard.append(ours.recv(100))
        if due == "task":
            went_on.set()
        else:
            scopes[0].deadline = -math.inf
        return True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(readiness.keep_waking)
        nursery.start_soon(wait)
        nursery.start_soon(readiness.keep_hearing, ours.fileno(), hear)
        await trio.testing.wait_all_tasks_blocked()
        theirs.send(b"1")
        await until_heard(1, heard)
        nursery.cancel_scope.cancel()
    assert clock.readings == 0


async def test_a_call_by_a_thread_ends_a_poll(pair: Pair) -> None:
    ours, theirs = pair
    heard: list[bytes] = []
    called: list[int] = []

    def look(reading: int) -> None:
        if reading == 3:
            thread = threading.Thread(target=readiness.turn.call_from_thread, args=(called.append, 1))
            thread.start()
            thread.join()

    clock = LookingClock(look)
    readiness = Readiness(poll_s=POLL_S, clock=clock)
    async with hearing(readiness, ours, heard):
        theirs.send(b"1")
        await until_heard(1, heard)
        await trio.testing.wait_all_tasks_blocked()
    assert called == [1]
    assert clock.readings == 3


async def test_two_that_answer_each_other_do_not_keep_other_tasks_waiting(pair: Pair) -> None:
    """However long a poll would find something."""
    one, other = pair
    heard: list[int] = []
    passes = 0

    def echo(sock: socket.socket) -> bool:
        heard.append(passes)
        sock.send(sock.recv(1))
        return True

    async with trio.open_nursery() as nursery:
        readiness = Readiness(nursery.start_soon, poll_s=1)
        nursery.start_soon(readiness.keep_hearing, one.fileno(), lambda: echo(one))
        nursery.start_soon(readiness.keep_hearing, other.fileno(), lambda: echo(other))
        one.send(b"x")
        while len(heard) < 200:
            await trio.lowlevel.checkpoint()
            passes += 1
        nursery.cancel_scope.cancel()
    assert max(heard.count(each) for each in set(heard)) <= 2 * 16
