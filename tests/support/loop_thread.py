"""An event loop in a thread of its own, for tests whose clients block."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import trio

T = TypeVar("T")

Opened = Callable[[T], Awaitable[None]]
"""Is told what was opened, and returns when it is to be closed."""


def call_from_thread() -> Callable[..., Any]:
    """A function that calls another one on this event loop, from a thread, and gives back its result."""
    token = trio.lowlevel.current_trio_token()

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        return trio.from_thread.run_sync(function, *arguments, trio_token=token)

    return call


@contextmanager
def loop_thread(run: Callable[[Opened[T]], Awaitable[None]]) -> Iterator[T]:
    """What `run` opens on an event loop of its own, until the block is left.

    Raises:
        BaseException: what `run` ended with.
    """
    values: list[T] = []
    failures: list[BaseException] = []
    ready = threading.Event()
    stop = trio.Event()
    close: list[Callable[[], None]] = []

    async def opened(value: T) -> None:
        token = trio.lowlevel.current_trio_token()
        close.append(lambda: token.run_sync_soon(stop.set))
        values.append(value)
        ready.set()
        await stop.wait()

    def live() -> None:
        try:
            trio.run(run, opened)
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread, below
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=live, name="event loop of a test")
    thread.start()
    ready.wait()
    try:
        if values:
            yield values[0]
    finally:
        for each in close:
            with suppress(trio.RunFinishedError):
                each()
        thread.join()
    if failures:
        raise failures[0]
