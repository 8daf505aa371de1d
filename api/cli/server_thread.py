"""Servers and gateways on threads of their own, for programs that are not trio's: what `trireme serve` and
`trireme gateway` do, without their processes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

import trio

from ...actors import InferenceServer
from ...gateway.server import FleetServer
from ..logging import Log, LogSettings, logging_to
from .command import build_command
from .flag_table import FLAGS
from .flags import UsageError, parse
from .gateway import build_gateway_command, run_gateway
from .serve import run_server
from .services import Listening

S = TypeVar("S")
T = TypeVar("T")
TellOpened = Callable[[S, Sequence[Listening]], None]
RunService = Callable[[Log, AsyncIterable[int], TellOpened[S]], Awaitable[int]]


class NotServingError(Exception):
    """The server has not started, or has ended."""


class ServingThread(ABC, Generic[S]):
    """Starts a server, and can ask it things from any other thread.

    Args:
        words: the command line, as behind the command.

    Attributes:
        listening: title, address and port of each service.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.listening: Sequence[Listening] = ()
        self._words = tuple(words)
        self._opened: Future[tuple[S, Sequence[Listening], trio.lowlevel.TrioToken]] = Future()
        self._token: trio.lowlevel.TrioToken | None = None
        self._signals, self._heard = trio.open_memory_channel[int](4)
        self._thread = threading.Thread(target=self._serve, name=type(self).__name__, daemon=True)

    @abstractmethod
    def _build(self, words: Sequence[str]) -> tuple[LogSettings, RunService[S]]:
        """How it logs, and how it runs. UsageError if the command line is wrong."""

    @property
    def alive(self) -> bool:
        """It has been started and has not ended."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start, and wait until the ports are open.

        Raises:
            NotServingError: the command line is wrong, or it did not start; the log says more of that.
        """
        self._thread.start()
        self._server, self.listening, self._token = self._opened.result()

    def call(self, ask: Callable[[S], Awaitable[T]]) -> T:
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
        if self._thread.is_alive() and self._token is not None:  # without one it has not started, and ends by itself
            with contextlib.suppress(trio.RunFinishedError, trio.WouldBlock):  # it ends already
                trio.from_thread.run_sync(self._signals.send_nowait, signal.SIGTERM, trio_token=self._token)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        """The thread's."""
        try:
            log_settings, run = self._build(self._words)
            with logging_to(log_settings) as log:
                trio.run(run, log, self._heard, self._tell)
        except UsageError as error:
            self._opened.set_exception(NotServingError(f"{error.complaint}\n{error.message}".strip()))
        except OSError as error:
            self._opened.set_exception(NotServingError(f"cannot open log file: {error.strerror}"))
        if not self._opened.done():
            self._opened.set_exception(NotServingError("the server did not start; its log says why"))

    def _tell(self, server: S, listening: Sequence[Listening]) -> None:
        self._opened.set_result((server, tuple(listening), trio.lowlevel.current_trio_token()))


class ServerThread(ServingThread[InferenceServer]):
    """`trireme serve`, without front ends in processes of their own."""

    def _build(self, words: Sequence[str]) -> tuple[LogSettings, RunService[InferenceServer]]:
        command = build_command(parse([*words, "--front-ends=0"], FLAGS), os.environ)
        return command.log, partial(run_server, command)


class GatewayThread(ServingThread[FleetServer]):
    """`trireme gateway`."""

    def _build(self, words: Sequence[str]) -> tuple[LogSettings, RunService[FleetServer]]:
        command = build_gateway_command(words, dict(os.environ))
        return command.serve.log, partial(run_gateway, command)
