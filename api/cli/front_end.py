"""The process of a front end (`--front-ends`): the HTTP and gRPC services, over an engine in another process.

It is started by the engine (`front_ends.processes`), ends when that does, and holds what it was given: how to listen,
the files for TLS, digests of the keys that restricted calls need, and what models are like. It opens no repository.
"""

from __future__ import annotations

import gc
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import trio

from ...actors.actor import Turn
from ...actors.offload import Offload
from ...actors.socket_readiness import Readiness
from ...engine.errors import TriremeError
from ...engine.options import ServerOptions
from ...front_ends import kinds
from ...front_ends.arena import memory_for
from ...front_ends.child_process import FrontEndCommand
from ...front_ends.link import LinkError, map_rings
from ...front_ends.listener import EngineListener
from ...front_ends.remote_server import RemoteServer
from ...front_ends.uplink import Uplink
from ..grpc.application import GrpcApplication
from ..grpc.service import GrpcService
from ..logging import Log, LogSettings, logging_to
from ..sockets.limits import raise_open_file_limit
from ..sockets.service import Service
from .command import GrpcSettings, ServeCommand
from .http_flags import HttpSettings
from .interpreter import settle_memory, switch_often


@dataclass(frozen=True, slots=True)
class FrontEndSettings:
    """What a front end is told at its start.

    Attributes:
        front_ends: how many there are.
        ruled: there are access rules.
        server: limits alone; it names no repository.
    """

    front_ends: int
    ruled: bool
    server: ServerOptions
    log: LogSettings
    http: HttpSettings | None
    grpc: GrpcSettings | None


def front_end_command(command: ServeCommand) -> FrontEndCommand:
    """How the engine starts front ends. Their services share their ports."""
    given = command.server
    server = ServerOptions(
        max_inflight_requests=given.max_inflight_requests,
        max_inflight_bytes=given.max_inflight_bytes,
        address_share=given.address_share,
        tensor_limits=given.tensor_limits,
        poll_s=given.poll_s,
        model_control_mode=given.model_control_mode,
    )
    http, grpc = command.http, command.grpc
    if http is not None:
        options = replace(http.options, restrictions=tuple(each.sealed() for each in http.options.restrictions))
        http = http._replace(service=replace(http.service, reuse_port=True), options=options)
    if grpc is not None:
        calls = replace(grpc.options, restrictions=tuple(each.sealed() for each in grpc.options.restrictions))
        grpc = GrpcSettings(replace(grpc.service, reuse_port=True), calls)
    ruled = command.access is not None
    settings = pickle.dumps(FrontEndSettings(command.front_ends, ruled, server, command.log, http, grpc))
    return FrontEndCommand((sys.executable, "-m", __name__), settings)


def main(words: Sequence[str]) -> int:
    """Serve until told to stop, or until the engine ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine says when to stop
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sock, rings, nbytes = map(int, words)
    settings: FrontEndSettings = pickle.load(sys.stdin.buffer)  # of the process that has started this one
    with logging_to(settings.log) as log:
        switch_often()
        raise_open_file_limit()
        return trio.run(_run, settings, log, socket.socket(fileno=sock), rings, nbytes)


async def _run(settings: FrontEndSettings, log: Log, sock: socket.socket, rings: int, nbytes: int) -> int:
    turn = Turn()
    sock.setblocking(False)
    uplink = Uplink(sock, map_rings(rings, nbytes, first=False), turn)
    engine_gone = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.keep_running)
        readiness = Readiness(nursery.start_soon, turn, poll_s=settings.server.poll_s)
        readiness.memory = partial(memory_for, uplink.lender)
        offload = Offload()
        offload.start(nursery)
        server = RemoteServer(
            *(uplink.send, turn, readiness, offload, settings.server),
            front_ends=settings.front_ends,
            log_settings=LogSettings,
            lender=uplink.lender,
            ruled=settings.ruled,
        )
        listener = EngineListener(server, uplink.send, log.change)
        nursery.start_soon(_FrontEnd(settings, server, listener, nursery).serve)
        try:
            await uplink.run(listener, readiness)
        except LinkError:
            engine_gone = True
        nursery.cancel_scope.cancel()
    uplink.close()
    return int(engine_gone)


class _FrontEnd:
    """The services of this process."""

    def __init__(
        self, settings: FrontEndSettings, server: RemoteServer, listener: EngineListener, nursery: trio.Nursery
    ) -> None:
        self._settings = settings
        self._server = server
        self._listener = listener
        self._nursery = nursery

    async def serve(self) -> None:
        """Open the services once it is known what is served, and drain them when told to. Ends the process."""
        await self._server.told.wait()
        settings, server, listener = self._settings, self._server, self._listener
        http = grpc = application = None
        addresses = []
        try:
            if settings.grpc is not None:
                application = GrpcApplication(server, settings.grpc.options, server.log)
                services, guards = application.services, application.guards
                grpc = GrpcService(services, settings.grpc.service, guards=guards, readiness=server.readiness)
                await self._nursery.start(grpc.serve)
                addresses += [["GRPCInferenceService", *each] for each in grpc.addresses]
            if settings.http is not None:
                http = settings.http.open(server, server.log)
                await self._nursery.start(http.serve)
                addresses += [["HTTPService", *each] for each in http.addresses]
        except TriremeError as error:
            listener.tell((kinds.FAILED, f"{error.kind.value} - {error.message}"))
            return  # the engine ends this process
        settle_memory()
        listener.tell((kinds.OPENED, addresses))
        listener.begin_drain = partial(_begin_drain, [each for each in (http, grpc) if each is not None])
        if listener.draining:
            listener.begin_drain()
        await listener.drains.wait()
        remaining_s = listener.drains_s
        if http is not None:
            remaining_s = await http.drain(remaining_s)
        if grpc is not None and application is not None:
            application.stop_accepting()
            await grpc.drain(remaining_s)
        self._nursery.cancel_scope.cancel()


def _begin_drain(services: Sequence[Service]) -> None:
    for service in services:
        service.begin_drain()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    gc.disable()
    sys.exit(code)
