"""Streams and events of CUDA's, kept for the next one: to make and to destroy them takes long, and may wait.

Rules:
 1. A stream is made when all of its priority are in use, and never destroyed: a library that ends late may still have
    its handle. So two that are in use are never the same one.
 2. A stream or an event goes back when its last reference is gone, on whatever thread that happens; an event may be
    recorded again at once, because a stream that waits for it waits for what was recorded before.
 3. Events are held here all the time. If only their holders had them, they would be garbage with a holder that is part
    of a circle, and destroyed by the collector, though its finaliser still gives them back.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class StreamStock(Generic[T]):
    """The streams of one device. Callable from any thread.

    Args:
        make: gives a new stream of a priority.
    """

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._idle: dict[int, deque[T]] = {}

    def take(self, priority: int) -> T:
        """A stream that is not in use."""
        try:
            return self._idle.setdefault(priority, deque()).pop()
        except IndexError:
            return self._make(priority)

    def until_gone(self, holder: object, priority: int, stream: T) -> None:
        """The stream comes back when `holder` is no more."""
        weakref.finalize(holder, self._idle[priority].append, stream).atexit = False


class EventStock(Generic[T]):
    """The events of one device. Callable from any thread.

    Args:
        make: gives a new event, which measures time.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []  # rule 3
        self._idle: deque[T] = deque()
        self.give_back = self._idle.append

    def take(self) -> T:
        """An event that is not in use."""
        try:
            return self._idle.pop()
        except IndexError:
            event = self._make()
            self._made.append(event)
            return event
