"""Works in pieces take turns: which thread works when, never how long it takes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

import pytest
import trio

from trireme.actors import piecework as piecework_module
from trireme.actors.offload import Offload
from trireme.actors.piecework import LoopThread, Piecework, next_piece
from trireme.engine.clock import SystemClock


class HandClock(SystemClock):
    def __init__(self) -> None:
        self.seconds = 0.0
        super().__init__(lambda: self.seconds)


def nothing() -> None:
    """Instead of a sleep, or of a look whether the work is still wanted."""


def wait_for(piecework: Piecework, waiting: int) -> None:
    while piecework.waiting < waiting:
        os.sched_yield()


def start(works: Sequence[Callable[[], None]], piecework: Piecework) -> list[threading.Thread]:
    """Works that ask for their first piece in this order, none of which gets it while the caller has the turn."""
    threads = []
    for work in works:
        threads.append(threading.Thread(target=work))
        threads[-1].start()
        wait_for(piecework, len(threads))
    return threads


def test_works_take_turns_and_sleep_before_each_piece_while_no_other_works() -> None:
    piecework = Piecework(check=nothing)
    seen: list[str] = []

    def pieces(name: str) -> None:
        for _ in range(4):
            next_piece(partial(seen.append, f"{name} sleeps"))
            seen.append(f"{name} works")

    piecework.take()
    works: list[Any] = [partial(piecework.do, pieces, name) for name in "ABC"]
    threads = start(works, piecework)
    assert seen == []
    piecework.give()
    for thread in threads:
        thread.join()
    assert seen == [f"{name} {does}" for _ in range(4) for name in "ABC" for does in ("sleeps", "works")]
    piecework.take()  # the last one has given its turn back


def test_a_work_that_fails_gives_its_turn_to_the_next() -> None:
    piecework = Piecework(check=nothing)
    seen: list[str] = []

    def fail() -> None:
        next_piece(nothing)
        seen.append("fails")
        raise OSError("broken")

    def failing() -> None:
        with pytest.raises(OSError, match="broken"):
            piecework.do(fail)

    def go_on() -> None:
        for _ in range(2):
            next_piece(nothing)
            seen.append("works")

    piecework.take()
    threads = start([failing, partial(piecework.do, go_on)], piecework)
    piecework.give()
    for thread in threads:
        thread.join()
    assert seen == ["fails", "works", "works"]


class FakeLoop(LoopThread):
    """Says what it is told to, one after the other, and in the end the last again and again."""

    def __init__(self, *waits: bool | None) -> None:
        super().__init__()
        self._said = iter(waits)
        self._last: bool | None = None

    def waits(self) -> bool | None:
        self._last = next(self._said, self._last)
        return self._last


def naps_before_pieces(loop: LoopThread, nap_s: float, pieces: int = 6) -> list[int]:
    """How often a work has slept before each of its pieces, which take 0.4 ms."""
    clock = HandClock()
    piecework = Piecework(check=nothing, clock=clock, loop=loop)
    naps = [0] * pieces

    def sleep(number: int) -> None:
        naps[number] += 1
        clock.seconds += nap_s

    def work() -> None:
        for number in range(pieces):
            next_piece(partial(sleep, number))
            clock.seconds += 0.0004

    copy_context().run(piecework.do, work)
    return naps


def test_a_work_sleeps_seldom_while_the_event_loop_waits_for_events() -> None:
    assert naps_before_pieces(FakeLoop(True), 0.0) == [1, 0, 0, 1, 0, 0]


def test_a_work_sleeps_once_before_each_piece_if_the_event_loop_cannot_be_observed() -> None:
    assert naps_before_pieces(FakeLoop(None), 0.0001) == [1] * 6


def test_no_piece_begins_before_the_event_loop_waits_for_events_again() -> None:
    """Looked at before the first sleep, and after each."""
    waits = FakeLoop(False, False, False, True, True, False, True)
    assert naps_before_pieces(waits, 0.0001, 3) == [3, 0, 1]


def test_an_event_loop_that_always_has_something_to_do_delays_works_by_a_tenth() -> None:
    """And one sleep for each piece, and a millisecond at first."""
    naps = naps_before_pieces(FakeLoop(False), 0.00025, 1_000)
    assert naps[0] == 5
    assert 0.08 <= (sum(naps) - 1_000) * 0.00025 / (1_000 * 0.0004 + sum(naps) * 0.00025) <= 0.11


@pytest.mark.skipif(
    not (piecework_module._EVENT_CALLS and os.path.exists("/proc/self/syscall")),
    reason="the system does not tell what a thread waits for",
)
async def test_threads_see_whether_the_event_loop_waits_for_events() -> None:
    offload = Offload()
    loop = offload.piecework.loop
    awake: list[bool | None] = []

    def work() -> None:
        while not loop.waits():  # it has nothing to do but to wait for this
            os.sched_yield()
        awake.append(trio.from_thread.run_sync(loop.waits))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(offload.in_pieces, work)
            await offload.in_pieces(work)
    assert awake == [False, False]
    assert await trio.to_thread.run_sync(loop.waits) is None  # without works, it is not looked at


def test_who_does_no_piecework_only_sleeps() -> None:
    naps: list[int] = []
    next_piece(lambda: naps.append(1))
    assert naps == [1]


async def test_a_work_that_is_not_waited_for_any_more_ends_before_its_next_piece() -> None:
    offload = Offload()
    began = trio.Event()
    done: list[int] = []

    def work() -> None:
        next_piece(nothing)
        trio.from_thread.run_sync(began.set)
        while True:
            next_piece(nothing)
            done.append(1)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(offload.in_pieces, work)
            await began.wait()
            nursery.cancel_scope.cancel()
        await offload.in_pieces(next_piece, nothing)  # the turn has been given back


async def test_a_work_that_waits_for_its_turn_does_no_piece_if_it_is_not_waited_for_any_more() -> None:
    offload = Offload()
    seen: list[str] = []

    def work() -> None:
        next_piece(nothing)
        seen.append("works")

    offload.piecework.take()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(offload.in_pieces, work)
            while not offload.piecework.waiting:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
            offload.piecework.give()
        await offload.in_pieces(next_piece, nothing)
    assert seen == []


async def test_work_that_has_no_pieces_waits_for_nobody() -> None:
    offload = Offload()
    offload.piecework.take()
    with trio.fail_after(60):
        assert await offload.in_pieces(lambda: 1) == 1
    offload.piecework.give()


async def test_a_work_waits_for_pieces_of_others_and_not_for_their_threads() -> None:
    """Five of them; four threads do other work."""
    offload = Offload()
    all_are_there = threading.Barrier(5)

    def work() -> None:
        all_are_there.wait(60)
        next_piece(nothing)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(offload.in_pieces, work)
