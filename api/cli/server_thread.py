"""A server on a thread of its own, for programs that are not trio's: what `trireme serve` does, without its process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import trio

from ...actors import InferenceServer
from ..logging import logging_to
from .command import build_command
from .flag_table import FLAGS
from .flags import UsageError, parse
from .serve import run_server
from .services import Listening

T = TypeVar("T")


class NotServingError(Exception):
    """The server has not started, or has ended."""


class ServerThread:
    """Starts a server, and can ask it things from any other thread.

    Args:
        words: the command line, as behind ``trireme serve``. Front ends in processes of their own are not started.

    Attributes:
        listening: title, address and port of each service.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.listening: Sequence[Listening] = ()
        self._words = (*words, "--front-ends=0")
        self._opened: Future[tuple[InferenceServer, Sequence[Listening], trio.lowlevel.TrioToken]] = Future()
        self._signals, self._heard = trio.open_memory_channel[int](4)
        self._thread = threading.Thread(target=self._run, name="trireme serve", daemon=True)

    @property
    def alive(self) -> bool:
        """It has been started and has not ended."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start, and wait until the ports are open.

        Raises:
            NotServingError: the command line is wrong, or the server did not start; the log says more of that.
        """
        self._thread.start()
        self._server, self.listening, self._token = self._opened.result()

    def call(self, ask: Callable[[InferenceServer], Awaitable[T]]) -> T:
        """What comes of asking the server, on its thread.

        Raises:
            NotServingError: it has ended.
            TriremeError: see what is asked.
        """
        try:
            return trio.from_thread.run(ask, self._server, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled) as error:
            raise NotServingError("the server has ended") from error

    def stop(self, timeout_s: float | None = None) -> bool:
        """Have the server drain and end, as SIGTERM does; whether it has ended by then, if a time is given."""
        if self._thread.is_alive():
            with contextlib.suppress(trio.RunFinishedError, trio.WouldBlock):  # it ends already
                trio.from_thread.run_sync(self._signals.send_nowait, signal.SIGTERM, trio_token=self._token)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        """The thread's."""
        try:
            command = build_command(parse(self._words, FLAGS), os.environ)
            with logging_to(command.log) as log:
                trio.run(run_server, command, log, self._heard, self._tell)
        except UsageError as error:
            self._opened.set_exception(NotServingError(f"{error.complaint}\n{error.message}".strip()))
        except OSError as error:
            self._opened.set_exception(NotServingError(f"cannot open log file: {error.strerror}"))
        if not self._opened.done():
            self._opened.set_exception(NotServingError("the server did not start; its log says why"))

    def _tell(self, server: InferenceServer, listening: Sequence[Listening]) -> None:
        self._opened.set_result((server, tuple(listening), trio.lowlevel.current_trio_token()))
