"""One capture of a CUDA graph at a time in the process, and nothing beside it that would break it.

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
from collections.abc import Iterator
from contextlib import contextmanager

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
