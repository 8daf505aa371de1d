"""The HTTP and gRPC services of a server in processes of their own (`--front-ends`); imported where they are wanted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TypeVar

import trio

from ...actors import InferenceServer
from ...engine.description import ActorNode
from ...engine.errors import TriremeError
from ...front_ends import kinds
from ...front_ends.access import write_access
from ...front_ends.calls import EngineCalls
from ...front_ends.processes import FrontEnds
from ..logging import Log, LogSettings
from ..sockets.listener import BindError, reserve
from ..sockets.service import ServiceOptions
from .command import ServeCommand
from .front_end import front_end_command
from .services import ClientServices, Listening, StartError, log_started, not_listening

T = TypeVar("T", bound=ServiceOptions)

_REGION_CHANGES = frozenset({"register_system_region", "register_cuda_region", "unregister_region"})

logger = logging.getLogger("trireme.serve")


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

    @property
    def addresses(self) -> Sequence[Listening]:
        return () if self._front_ends is None else self._front_ends.addresses

    def processes(self) -> Sequence[ActorNode]:
        return [] if self._front_ends is None else self._front_ends.nodes()

    async def open(self, nursery: trio.Nursery) -> None:
        command = self._command
        http, grpc = command.http, command.grpc
        try:
            if grpc is not None:
                grpc = grpc._replace(service=self._reserve(grpc.service))
            if http is not None:
                http = http._replace(service=self._reserve(http.service))
            started = front_end_command(replace(command, http=http, grpc=grpc))
            calls = EngineCalls(self._server.management, self._log, self._refused(), self._server.access)
            front_ends = self._front_ends = FrontEnds(self._server, calls, command.front_ends, started.start)
            access = self._server.access
            if access is not None:
                front_ends.tell(write_access(access))
                access.control.followers.append(lambda: front_ends.tell(write_access(access)))
            self._log.follow(lambda settings: front_ends.tell((kinds.LOG, _changeable(settings))))
            await nursery.start(front_ends.run)
        except TriremeError as error:
            logger.error("failed to start front ends: %s - %s", error.kind.value, error.message)
            raise StartError(error.message) from error
        for listening in self.addresses:
            log_started(*listening)

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
                raise not_listening(options.name, error) from error
            self._reserved.enter_context(sock)
            binds.append(exact)
        return replace(options, bind=tuple(binds))

    def begin_drain(self) -> None:
        if self._front_ends is not None:
            self._front_ends.tell((kinds.BEGIN_DRAIN,))

    async def drain(self, remaining_s: float) -> float:
        return remaining_s if self._front_ends is None else await self._front_ends.drain(remaining_s)


def _changeable(settings: LogSettings) -> dict[str, object]:
    """The settings of the log that clients may change."""
    values = asdict(settings)
    del values["file"]
    return values
