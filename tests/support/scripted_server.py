"""A whole server on a loopback port, in a thread of its own, whose models do what each request tells them to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
from http2_held import watch
from loop_thread import Opened, call_from_thread, loop_thread
from scripted_models import PATIENCE_S, Script, write_scripted_models

from trireme.actors import InferenceServer
from trireme.api.grpc.application import GrpcApplication
from trireme.api.grpc.options import GrpcOptions, GrpcServiceOptions
from trireme.api.grpc.service import GrpcService
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.options import ServerOptions


@dataclass(frozen=True)
class ScriptedServer:
    """Listens at `url`; `call` runs a function on its event loop and gives back the result."""

    url: str
    script: Script
    server: InferenceServer
    application: GrpcApplication
    service: GrpcService
    call: Callable[..., Any]

    def until(self, condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """Wait until something is true on the event loop.

        Raises:
            AssertionError: it never is.
        """
        pause = threading.Event()
        for _ in range(int(patience_s / 0.005)):
            if self.call(condition):
                return
            pause.wait(0.005)
        raise AssertionError("waited in vain")

    @property
    def calls(self) -> int:
        """Open calls."""
        return self.call(lambda: watch(self.service).calls)

    @property
    def inflight(self) -> int:
        """Requests that the server has accepted and not answered."""
        return self.call(lambda: self.server.budget_statistics().requests)


@contextmanager
def scripted_server(
    repository: Path,
    grpc: dict[str, Any] | None = None,
    backends: BackendRegistry | None = None,
    service: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[ScriptedServer]:
    """Serve the scripted models.

    Args:
        repository: an empty folder.
        grpc: `GrpcOptions`.
        backends: other ones than that of the scripted models.
        service: `GrpcServiceOptions`.
        options: `ServerOptions`.
    """
    write_scripted_models(repository)
    script = Script()

    async def serve(opened: Opened[ScriptedServer]) -> None:
        told = ServerOptions(model_repository=(repository,), exit_timeout_s=5, **options)
        async with InferenceServer(told, backends=backends or script.backends()) as server:
            application = GrpcApplication(server, GrpcOptions(**(grpc or {})))
            bind = GrpcServiceOptions(("127.0.0.1:0",), **(service or {}))
            running = GrpcService(application.services, bind, guards=application.guards)
            async with trio.open_nursery() as nursery:
                (port,) = await nursery.start(running.serve)
                await opened(
                    ScriptedServer(f"127.0.0.1:{port}", script, server, application, running, call_from_thread())
                )
                script.close()
                running.close()

    with loop_thread(serve) as running:
        yield running
