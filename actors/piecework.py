"""Work on threads in pieces that hold the interpreter's lock: one piece at a time.

A thread that holds the lock for a piece of 0.3 ms costs the event loop no more than that. Four such threads that pass
it to each other cost far more: the loop may insist on its turn only if no other thread has got the lock for an
interval, so it waits for many pieces. So threads ask before each piece.

To sleep takes half as long as a piece. So a work that has the machine to itself seldom sleeps: only so often that other
threads, a model's for one, wait no longer than for a few pieces.

Rules:
 1. Of all works, one piece is done at a time.
 2. Works take turns, a piece each, in the order in which they have asked.
 3. Whose turn it is sleeps before its piece begins, unless the event loop waits for events (`LoopThread`), and a work
    has slept within the last millisecond. Meanwhile no thread has a piece to do, and the event loop has the
    interpreter's lock if it wants it.
 4. If the loop has something to do after that sleep, it sleeps on until the loop waits for events: each call to the
    system of a loop that answers a request lets go of the interpreter's lock, and a piece that began then would hold up
    the same request once more. This takes a tenth of the time at most, and a millisecond at once, since a loop that
    receives or sends large bodies always has something to do, and seldom needs the lock.
 5. A work whose caller has been cancelled ends when it asks for its next piece.
 6. What a work does before it asks for the first time is not a piece: work that never asks waits for no one.
"""

from __future__ import annotations

import math
import os
import platform
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar, TypeVarTuple

import trio

from ..engine.clock import Clock, SystemClock

T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")

_MOST_S = 0.001
_SPARE = 0.1
"""Of the time, rule 4."""
_EVENT_CALLS = {"x86_64": (b"232 ", b"281 "), "aarch64": (b"22 ",)}.get(platform.machine(), ())
"""The numbers of epoll_wait and epoll_pwait."""
_NUMBER_BYTES = 8


class LoopThread:
    """The event loop's thread, as others see it."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._users = 0

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Have `waits` know within this block, which the event loop enters and leaves."""
        if not self._users and _EVENT_CALLS:
            with suppress(OSError):  # a system that does not tell, or not this process
                self._descriptor = os.open(f"/proc/self/task/{threading.get_native_id()}/syscall", os.O_RDONLY)
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users and self._descriptor is not None:
                descriptor, self._descriptor = self._descriptor, None
                os.close(descriptor)

    def waits(self) -> bool | None:
        """Whether it waits for events; None if that is not known. One that has been woken, and has not got the
        interpreter's lock yet, does not. Takes 2 µs."""
        if self._descriptor is None:
            return None
        return os.pread(self._descriptor, _NUMBER_BYTES, 0).startswith(_EVENT_CALLS)


class Piecework:
    """Lets works on several threads take turns.

    Args:
        check: called by the thread of a work that asks for its next piece; what it raises ends the work (rule 5).
        clock: of rules 3 and 4.

    Attributes:
        loop: the event loop's thread (rules 3 and 4).
        waiting: threads that wait for their turn.
    """

    def __init__(
        self,
        check: Callable[[], object] = trio.from_thread.check_cancelled,
        clock: Clock | None = None,
        loop: LoopThread | None = None,
    ) -> None:
        self.loop = loop or LoopThread()
        self._check = check
        self._now_s = (clock or SystemClock()).now_s
        self._slept_s = -math.inf
        self._asked_s = self._now_s()
        self._spare_s = _MOST_S
        self._guard = threading.Lock()
        self._taken = False
        self._queue: deque[threading.Lock] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def do(self, function: Callable[[*_Ts], T], *args: *_Ts) -> T:
        """Call a function that asks for its pieces by `next_piece`; for threads that trio has started, which have a
        context of their own.

        Raises:
            trio.Cancelled: rule 5.
            Exception: what the function raises.
        """
        work = _Work(self)
        _WORK.set(work)
        try:
            return function(*args)
        finally:
            work.end()

    def take(self) -> None:
        """Wait for a turn."""
        self._ask(has_turn=False)

    def pass_on(self) -> None:
        """End a turn, and wait for the next one, behind those who wait already."""
        self._ask(has_turn=True)

    def give(self) -> None:
        """End a turn; the next one begins, if there is any."""
        with self._guard:
            self._begin_next()

    def _ask(self, has_turn: bool) -> None:
        with self._guard:
            if not self._queue and (has_turn or not self._taken):
                self._taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._queue.append(mine)
            if has_turn:
                self._begin_next()
        mine.acquire()  # released by the one before

    def _begin_next(self) -> None:
        if self._queue:
            self._queue.popleft().release()
        else:
            self._taken = False

    def check(self) -> None:
        """Rule 5."""
        self._check()

    def sleep(self, sleep: Callable[[], object]) -> None:
        """Rules 3 and 4; for whose turn it is."""
        asked_s = self._now_s()
        self._spare_s = min(self._spare_s + (asked_s - self._asked_s) * _SPARE, _MOST_S)
        self._asked_s = asked_s
        if self.loop.waits() and asked_s - self._slept_s < _MOST_S:
            return
        sleep()
        began_s = self._slept_s = self._now_s()
        while self.loop.waits() is False and self._slept_s - began_s < self._spare_s:
            sleep()
            self._slept_s = self._now_s()
        self._spare_s -= self._slept_s - began_s


class _Work:
    """One work, on its thread."""

    __slots__ = ("_has_turn", "_piecework")

    def __init__(self, piecework: Piecework) -> None:
        self._piecework = piecework
        self._has_turn = False

    def next_piece(self, sleep: Callable[[], object]) -> None:
        if self._has_turn:
            self._piecework.pass_on()
        else:
            self._piecework.take()
            self._has_turn = True
        self._piecework.check()
        self._piecework.sleep(sleep)

    def end(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._piecework.give()


_WORK: ContextVar[_Work | None] = ContextVar("work", default=None)


def next_piece(sleep: Callable[[], object]) -> None:
    """The calling thread has done a piece of its work, if it has begun, and is about to do the next one: wait for its
    turn, then sleep if need be (rule 3). A thread that is at no work of a `Piecework` only sleeps.

    Raises:
        trio.Cancelled: the work is not waited for any more.
    """
    work = _WORK.get()
    if work is None:
        sleep()
    else:
        work.next_piece(sleep)
