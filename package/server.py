"""`Server`: a server in a program, with or without ports, for programs of any kind.

    with trireme.Server("models") as server:                    # any program
        answer = server.model("digits")(image=image)

    async with trireme.Server("app.py", http_port=8000) as server:   # asyncio, or trio
        answer = await server.model("classify")(image=image)

A program of trio's has the server on its own loop. For any other one it is on a thread with a loop of its own, which
ends with the block.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import trio

from trireme.actors import InferenceServer
from trireme.api.cli.services import StartError
from trireme.apps.declared.declaration import declaration_of
from trireme.engine.errors import UnavailableError

from .asking import Arrays, AskOptions, CorrelationIds, SequenceSteps, ask_many, ask_once, options_of
from .loops import LoopThread, wait_for
from .opening import OpenedServer, ServerPlan, Serving

T = TypeVar("T")
Ask = Callable[[Callable[[], Awaitable[T]]], Awaitable[T]]


class Server:
    """A server, opened by ``with`` or ``async with``.

    Args:
        sources: directories of models, addresses in object stores, Python files with models (``app.py``, or
            ``app.py:name``).
        models: functions and classes decorated with `trireme.model`; they run on threads of this process.
        flags: those of `trireme serve`, with ``_`` for ``-``: ``http_port=8000``, ``load_model=["digits"]``. Without
            flags of theirs, HTTP, gRPC and metrics have no ports; with, they listen on 127.0.0.1. Without a flag of
            the log, it goes where this program sends what `logging` is given under the name ``trireme``.

    Raises:
        TypeError: something in `models` is no model.
    """

    def __init__(self, *sources: str | os.PathLike[str], models: Iterable[Any] = (), **flags: Any) -> None:
        given = list(models)
        for each in given:
            if declaration_of(each) is None:
                raise TypeError(f"{each!r} is no model: decorate it with @trireme.model")
        self._plan = ServerPlan(sources, given, flags)
        self._thread: LoopThread[OpenedServer] | None = None
        self._serving: Serving | None = None

    def __enter__(self) -> RunningServer:
        """Raises StartError: the server does not start; all models that do not load are named, with the reasons."""
        self._plan.command()
        thread = self._thread = LoopThread(lambda: Serving(self._plan))
        return RunningServer(thread, thread.open())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drain, and end the thread. Ctrl-C meanwhile ends it at once."""
        assert self._thread is not None, "entered"
        self._thread.close()

    async def __aenter__(self) -> AsyncRunningServer:
        """The same for asyncio and trio. Cancelling it ends the server."""
        if trio.lowlevel.in_trio_run():
            serving = self._serving = Serving(self._plan)
            return AsyncRunningServer(_here, await serving.__aenter__())
        self._plan.command()
        thread = self._thread = LoopThread(lambda: Serving(self._plan))
        thread.start()
        try:
            opened = await _shielded(thread.opened)
        except BaseException:
            thread.stop_at_once()
            await _ended(thread)
            raise
        return AsyncRunningServer(partial(_there, thread), opened)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drain; if this is cancelled, end at once."""
        if self._serving is not None:
            await self._serving.__aexit__(kind, error, traceback)
            return
        thread = self._thread
        assert thread is not None, "entered"
        thread.stop() if not isinstance(error, asyncio.CancelledError) else thread.stop_at_once()
        try:
            await _shielded(thread.ended)
        except asyncio.CancelledError:
            thread.stop_at_once()
            await _ended(thread)
            raise
        thread.close()


async def _here(work: Callable[[], Awaitable[T]]) -> T:
    """On this loop."""
    return await work()


async def _there(thread: LoopThread[Any], work: Callable[[], Awaitable[T]]) -> T:
    """On the server's thread, from asyncio."""
    return await asyncio.wrap_future(thread.ask(work))


async def _shielded(future: Any) -> Any:
    """What a thread's future gives; not cancelled with its reader."""
    return await asyncio.shield(asyncio.wrap_future(future))


async def _ended(thread: LoopThread[Any]) -> None:
    """Wait for the end, which does not take long."""
    with contextlib.suppress(BaseException):  # what it was ended by has been told
        await _shielded(thread.ended)


class _Opened:
    """What both kinds of running servers have."""

    def __init__(self, opened: OpenedServer) -> None:
        self._engine = opened.engine
        self._ids = CorrelationIds()
        self._addresses = {title: f"{host}:{port}" for title, host, port in opened.listening}

    def __repr__(self) -> str:
        where = ", ".join(f"{title} at {address}" for title, address in self._addresses.items())
        return f"<{type(self).__name__}: {where or 'without ports'}>"

    @property
    def http_address(self) -> str:
        """Host and port; empty if HTTP is not served."""
        return self._addresses.get("HTTPService", "")

    @property
    def grpc_address(self) -> str:
        """Host and port; empty if gRPC is not served."""
        return self._addresses.get("GRPCInferenceService", "")


class RunningServer(_Opened):
    """A server on a thread. Any thread may use it."""

    def __init__(self, thread: LoopThread[OpenedServer], opened: OpenedServer) -> None:
        super().__init__(opened)
        self._thread = thread

    def model(self, name: str, version: int = -1, **options: Any) -> ServedModel:
        """A model to ask. See `trireme.asking.options_of` for the options: ``timeout`` in seconds, ``outputs``,
        ``priority``, ``parameters``, ``request_id``."""
        return ServedModel(self._ask, self._engine, options_of(name, version, **options), self._ids)

    def models(self) -> list[str]:
        """The names of those that are ready."""
        return self._ask(partial(_ready_models, self._engine))

    def ready(self) -> bool:
        """Whether requests are welcome."""
        return self._ask(self._engine.check_ready)

    def load(self, name: str) -> None:
        """See `InferenceServer.load_model`."""
        self._ask(partial(self._engine.load_model, name, {}))

    def unload(self, name: str) -> None:
        """See `InferenceServer.unload_model`."""
        self._ask(partial(self._engine.unload_model, name))

    def _ask(self, work: Callable[[], Awaitable[T]]) -> T:
        return wait_for(self._thread.ask(work))


class AsyncRunningServer(_Opened):
    """A server whose methods are awaited, on the event loop that has opened it."""

    def __init__(self, ask: Any, opened: OpenedServer) -> None:
        super().__init__(opened)
        self._ask: Any = ask

    def model(self, name: str, version: int = -1, **options: Any) -> AsyncServedModel:
        """See `RunningServer.model`."""
        return AsyncServedModel(self._ask, self._engine, options_of(name, version, **options), self._ids)

    async def models(self) -> list[str]:
        """See `RunningServer.models`."""
        return await self._ask(partial(_ready_models, self._engine))

    async def ready(self) -> bool:
        """See `RunningServer.ready`."""
        return await self._ask(self._engine.check_ready)

    async def load(self, name: str) -> None:
        """See `InferenceServer.load_model`."""
        await self._ask(partial(self._engine.load_model, name, {}))

    async def unload(self, name: str) -> None:
        """See `InferenceServer.unload_model`."""
        await self._ask(partial(self._engine.unload_model, name))


class ServedModel:
    """A model, asked with inputs by name. Arrays keep their types, which must be the model's; lists, numbers and texts
    become what the model takes. Ctrl-C cancels what is asked."""

    def __init__(self, ask: Any, engine: InferenceServer, options: AskOptions, ids: CorrelationIds) -> None:
        self._ask: Any = ask
        self._engine, self._options, self._ids = engine, options, ids

    def __call__(self, **inputs: Any) -> Arrays:
        """The outputs by name.

        Raises:
            TriremeError: refused, or the model failed; the kinds are those of `trireme`, the texts what any client
                gets.
            TimeoutError: not within the time.
        """
        return self._ask(partial(ask_once, self._engine, self._options, inputs))

    def stream(self, **inputs: Any) -> Generator[Arrays, None, None]:
        """The answers of a model that answers any number of times. To leave the loop cancels the request.

        Raises:
            TriremeError, TimeoutError: as a call; the time is that of each answer.
        """
        answers = ask_many(self._engine, self._options, inputs)
        try:
            while (answer := self._ask(partial(anext, answers, None))) is not None:
                yield answer
        finally:
            with contextlib.suppress(UnavailableError):  # the server has ended
                self._ask(answers.aclose)

    def sequence(self, correlation_id: int | str = 0) -> SequenceOfRequests:
        """A sequence to send requests in; of an id that was not there before, if none is given."""
        steps = SequenceSteps(_with_id(self._options, correlation_id, self._ids))
        return SequenceOfRequests(self._ask, self._engine, steps)


class SequenceOfRequests:
    """The requests of one sequence, which go to the same instance. The first one begins it."""

    def __init__(self, ask: Any, engine: InferenceServer, steps: SequenceSteps) -> None:
        self._ask: Any = ask
        self._engine, self._steps = engine, steps

    def __call__(self, **inputs: Any) -> Arrays:
        """The next request."""
        return self._ask(partial(ask_once, self._engine, self._steps.next(end=False), inputs))

    def last(self, **inputs: Any) -> Arrays:
        """The request that ends the sequence."""
        return self._ask(partial(ask_once, self._engine, self._steps.next(end=True), inputs))


class AsyncServedModel:
    """A model, asked with inputs by name. See `ServedModel`; cancelling what is awaited cancels the request."""

    def __init__(self, ask: Any, engine: InferenceServer, options: AskOptions, ids: CorrelationIds) -> None:
        self._ask: Any = ask
        self._engine, self._options, self._ids = engine, options, ids

    async def __call__(self, **inputs: Any) -> Arrays:
        """See `ServedModel.__call__`."""
        return await self._ask(partial(ask_once, self._engine, self._options, inputs))

    async def stream(self, **inputs: Any) -> AsyncGenerator[Arrays, None]:
        """See `ServedModel.stream`."""
        answers = ask_many(self._engine, self._options, inputs)
        try:
            while (answer := await self._ask(partial(anext, answers, None))) is not None:
                yield answer
        finally:
            with contextlib.suppress(UnavailableError):
                await self._ask(answers.aclose)

    def sequence(self, correlation_id: int | str = 0) -> AsyncSequenceOfRequests:
        """See `ServedModel.sequence`."""
        steps = SequenceSteps(_with_id(self._options, correlation_id, self._ids))
        return AsyncSequenceOfRequests(self._ask, self._engine, steps)


class AsyncSequenceOfRequests:
    """See `SequenceOfRequests`."""

    def __init__(self, ask: Any, engine: InferenceServer, steps: SequenceSteps) -> None:
        self._ask: Any = ask
        self._engine, self._steps = engine, steps

    async def __call__(self, **inputs: Any) -> Arrays:
        """The next request."""
        return await self._ask(partial(ask_once, self._engine, self._steps.next(end=False), inputs))

    async def last(self, **inputs: Any) -> Arrays:
        """The request that ends the sequence."""
        return await self._ask(partial(ask_once, self._engine, self._steps.next(end=True), inputs))


def _with_id(options: AskOptions, correlation_id: int | str, ids: CorrelationIds) -> AskOptions:
    return replace(options, correlation_id=correlation_id or ids.next())


async def _ready_models(engine: InferenceServer) -> list[str]:
    return sorted({entry.name for entry in engine.repository_index(ready_only=True)})


__all__ = ["AsyncRunningServer", "RunningServer", "Server", "StartError"]
