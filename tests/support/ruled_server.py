"""A whole server with access rules, over HTTP and gRPC on loopback ports, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from loop_thread import Opened, call_from_thread, loop_thread
from scripted_models import Script, write_scripted_models

from trireme.actors import InferenceServer
from trireme.actors.access_gate import LocalAccess
from trireme.api.grpc.application import GrpcApplication
from trireme.api.grpc.options import GrpcOptions, GrpcServiceOptions
from trireme.api.grpc.service import GrpcService
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import HttpOptions
from trireme.api.sockets.service import ServiceOptions
from trireme.api.sockets.transport import TlsOptions
from trireme.engine.access.control import AccessControl
from trireme.engine.access.keys import make_key
from trireme.engine.access.rules import read_rules
from trireme.engine.clock import SystemClock
from trireme.engine.options import ControlMode, ServerOptions


def key_of(name: str) -> str:
    """The API key of a caller."""
    return make_key(name, name[0] * 43, b"salt" * 4)[0]


def rules_text(**callers: str) -> str:
    """An access file: callers by name, each with its key, and more lines of TOML."""
    return "\n".join(
        f'[[callers]]\nname = "{name}"\n{lines}\n'
        f'[[callers.keys]]\nid = "{name}"\nhash = "{make_key(name, name[0] * 43, b"salt" * 4)[1]}"'
        for name, lines in callers.items()
    )


@dataclass
class Notes:
    """An audit log."""

    lines: list[dict[str, str]] = field(default_factory=list)

    def note(self, **line: str) -> None:
        self.lines.append(line)


@dataclass(frozen=True)
class RuledServer:
    """Listens at the two ports; `call` runs a function on its event loop and gives back the result."""

    http_port: int
    grpc_port: int
    script: Script
    server: InferenceServer
    control: AccessControl
    audit: Notes
    call: Callable[..., Any]

    @property
    def inflight(self) -> tuple[int, int]:
        """Requests and bytes that the server has accepted and not answered."""
        statistics = self.call(self.server.budget_statistics)
        return statistics.requests, statistics.bytes

    def reload(self, text: str) -> None:
        """Other rules."""
        self.call(lambda: self.control.apply(read_rules(text, "rules"), 0.0))


@contextmanager
def ruled_server(repository: Path, text: str, tls: TlsOptions | None = None, **options: Any) -> Iterator[RuledServer]:
    """Serve the scripted models; `repository` is an empty folder, `text` an access file."""
    write_scripted_models(repository)
    script = Script()

    async def serve(opened: Opened[RuledServer]) -> None:
        clock = SystemClock(trio.lowlevel.current_clock().current_time)
        control = AccessControl(read_rules(text, "rules"), bytes(32), clock.now_s())
        audit = Notes()
        explicit: dict[str, Any] = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("*",)}
        told = ServerOptions(model_repository=(repository,), exit_timeout_s=5, **{**explicit, **options})
        access = LocalAccess(control, clock, audit)
        async with InferenceServer(told, backends=script.backends(), access=access) as server:
            application = GrpcApplication(server, GrpcOptions(allow_client_shm=True))
            grpc = GrpcService(application.services, GrpcServiceOptions(("127.0.0.1:0",), tls=tls))
            pages = HttpApplication(server, HttpOptions(allow_client_shm=True))
            http = HttpService(pages, ServiceOptions(("127.0.0.1:0",), tls=tls))
            async with trio.open_nursery() as nursery:
                (grpc_port,) = await nursery.start(grpc.serve)
                (http_port,) = await nursery.start(http.serve)
                ports = http_port, grpc_port
                await opened(RuledServer(*ports, script, server, control, audit, call_from_thread()))
                script.close()
                grpc.close()
                http.close()

    with loop_thread(serve) as running:
        yield running
