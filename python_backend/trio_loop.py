"""The event loop of Python models that run in the server's process: trio's, in a run of its own on a thread of the
model's.

Coroutines of users neither share the server's run, where one that computes would hold up all clients, nor see its
tasks. What they wait for is brought about by other threads, and wakes them through trio's token.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

import trio
import trio.lowlevel

from .child.utils.event_loop import CoroutineWaiter, asyncio_waiter

_SIGNS_OF_ASYNCIO = (
    "no running event loop",
    "no current event loop",
    "has no attribute 'create_future'",
    "unrecognized yield message",
)
_ADVICE = (
    "coroutines of a model in the server's process run on trio, and not on asyncio, unless its parameter ASYNC_LIBRARY "
    "is 'asyncio'"
)


class TrioLoop:
    """Implements `EventLoop` of `child.utils.event_loop`; its thread gets this name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stopped = False

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with self._lock:
            token = self._running()
        return trio.from_thread.run(_result, coroutine, trio_token=token)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        with self._lock:  # so that nothing is started behind the end
            token, context = self._running(), contextvars.copy_context()
            token.run_sync_soon(lambda: context.run(self._nursery.start_soon, lambda: coroutine))

    def stop(self) -> None:
        with self._lock:
            if self._token is not None and not self._stopped:
                self._token.run_sync_soon(self._nursery.cancel_scope.cancel)
            self._stopped = True
        if self._thread is not None:
            self._thread.join()

    def waiter(self) -> CoroutineWaiter:
        return _trio_waiter() if trio.lowlevel.in_trio_run() else asyncio_waiter()

    def advice(self, error: BaseException) -> str:
        return _ADVICE if any(sign in str(error) for sign in _SIGNS_OF_ASYNCIO) else ""

    def _running(self) -> trio.lowlevel.TrioToken:
        if self._stopped:
            raise RuntimeError("the model's coroutines have ended")
        if self._token is None:
            up: Future[trio.lowlevel.TrioToken] = Future()
            run = partial(trio.run, self._live, up)
            self._thread = threading.Thread(target=run, name=self._name, daemon=True)
            self._thread.start()
            self._token = up.result()
        return self._token

    async def _live(self, up: Future[trio.lowlevel.TrioToken]) -> None:
        async with trio.open_nursery() as self._nursery:
            up.set_result(trio.lowlevel.current_trio_token())
            await trio.sleep_forever()


def _trio_waiter() -> CoroutineWaiter:
    token, came = trio.lowlevel.current_trio_token(), trio.Event()

    def wake() -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(came.set)

    return came.wait, wake


async def _result(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await coroutine
