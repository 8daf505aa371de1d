"""What users of GPUs share: the turn to capture a CUDA graph; streams and events that are kept for the next one.

There is one capture at a time in the process, and nothing beside it that would break it.

Rules:
 1. torch allows one capture at a time in a process. So there is one lock, for all GPUs and all frameworks.
 2. While a stream captures, CUDA refuses to wait for its device, and the attempt breaks the capture, whatever thread
    makes it. Giving unused memory back to the driver waits as well, and torch does it for all GPUs at once. So a thread
    that does one of these holds the lock too.
 3. The thread that captures must not ask a stream or an event how far it is, which breaks the capture. What a failure
    means is asked when the capture is over.
 4. A capture that failed may leave a framework in a state that nothing mends. Then no more graphs are captured in this
    process (`stop`); models are served without them.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ..errors import InternalError

_log = logging.getLogger("trireme.gpu")


class Captures:
    """Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._stopped = ""

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around a capture, and what is to be put right when it has failed. Waits for its turn.

        Raises:
            InternalError: there are no captures any more (rule 4).
        """
        with self._lock:
            if self._stopped:
                raise InternalError(f"no CUDA graph is captured in this process any more: {self._stopped}")
            yield

    @contextmanager
    def underway(self) -> Iterator[None]:
        """Inside `one`: from here on rule 3 holds for the calling thread."""
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None

    @contextmanager
    def none(self) -> Iterator[None]:
        """Around what waits for a device (rule 2). Waits until nothing is captured."""
        with self._lock:
            yield

    @contextmanager
    def none_now(self) -> Iterator[bool]:
        """The same without waiting; False if something is captured, and nothing may wait for a device."""
        free = self._lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._lock.release()

    @property
    def here(self) -> bool:
        """Whether the calling thread captures."""
        return self._thread == threading.get_ident()

    def stop(self, why: str) -> None:
        """Rule 4."""
        self._stopped = why
        _log.error("no CUDA graph is captured any more until the server is started again: %s", why)


# Streams and events of CUDA's, kept for the next one: to make and to destroy them takes long, and may wait.
#
# Rules:
#  1. A stream is made when all of its priority are in use, and never destroyed: a library that ends late may still have
#     its handle. So two that are in use are never the same one.
#  2. A stream or an event goes back when its last reference is gone, on whatever thread that happens; an event may be
#     recorded again at once, because a stream that waits for it waits for what was recorded before.
#  3. Events are held here all the time. If only their holders had them, they would be garbage with a holder that is
#     part of a circle, and destroyed by the collector, though its finaliser still gives them back.


T = TypeVar("T")


class StreamStock(Generic[T]):
    """The streams of one device. Callable from any thread."""

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
        try:
            return self._idle.pop()
        except IndexError:
            event = self._make()
            self._made.append(event)
            return event
