"""Back-pressure for models that answer many times: a thread that answers faster than its client reads is held back.

Rules:
 1. At most `limit` answers of a request wait to be taken. A sender of another one waits for room, on its own thread.
 2. The event loop's thread is never held back: it is the one that makes room.
 3. Once answers are not taken any more (the client has gone, the request is over), no sender waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class AnswerWindow:
    """The room for answers of one request. `enter` is called by the model, on any thread; the rest on the event loop.

    Args:
        limit: most answers that wait.
        loop_thread: identity of the event loop's thread (`threading.get_ident`).

    Attributes:
        on_room: called on the event loop when the window is no longer crowded; for who answers there, and so is never
            held back, but can hold back others.
    """

    __slots__ = ("_changed", "_limit", "_loop_thread", "_open", "_waiting", "on_room")

    def __init__(self, limit: int, loop_thread: int) -> None:
        self._limit = limit
        self._loop_thread = loop_thread
        self._waiting = 0
        self._open = False
        self.on_room: Callable[[], None] | None = None
        self._changed = threading.Condition(threading.Lock())

    def enter(self) -> None:
        """Take a place for one answer, waiting for it if need be (rule 1)."""
        with self._changed:
            if threading.get_ident() != self._loop_thread:
                while self._waiting >= self._limit and not self._open:
                    self._changed.wait()
            self._waiting += 1

    @property
    def crowded(self) -> bool:
        """As many answers wait as may."""
        return self._waiting >= self._limit and not self._open

    def leave(self, count: int) -> None:
        """This many answers have been taken."""
        was_crowded = self.crowded
        with self._changed:
            self._waiting -= count
            self._changed.notify_all()
        if was_crowded and self.on_room is not None and not self.crowded:
            self.on_room()

    def open_up(self) -> None:
        """No sender waits from now on (rule 3)."""
        was_crowded = self.crowded
        with self._changed:
            self._open = True
            self._changed.notify_all()
        if was_crowded and self.on_room is not None:
            self.on_room()
