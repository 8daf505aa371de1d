"""Work on large bodies and tensors, off the event loop.

The loop serves everybody, so what takes time in proportion to a client's bytes is done on a thread once there are many:
reading and writing JSON, compression, copies of shared memory. A thread alone does not help where one C call holds the
interpreter's lock all the time; such work is done in pieces as well, so that the loop gets its turn in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LARGE_BYTES = 256 * 1024
"""Work on more than this leaves the event loop."""

_THREADS = 4


class Offload:
    """A bounded number of threads, which one server owns; who comes when all are at work waits.

    Called with a function and its arguments, it runs the function on a thread and gives back what it returns or raises.
    A caller that is cancelled leaves when the function has returned.
    """

    __slots__ = ("_limiter",)

    def __init__(self, threads: int = _THREADS) -> None:
        self._limiter = trio.CapacityLimiter(threads)

    async def __call__(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await trio.to_thread.run_sync(function, *args, limiter=self._limiter)

    def __repr__(self) -> str:
        return f"<Offload: {self._limiter.borrowed_tokens} of {self._limiter.total_tokens} threads at work>"
