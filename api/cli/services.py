"""The HTTP and gRPC services of a server, in its own process; those in front ends are `front_end_services`."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

import trio

from ...actors.facade import Facade
from ...engine.description import ActorNode
from ...engine.errors import TriremeError
from ..grpc.application import GrpcApplication
from ..grpc.service import GrpcService
from ..http.app import HttpService
from ..logging import LogFacade, log_table
from ..sockets.listener import BindError
from ..sockets.service import Service
from .command import ServeCommand
from .tables import keepalive_table

logger = logging.getLogger("trireme.serve")


_AT_ADDRESS_OF_HTTP = ("sagemaker", "vertex-ai", "openai")


class StartError(Exception):
    """The server cannot start; why has been logged."""


Listening = tuple[str, str, int]
"""A service's title, and an address and a port where it listens."""


class ClientServices(ABC):
    """What clients connect to, but for metrics."""

    @property
    def addresses(self) -> Sequence[Listening]:
        """Where it listens, once it does; only of the services that all clients use."""
        return ()

    def processes(self) -> Sequence[ActorNode]:
        """Those that it has of its own, for people to look at."""
        return ()

    @abstractmethod
    async def open(self, nursery: trio.Nursery) -> None:
        """Listen.

        Raises:
            StartError: that is not possible.
        """

    @abstractmethod
    def begin_drain(self) -> None:
        """See `Service.begin_drain`."""

    @abstractmethod
    async def drain(self, remaining_s: float) -> float:
        """Accept no more connections, and wait for the open ones; what is left of the time."""


class OwnServices(ClientServices):
    """In the server's process."""

    def __init__(self, server: Facade, command: ServeCommand, log: LogFacade | None) -> None:
        self._server = server
        self._command = command
        self._log = log
        self._application: GrpcApplication | None = None
        self._grpc: GrpcService | None = None
        self._http: HttpService | None = None
        self._addresses: list[Listening] = []

    @property
    def addresses(self) -> Sequence[Listening]:
        return self._addresses

    async def open(self, nursery: trio.Nursery) -> None:
        server, command = self._server, self._command
        if command.grpc is not None:
            application = self._application = GrpcApplication(server, command.grpc.options, self._log)
            services, guards = application.services, application.guards
            self._grpc = GrpcService(services, command.grpc.service, guards=guards, readiness=server.readiness)
            log_table(keepalive_table(command.grpc.service.http2.keepalive), logging.DEBUG)
            self._addresses += await open_service(self._grpc, "GRPC", "GRPCInferenceService", nursery)
        if command.http is not None:
            self._http = command.http.open(server, self._log)
            self._addresses += await open_service(self._http, "HTTP", "HTTPService", nursery)

    def begin_drain(self) -> None:
        for service in (self._http, self._grpc):
            if service is not None:
                service.begin_drain()

    async def drain(self, remaining_s: float) -> float:
        if self._http is not None:
            remaining_s = await self._http.drain(remaining_s)
        if self._grpc is not None and self._application is not None:
            self._application.stop_accepting()
            remaining_s = await self._grpc.drain(remaining_s)
        return remaining_s


async def open_service(service: Service, name: str, title: str, nursery: trio.Nursery) -> list[Listening]:
    """Start a service, and log where it listens.

    Raises:
        StartError: it cannot listen there.
    """
    try:
        await nursery.start(service.serve)
    except TriremeError as error:
        raise not_listening(name, error) from error
    listening = [(title, host, port) for host, port in service.addresses]
    for each in listening:
        log_started(*each)
    return listening


def not_listening(name: str, error: TriremeError) -> StartError:
    """Say why a service cannot listen."""
    logger.error("failed to start %s service: %s - %s", name, error.kind.value, error.message)
    if isinstance(error, BindError):
        flag = name.lower().replace(" ", "-")
        host = "http" if flag in _AT_ADDRESS_OF_HTTP else flag
        logger.error("--%s-address takes an address of this machine, and --%s-port a free port", host, flag)
    return StartError(error.message)


def log_started(title: str, host: str, port: int) -> None:
    logger.info("Started %s at %s", title, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
