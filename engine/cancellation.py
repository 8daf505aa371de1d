"""Telling work on a thread that its result is not needed any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Cancellation:
    """For one piece of work. Callable from any thread.

    The work either completes or is cancelled, whichever comes first. A thread cannot be ended from outside; what it
    waits for often can, and `ending` names it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.cancelled = False
        self._completed = False
        self._end: Callable[[], None] | None = None

    def cancel(self) -> bool:
        """The result is not wanted; False if there is one already."""
        with self._lock:
            if self._completed:
                return False
            if not self.cancelled and self._end is not None:
                self._end()
            self.cancelled = True
            return True

    def complete(self) -> bool:
        """There is a result; False if it is not needed any more."""
        with self._lock:
            self._completed = not self.cancelled
            return self._completed

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """While the block runs, `cancel` calls this, at once if it came before. Must not block, or raise."""
        with self._lock:
            self._end = end
            if self.cancelled:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._end = None
