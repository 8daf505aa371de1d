"""A trio program on a thread of its own, for programs that are not trio's: it starts, is asked things, and ends.

Rules:
 1. The thread is owned by who has made the object: `close` ends it and waits for it. Nothing is left of it then.
 2. What is asked has a future. Cancelling the future cancels the task on the thread; what the task raises, the future
    raises. When the loop ends, futures that are open get an UnavailableError.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Generic, TypeVar

import trio

from trireme.engine.errors import UnavailableError

S = TypeVar("S")
T = TypeVar("T")


class LoopThread(Generic[S]):
    """Runs what an asynchronous context manager keeps open.

    Args:
        open_it: makes the manager, on the thread.

    Attributes:
        opened: what the manager gives, or what it raises.
        ended: done when the loop has ended, with what it raised behind the opening.
    """

    def __init__(self, open_it: Callable[[], AbstractAsyncContextManager[S]]) -> None:
        self._open_it = open_it
        self.opened: Future[S] = Future()
        self.ended: Future[None] = Future()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._stop = trio.Event()
        self._everything = trio.CancelScope()
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="trireme server", daemon=True)

    def start(self) -> None:
        """Begin to open; `opened` tells when that is done."""
        self._thread.start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            trio.run(self._keep_open)
        except BaseException as failure:  # noqa: BLE001 - the future carries it to who waits
            error = failure
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]  # of the nursery
        if not self.opened.done():
            self.opened.set_exception(error or UnavailableError("the server was stopped before it had started"))
            error = None
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    async def _keep_open(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._everything:
            if self._given_up:
                return
            async with trio.open_nursery() as self._nursery:
                async with self._open_it() as opened:
                    self.opened.set_result(opened)
                    await self._stop.wait()
                self._nursery.cancel_scope.cancel()  # what was not answered while the manager closed

    def _soon(self, call: Callable[[], object]) -> bool:
        """Have something called on the loop; whether it still runs."""
        try:
            if self._token is None:
                return False
            self._token.run_sync_soon(call)
        except trio.RunFinishedError:
            return False
        return True

    def ask(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        """Do this on the loop (rule 2). Any thread may ask."""
        future: Future[T] = Future()
        if not self._soon(partial(self._begin, work, future)):
            future.set_exception(_ended())
        return future

    def _begin(self, work: Callable[[], Awaitable[T]], future: Future[T]) -> None:
        if self._nursery is None or self._nursery.cancel_scope.cancel_called:
            _settle(future, _ended())
        else:
            self._nursery.start_soon(self._do, work, future)

    async def _do(self, work: Callable[[], Awaitable[T]], future: Future[T]) -> None:
        scope = trio.CancelScope()
        future.add_done_callback(lambda done: done.cancelled() and self._soon(scope.cancel))
        outcome: T | BaseException = _ended()
        try:
            with scope:
                outcome = await work()
        except Exception as error:  # noqa: BLE001 - the future carries it to who waits
            outcome = error
        finally:
            _settle(future, outcome)

    def stop(self) -> None:
        """Begin to end: what the manager keeps open is closed, which may take its time."""
        self._soon(self._stop.set)

    def stop_at_once(self) -> None:
        """Wait for nothing any more."""
        self._given_up = True  # seen by a loop that is about to begin
        self._soon(self._everything.cancel)

    def open(self) -> S:
        """Start, and wait for what the manager gives. Ctrl-C ends the thread.

        Raises:
            BaseException: what it has raised.
        """
        try:
            self.start()
            return self.opened.result()
        except BaseException:
            self.stop_at_once()
            if self._thread.ident is not None:
                self._thread.join()
            raise

    def close(self) -> None:
        """End, and wait for it. Ctrl-C ends the waiting for requests in flight, and is raised.

        Raises:
            BaseException: what the loop was ended by, behind the opening.
        """
        interrupted: KeyboardInterrupt | None = None
        self.stop()
        while True:
            try:
                self._thread.join()
                break
            except KeyboardInterrupt as error:
                interrupted = error
                self.stop_at_once()
        if interrupted is not None:
            raise interrupted
        self.ended.result()


def wait_for(future: Future[T]) -> T:
    """What a future gives. Ctrl-C cancels it."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _ended() -> UnavailableError:
    return UnavailableError("the server has ended")


def _settle(future: Future[T], outcome: T | BaseException) -> None:
    with contextlib.suppress(InvalidStateError):  # it was cancelled
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
