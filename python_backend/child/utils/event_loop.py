"""The event loop of a model whose methods are coroutines. In a process of its own that is asyncio's."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

CoroutineWaiter = tuple[Callable[[], Awaitable[object]], Callable[[], object]]
"""``wait``, for one coroutine, returns once ``wake`` has been called: from any thread, any number of times. If the
coroutine is gone, nothing happens."""


class EventLoop(Protocol):
    """Runs coroutines, with the context (`contextvars`) of the caller, on a thread that starts with the first of them.
    Its methods are for all other threads."""

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Its result, when it has one; raises what it raises."""

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start it, and return at once. It must not raise."""

    def stop(self) -> None:
        """Cancel what runs, and wait until it has ended. What is asked for later is a RuntimeError."""

    def waiter(self) -> CoroutineWaiter:
        """For the coroutine that calls this, of whatever event loop it is. RuntimeError if it is of none."""
        ...

    def advice(self, error: BaseException) -> str:
        """What users should be told about an error of theirs besides its text."""
        ...


class AsyncioLoop:
    """asyncio's. Tasks that user code leaves running go on between two batches."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting = threading.Lock()
        self._stopped = False

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._running()).result()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._running().call_soon_threadsafe(self._start, coroutine)

    def stop(self) -> None:
        with self._starting:
            self._stopped = True
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    def waiter(self) -> CoroutineWaiter:
        return asyncio_waiter()

    def advice(self, error: BaseException) -> str:
        return ""

    def _running(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is not None:
            return loop
        with self._starting:
            if self._stopped:
                raise RuntimeError("the model's coroutines have ended")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)  # the loop itself holds tasks weakly only
        task.add_done_callback(self._tasks.discard)

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def asyncio_waiter() -> CoroutineWaiter:
    """For a coroutine of asyncio's running loop, be it ours or the user's. RuntimeError if there is none."""
    loop, came = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(came.set)

    return came.wait, wake
