"""The HTTP and gRPC services of a server: in its own process, or in front ends (`--front-ends`)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import TypeVar

import trio

from ...actors import InferenceServer
from ...engine.errors import TriremeError
from ...front_ends import kinds
from ...front_ends.calls import EngineCalls
from ...front_ends.processes import FrontEnds
from ..grpc.application import GrpcApplication
from ..grpc.service import GrpcService
from ..http.app import HttpApplication, HttpService
from ..logging import Log, LogSettings, log_table
from ..sockets.listener import BindError, reserve
from ..sockets.service import Service, ServiceOptions
from .command import ServeCommand
from .front_end import front_end_command
from .tables import keepalive_table

T = TypeVar("T", bound=ServiceOptions)

_REGION_CHANGES = frozenset({"register_system_region", "register_cuda_region", "unregister_region"})

logger = logging.getLogger("trireme.serve")


class StartError(Exception):
    """The server cannot start; why has been logged."""


class ClientServices(ABC):
    """What clients connect to, but for metrics."""

    @abstractmethod
    async def open(self, nursery: trio.Nursery) -> None:
        """Listen.

        Raises:
            StartError: that is not possible.
        """

    @abstractmethod
    async def drain(self, remaining_s: float) -> float:
        """Accept no more connections, and wait for the open ones; what is left of the time."""


@contextmanager
def services_of(server: InferenceServer, command: ServeCommand, log: Log) -> Iterator[ClientServices]:
    """Those that a command line asks for."""
    if command.front_ends:
        with ExitStack() as reserved:
            yield FrontEndServices(server, command, log, reserved)
    else:
        yield OwnServices(server, command, log)


class OwnServices(ClientServices):
    """In the server's process."""

    def __init__(self, server: InferenceServer, command: ServeCommand, log: Log) -> None:
        self._server = server
        self._command = command
        self._log = log
        self._application: GrpcApplication | None = None
        self._grpc: GrpcService | None = None
        self._http: HttpService | None = None

    async def open(self, nursery: trio.Nursery) -> None:
        server, command = self._server, self._command
        if command.grpc is not None:
            application = self._application = GrpcApplication(server, command.grpc.options, self._log)
            services, guards = application.services, application.guards
            self._grpc = GrpcService(services, command.grpc.service, guards=guards, readiness=server.readiness)
            log_table(keepalive_table(command.grpc.service.http2.keepalive), logging.DEBUG)
            await open_service(self._grpc, "GRPC", "GRPCInferenceService", nursery)
        if command.http is not None:
            self._http = HttpService(HttpApplication(server, command.http.options, self._log), command.http.service)
            await open_service(self._http, "HTTP", "HTTPService", nursery)

    async def drain(self, remaining_s: float) -> float:
        if self._http is not None:
            remaining_s = await self._http.drain(remaining_s)
        if self._grpc is not None and self._application is not None:
            self._application.stop_accepting()
            remaining_s = await self._grpc.drain(remaining_s)
        return remaining_s


class FrontEndServices(ClientServices):
    """In processes of their own.

    Their ports are kept bound by sockets of this process that do not listen, while front ends come and go.
    """

    def __init__(self, server: InferenceServer, command: ServeCommand, log: Log, reserved: ExitStack) -> None:
        self._server = server
        self._command = command
        self._log = log
        self._reserved = reserved
        self._front_ends: FrontEnds | None = None

    async def open(self, nursery: trio.Nursery) -> None:
        command = self._command
        http, grpc = command.http, command.grpc
        try:
            if grpc is not None:
                grpc = grpc._replace(service=self._reserve(grpc.service))
            if http is not None:
                http = http._replace(service=self._reserve(http.service))
            started = front_end_command(replace(command, http=http, grpc=grpc))
            calls = EngineCalls(self._server.management, self._log, self._refused())
            front_ends = self._front_ends = FrontEnds(self._server, calls, command.front_ends, started.start)
            self._log.follow(lambda settings: front_ends.tell((kinds.LOG, _changeable(settings))))
            await nursery.start(front_ends.run)
        except TriremeError as error:
            logger.error("failed to start front ends: %s - %s", error.kind.value, error.message)
            raise StartError from error
        for title, host, port in front_ends.addresses:
            _log_started(title, host, port)

    def _refused(self) -> frozenset[str]:
        """Calls that no client may make, so that a front end that was taken over cannot make them, either."""
        options = [each.options for each in (self._command.http, self._command.grpc) if each is not None]
        return frozenset() if any(each.allow_client_shm for each in options) else _REGION_CHANGES

    def _reserve(self, options: T) -> T:
        binds = []
        for bind in options.bind:
            try:
                sock, exact = reserve(bind, shared=options.reuse_port)
            except BindError as error:
                raise _not_listening(options.name, error) from error
            self._reserved.enter_context(sock)
            binds.append(exact)
        return replace(options, bind=tuple(binds))

    async def drain(self, remaining_s: float) -> float:
        return remaining_s if self._front_ends is None else await self._front_ends.drain(remaining_s)


def _changeable(settings: LogSettings) -> dict[str, object]:
    """The settings of the log that clients may change."""
    values = asdict(settings)
    del values["file"]
    return values


async def open_service(service: Service, name: str, title: str, nursery: trio.Nursery) -> None:
    """Start a service and log where it listens.

    Raises:
        StartError: it cannot listen there.
    """
    try:
        await nursery.start(service.serve)
    except TriremeError as error:
        raise _not_listening(name, error) from error
    for host, port in service.addresses:
        _log_started(title, host, port)


def _not_listening(name: str, error: TriremeError) -> StartError:
    """Say why a service cannot listen."""
    logger.error("failed to start %s service: %s - %s", name, error.kind.value, error.message)
    if isinstance(error, BindError):
        flag = f"--{name.lower()}"
        logger.error("%s-address takes an address of this machine, and %s-port a free port", flag, flag)
    return StartError(error.message)


def _log_started(title: str, host: str, port: int) -> None:
    logger.info("Started %s at %s", title, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
