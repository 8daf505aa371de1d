"""The server-wide budget of requests and bytes in flight.

Queues that Triton calls unlimited are bounded by this one budget. At the bound nothing is refused: whoever wants to
submit waits, first come, first served, and so a front end stops reading its sockets (DESIGN §3, rule 1).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import trio


@dataclass(frozen=True, slots=True)
class BudgetStatistics:
    requests: int
    bytes: int
    request_limit: int
    byte_limit: int
    waiting: int


class InflightBudget:
    """Counts accepted, unanswered requests and the bytes of their inputs.

    A single request larger than the whole byte limit is let in when nothing else is in flight: waiting could not make
    it smaller.
    """

    __slots__ = ("_bytes", "_requests", "_waiting", "byte_limit", "request_limit")

    def __init__(self, request_limit: int, byte_limit: int) -> None:
        self.request_limit = request_limit
        self.byte_limit = byte_limit
        self._requests = 0
        self._bytes = 0
        self._waiting: deque[tuple[trio.lowlevel.Task, int]] = deque()

    def acquire_nowait(self, nbytes: int) -> bool:
        """Take a share if there is room and nobody is waiting for it."""
        if self._waiting or not self._fits(nbytes):
            return False
        self._requests += 1
        self._bytes += nbytes
        return True

    def take(self, nbytes: int) -> None:
        """Take a share whether there is room or not: for what a request asks that has a share itself."""
        self._requests += 1
        self._bytes += nbytes

    async def acquire(self, nbytes: int) -> None:
        """Take a share, waiting for it if need be."""
        if self.acquire_nowait(nbytes):
            return
        waiter = (trio.lowlevel.current_task(), nbytes)
        self._waiting.append(waiter)

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._waiting.remove(waiter)
            self._admit()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)

    def release(self, nbytes: int) -> None:
        """Give a share back."""
        self._requests -= 1
        self._bytes -= nbytes
        assert self._requests >= 0, "more shares given back than taken"
        assert self._bytes >= 0, "more bytes given back than taken"
        if self._waiting:
            self._admit()

    def _fits(self, nbytes: int) -> bool:
        if self._requests >= self.request_limit:
            return False
        return self._bytes + nbytes <= self.byte_limit or self._requests == 0

    def _admit(self) -> None:
        """Let waiting tasks in, in order, while they fit; their shares are taken here, so nobody can slip in
        between."""
        while self._waiting and self._fits(self._waiting[0][1]):
            task, nbytes = self._waiting.popleft()
            self._requests += 1
            self._bytes += nbytes
            trio.lowlevel.reschedule(task)

    def statistics(self) -> BudgetStatistics:
        return BudgetStatistics(self._requests, self._bytes, self.request_limit, self.byte_limit, len(self._waiting))

    def __repr__(self) -> str:
        return f"<InflightBudget {self._requests}/{self.request_limit} requests, {self._bytes}/{self.byte_limit} bytes>"
