"""Opens a server in a program: `trireme serve` without a command line, on the trio loop that this runs on."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import trio

from trireme.actors import InferenceServer
from trireme.api.cli.command import ServeCommand, build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import UsageError, is_app, parse
from trireme.api.cli.serve import run_server
from trireme.api.cli.services import Listening, StartError
from trireme.api.logging import logging_to
from trireme.apps.config_text import config_text
from trireme.apps.declared.declaration import declaration_of
from trireme.apps.writing import RepositoryWriter, WrittenModel
from trireme.engine.repository.temporary import TemporaryFolder

_SERVICES = ("http", "grpc", "metrics")


@dataclass(frozen=True)
class ServerPlan:
    """What is to be served, and how.

    Attributes:
        sources: repositories, apps, models of apps.
        models: functions, classes and objects of this program that are models.
        flags: those of `trireme serve`, with ``_`` for ``-``.
    """

    sources: Sequence[str | os.PathLike[str]]
    models: Sequence[Any]
    flags: Mapping[str, Any]

    def words(self) -> list[str]:
        """The command line of `trireme serve`."""
        flags = {"drain_secs": 0, **self.flags}
        for service in _SERVICES:
            asked = any(name.startswith(f"{service}_") for name in flags)
            flags = {f"allow_{service}": asked, **flags}
            if flags[f"allow_{service}"] and service != "metrics":
                flags = {f"{service}_address": "127.0.0.1", **flags}
        words = [word for name, value in flags.items() for word in _words(name.replace("_", "-"), value)]
        sources = [os.fspath(each) for each in self.sources]
        return [*words, *(each if is_app(each) else f"--model-repository={each}" for each in sources)]

    def command(self) -> ServeCommand:
        """Raises StartError: a flag is unknown, or its value wrong."""
        if not (self.sources or self.models):
            raise StartError('there is nothing to serve: give a repository, an app ("app.py") or models=[…]')
        if self.flags.get("front_ends"):
            raise StartError("a server in a program has no front ends in processes of their own: leave front_ends out")
        try:
            return build_command(parse(self.words(), FLAGS, operands=True), {})
        except UsageError as error:
            raise StartError(error.message) from None


def _words(name: str, value: Any) -> Iterator[str]:
    flag = FLAGS.get(name)
    if flag is not None and flag.kind is None:
        yield from [f"--{name}"] * bool(value)
    elif isinstance(value, bool):
        yield f"--{name}={str(value).lower()}"
    elif isinstance(value, list | tuple):
        yield from (f"--{name}={each}" for each in value)
    elif value is not None:
        yield f"--{name}={value}"


@dataclass(frozen=True)
class OpenedServer:
    """A server that serves, and where its HTTP and gRPC services listen."""

    engine: InferenceServer
    listening: Sequence[Listening]


class Serving:
    """Keeps a server open, as an asynchronous context manager on trio.

    Leaving it drains: what is in flight is answered, for as long as the flag ``exit_timeout_secs`` says. Cancelled, it
    ends at once.
    """

    def __init__(self, plan: ServerPlan) -> None:
        self._plan = plan
        self._command = plan.command()
        self._signals, self._heard = trio.open_memory_channel[int](1)
        self._told = trio.Event()
        self._opened: OpenedServer | None = None
        self._refusal = StartError("the server ended before it had started")
        self._stack = contextlib.ExitStack()

    async def __aenter__(self) -> OpenedServer:
        """Raises StartError: why it does not start."""
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        try:
            self._nursery.start_soon(self._serve)
            await self._told.wait()
        except BaseException:
            await self._end()
            raise
        if self._opened is None:
            await self._end()
            raise self._refusal
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, trio.Cancelled):
            self._signals.send_nowait(signal.SIGTERM)
            await self._manager.__aexit__(None, None, None)
        else:
            await self._end()

    async def _end(self) -> None:
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(None, None, None)

    async def _serve(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                command = stack.enter_context(_with_models(self._command, self._plan.models))
                log = None
                if any(name.startswith("log_") for name in self._plan.flags):
                    log = stack.enter_context(logging_to(command.log))
                await run_server(command, log, self._heard, self._tell, None, self._refuse)
        finally:
            self._told.set()

    def _tell(self, server: InferenceServer, listening: Sequence[Listening]) -> None:
        self._opened = OpenedServer(server, tuple(listening))
        self._told.set()

    def _refuse(self, error: StartError) -> None:
        self._refusal = StartError(str(error))


@contextlib.contextmanager
def _with_models(command: ServeCommand, models: Iterable[Any]) -> Iterator[ServeCommand]:
    """The command with models of this program as one more repository. They run on threads of the server, where a module
    of a name of its own has them."""
    models = list(models)
    if not models:
        yield command
        return
    module = ModuleType(f"trireme_models_{secrets.token_hex(8)}")
    folder = TemporaryFolder("models")
    writer = RepositoryWriter(folder.path)
    try:
        sys.modules[module.__name__] = module
        for number, each in enumerate(models):
            declaration = declaration_of(each)
            assert declaration is not None, "looked at when the server was made"
            inside = replace(declaration, options=replace(declaration.options, in_process=True))
            variable = f"model_{number}"
            setattr(module, variable, each)
            text = config_text(inside)
            writer.write(WrittenModel(inside.name, variable, inside.manner, text, module.__name__), None, ())
        options = replace(command.server, model_repository=(*command.server.model_repository, Path(folder.path)))
        yield replace(command, server=options)
    finally:
        sys.modules.pop(module.__name__, None)
        folder.remove()
