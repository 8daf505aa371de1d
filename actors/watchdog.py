"""The watchdog: a thread that watches the event loop from outside, since a loop that is held up can say nothing itself.

Four times a second it asks the loop for a beat, and waits for it. When the beat is late, it logs where the loop's
thread is; when it comes, how long that took (`engine.logs.stalls`). It does nothing else, and costs the loop one
wake-up for each beat. Where one call holds the interpreter's lock all the time, the thread cannot look, and only the
length is known: from when it should have asked.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback

import trio

from ..engine.clock import Clock
from ..engine.logs.stalls import STALL_S, LoopStalls

logger = logging.getLogger("trireme.server")

_BEAT_S = 0.25


class Watchdog:
    """Watches the event loop in which it is made, until it is closed.

    Args:
        clock: readable from any thread.
        limit_s: see `LoopStalls`.
    """

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self.stalls = LoopStalls(limit_s)
        self._clock = clock
        self._token = trio.lowlevel.current_trio_token()
        self._loop_thread = threading.get_ident()
        self._closed = threading.Event()
        self._came = threading.Event()
        self._came_s = 0.0
        self._thread = threading.Thread(target=self._watch, name="trireme watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more. On the event loop; waits for the thread, which looks up at once unless the log is stuck."""
        self._closed.set()
        self._came.set()
        self._thread.join(STALL_S)

    def _beat(self) -> None:
        """On the event loop."""
        self._came_s = self._now_s()
        self._came.set()

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9

    def _watch(self) -> None:
        """The thread."""
        asks_s = self._now_s() + _BEAT_S
        while not self._closed.wait(_BEAT_S):
            self._came.clear()
            if self._closed.is_set():  # `close` had set the event that was just cleared
                return
            late_s = self._now_s() - asks_s
            try:
                self._token.run_sync_soon(self._beat)
            except trio.RunFinishedError:
                return
            self._await_beat(asks_s)
            if self._closed.is_set():
                return
            was_unwell = self.stalls.unwell
            stall_s = self.stalls.came(asks_s, self._came_s)
            asks_s = self._came_s + _BEAT_S  # not from now: a call may have held the lock since then
            if stall_s:
                unseen = "; no stack is known: one call held the interpreter's lock, or the process was stopped"
                logger.error("the event loop was held up for %.2f s%s", stall_s, unseen * (late_s >= STALL_S))
                asks_s = self._now_s() + _BEAT_S  # the log may have been slow
            if was_unwell and not self.stalls.unwell:
                logger.info("the event loop has recovered: the server may be ready again")
                asks_s = self._now_s() + _BEAT_S

    def _await_beat(self, asked_s: float) -> None:
        if self._came.wait(STALL_S):
            return
        logger.error("the event loop has been held up for %g s by:\n%s", STALL_S, self._where())
        while not self._came.wait(STALL_S):
            was_unwell = self.stalls.unwell
            self.stalls.waiting(asked_s, self._now_s())
            if self.stalls.unwell != was_unwell:
                text = "the event loop is held up for too long, and the server not ready; now by:\n%s"
                logger.error(text, self._where())

    def _where(self) -> str:
        """The stack of the loop's thread."""
        frame = sys._current_frames().get(self._loop_thread)
        return "".join(traceback.format_stack(frame)).rstrip() if frame is not None else "(its thread has ended)"
