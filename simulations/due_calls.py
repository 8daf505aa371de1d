"""Calls that clients of a simulation make at their times, without a task that sleeps in between."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import trio

from .clock import JumpingClock


class DueCalls:
    """Makes calls in the order of their times and, at one time, in that in which they were asked for.

    Args:
        around: makes what the calls of one instant are made in.
    """

    def __init__(self, clock: JumpingClock, around: Callable[[], AbstractContextManager[object]]) -> None:
        self._clock = clock
        self._around = around
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._asked_s = math.inf  # when the clock is to call
        self._running = False
        self._failure: Exception | None = None
        self._failed = trio.Event()

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        """Have something called then; not before `make` is."""
        self._order += 1
        heapq.heappush(self._due, (when_s, self._order, call))
        if self._running:
            self._ask_clock()

    async def make(self) -> None:
        """Make them until cancelled.

        Raises:
            Exception: what a call has raised.
        """
        self._token = trio.lowlevel.current_trio_token()
        self._running = True
        self._ask_clock()
        try:
            await self._failed.wait()
        finally:
            self._running = False
        assert self._failure is not None, "it waits for that"
        raise self._failure

    def _ask_clock(self) -> None:
        if self._due and self._due[0][0] < self._asked_s:
            self._asked_s = self._due[0][0]
            self._clock.call_at(self._asked_s, self._woken)

    def _woken(self) -> None:
        """By the clock. Of what happens at one instant, this is the first or the last, as chance has it."""
        if not self._running or self._clock.now_s() < self._asked_s:
            return  # an earlier call was asked for meanwhile, and has come
        self._asked_s = math.inf
        if self._clock.is_crowded:
            self._token.run_sync_soon(self._make_due)
        else:
            self._make_due()

    def _make_due(self) -> None:
        now_s = self._clock.now_s()
        try:
            with self._around():
                while self._due and self._due[0][0] <= now_s:
                    heapq.heappop(self._due)[2]()
        except Exception as error:  # noqa: BLE001 - a clock cannot raise: the task that waits does
            self._failure = error
            self._failed.set()
        else:
            self._ask_clock()
