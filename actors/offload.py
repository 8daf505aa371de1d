"""Work on large bodies and tensors, off the event loop.

The loop serves all clients, so what takes time in proportion to a client's bytes is done on a thread once there are
many:
reading and writing JSON, compression, copies of shared memory. A thread alone does not help where one C call holds the
interpreter's lock all the time; such work is done in pieces as well, so that the loop gets its turn in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

import numpy as np
import trio

from ..engine.admission.large_requests import LARGE_BYTES
from ..engine.errors import TriremeError, unframed
from ..engine.tensor import Buffer

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_THREADS = 4


def copied_in_pieces(data: Buffer) -> memoryview:
    """A copy of bytes, made so that others get their turn in between."""
    whole = np.empty(len(data), np.uint8).data  # not zeroed
    source = memoryview(data)
    for at in range(0, len(source), LARGE_BYTES):
        whole[at : at + LARGE_BYTES] = source[at : at + LARGE_BYTES]
    return whole


@dataclass(slots=True, eq=False)
class _Refusal:
    """What a function raised.

    An error that trio brings from a thread refers to a frame of trio's, and that to the error. So the arguments, which
    may be a client's body, would stay in memory until the garbage collector comes: after they have left the budget.
    """

    error: TriremeError


def _attempt(function: Callable[[*Ts], T], args: tuple[*Ts]) -> T | _Refusal:
    try:
        return function(*args)
    except TriremeError as error:
        return _Refusal(unframed(error))


async def run_on_thread(
    function: Callable[[*Ts], T],
    *args: *Ts,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> T:
    """Run a function on a thread. An error for a client that it raises keeps nothing of what it worked with.

    Args:
        limiter: of how many threads may be at it; trio's own if there is none.
        abandon_on_cancel: cancelling this does not wait for the thread, which counts for the limiter until its end.

    Raises:
        Exception: what the function raises.
    """
    made = await trio.to_thread.run_sync(_attempt, function, args, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
    if isinstance(made, _Refusal):
        try:
            raise made.error
        finally:
            del made  # else the error and this frame refer to each other
    return made


class Offload:
    """A bounded number of threads, which one server owns; who comes when all are at work waits.

    Called with a function and its arguments, it runs the function on a thread and gives back what it returns or raises.
    A caller that is cancelled leaves when the function has returned.
    """

    __slots__ = ("_limiter", "_nursery")

    def __init__(self, threads: int = _THREADS) -> None:
        self._limiter = trio.CapacityLimiter(threads)
        self._nursery: trio.Nursery | None = None

    def start(self, nursery: trio.Nursery) -> None:
        """Let `later` run its tasks in a nursery, which ends with the server."""
        self._nursery = nursery

    def later(self, function: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run a function on a thread, for who is no task.

        Args:
            function: must not raise.
            done: gets what it returns, on the event loop; must not raise. Not called if the server ends before.
        """
        assert self._nursery is not None, "the server is open"
        self._nursery.start_soon(self._run_later, function, done)

    async def _run_later(self, function: Callable[[], T], done: Callable[[T], None]) -> None:
        done(await self(function))

    async def __call__(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await run_on_thread(function, *args, limiter=self._limiter)

    def __repr__(self) -> str:
        return f"<Offload: {self._limiter.borrowed_tokens} of {self._limiter.total_tokens} threads at work>"
