"""`trireme gateway`: from the command line to the exit code (docs/gateway.md). It opens its ports when the replicas
have been heard, or soon after; and ends as `trireme serve` does."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import trio

from ...actors.access_gate import LocalAccess
from ...actors.actor import Turn
from ...actors.offload import Offload
from ...actors.socket_readiness import Readiness
from ...actors.tracing import Tracing
from ...engine.clock import SystemClock
from ...engine.errors import InvalidArgumentError, TriremeError
from ...engine.fleet.router import FleetRouter
from ...gateway.api_server import ApiServer
from ...gateway.fleet_file import ConnectionSettings, FleetFile
from ...gateway.kubernetes_membership import KubernetesMembership
from ...gateway.kubernetes_settings import in_cluster
from ...gateway.links import LinkEvents
from ...gateway.management import FleetLog
from ...gateway.membership import Membership
from ...gateway.metrics import FleetCollector
from ...gateway.server import FleetServer
from ...gateway.token_file import read_token
from ..access import AccessChecks
from ..console.fleet_page import FleetPage
from ..grpc.replica.limits import LinkLimits
from ..grpc.replica.link import GrpcReplicaLink
from ..http.app import HttpService
from ..logging import Log, log_bare, logging_to
from ..metrics.collector import MetricsApplication
from ..sockets.limits import raise_open_file_limit
from .access import AccessService
from .command import ServeCommand, build_command
from .flag_table import FLAGS, GROUPS
from .flags import Flag, Group, ParsedFlags, UsageError, parse
from .further_services import OpenAiService
from .interpreter import settle_memory, switch_often
from .services import Listening, OwnServices, StartError, open_service
from .shutdown import EndSignals
from .usage import FIRST, ServerProgram, answer_usage_error
from .values import not_empty

logger = logging.getLogger("trireme.gateway")

_FAILED = 1

_HEARD_WITHIN_S = 2.0
"""Until then ports stay closed, if a replica has not been heard."""

_FLAGS_OF_SERVE = {
    "": ("help",),
    "Server": ("id", "exit-timeout-secs", "drain-secs"),
    "Logging": ("log-verbose", "log-info", "log-warning", "log-error", "log-format", "log-file"),
    "HTTP": (),
    "GRPC": (),
    "OpenAI": (),
    "Metrics": ("allow-metrics", "metrics-address", "metrics-port"),
    "Tracing": ("trace-config",),
    "Limits": (
        "max-inflight-requests",
        "max-inflight-bytes",
        "poll-us",
        "max-address-share",
        "max-tensor-rank",
        "max-tensor-elements",
    ),
    "Access": ("access-config", "audit-log"),
}
"""Those that a gateway has, by group; nothing for all of a group."""

_FLEET = Group(
    "Fleet",
    Flag("fleet", not_empty("--fleet"), "File that says which replicas there are; read again when it changes.", ""),
)


def _groups() -> Iterator[Group]:
    for group in GROUPS:
        names = _FLAGS_OF_SERVE.get(group.title)
        if names is not None:
            yield Group(group.title, *(flag for flag in group.flags if not names or flag.name in names))
        if group.title == "":
            yield _FLEET


GATEWAY_GROUPS = tuple(_groups())
_PROGRAM = ServerProgram("trireme gateway", GATEWAY_GROUPS, "trireme gateway --fleet fleet.toml", ("fleet", *FIRST))
_GATEWAY_FLAGS = {flag.name: flag for group in GATEWAY_GROUPS for flag in group.flags}


@dataclass(frozen=True, slots=True)
class GatewayCommand:
    """A whole `trireme gateway` command line.

    Attributes:
        fleet: the file.
        serve: what it has in common with a server.
    """

    fleet: Path
    serve: ServeCommand


GatewayOpened = Callable[[FleetServer, Sequence[Listening]], None]


def build_gateway_command(words: Iterable[str], environment: dict[str, str]) -> GatewayCommand:
    """Read the command line after ``gateway``. UsageError if it is wrong."""
    parsed = parse(words, _GATEWAY_FLAGS)
    if not parsed["fleet"]:
        raise UsageError("Error: --fleet must be specified.")
    common = ParsedFlags(FLAGS, {name: values for name, values in parsed.given.items() if name != "fleet"})
    return GatewayCommand(Path(parsed["fleet"]), build_command(common, environment))


def run_gateway_command(words: Sequence[str]) -> int:
    """Serve, as the command line after ``gateway`` says, until told to stop; the exit code, as `serve.serve` has it."""
    try:
        command = build_gateway_command(words, dict(os.environ))
    except UsageError as error:
        return answer_usage_error(error, _PROGRAM)
    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(logging_to(command.serve.log))
        except OSError as error:
            sys.stderr.write(f"error: cannot open log file '{command.serve.log.file}': {error.strerror}\n")
            return _FAILED
        switch_often()
        return trio.run(_run, command, log)


async def _run(command: GatewayCommand, log: Log) -> int:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        return await run_gateway(command, log, signals, lambda _server, _addresses: None)


async def run_gateway(command: GatewayCommand, log: Log, signals: AsyncIterable[int], opened: GatewayOpened) -> int:
    """Serve until told to stop.

    Args:
        signals: numbers of signals as they come; the first one ends the gateway (`EndSignals`).
        opened: told of the gateway and of where it listens, as soon as it does.

    Returns:
        The exit code.
    """
    for warning in command.serve.warnings:
        logger.warning("%s", warning)
    raise_open_file_limit()
    exit_code = 0
    shutdown = EndSignals(command.serve.drain_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shutdown.heed, signals)
        with shutdown.everything:
            exit_code = _FAILED
            exit_code = await _Gateway(command, log, shutdown, opened).run()
        if not shutdown.serving and shutdown.asked:
            exit_code = 0
        nursery.cancel_scope.cancel()
    return exit_code


class _Gateway:
    """One run."""

    def __init__(self, command: GatewayCommand, log: Log, shutdown: EndSignals, opened: GatewayOpened) -> None:
        self._command = command
        self._log = log
        self._shutdown = shutdown
        self._opened = opened
        self._pods: KubernetesMembership | None = None

    async def run(self) -> int:
        """Serve; the exit code."""
        started, in_time = True, False
        try:
            async with contextlib.AsyncExitStack() as stack:
                membership, tls, metadata, gate = await self._read(stack)
                async with trio.open_nursery() as nursery:
                    server = await self._start(membership, tls, metadata, gate, nursery)
                    in_time = await self._serve(server, membership, nursery)
                    nursery.cancel_scope.cancel()
        except* StartError:
            started = False
        if started and not in_time:
            logger.error("failed to stop gateway: Internal - Exit timeout expired. Exiting immediately.")
        return 0 if in_time else _FAILED

    async def _read(
        self, stack: contextlib.AsyncExitStack
    ) -> tuple[Membership, ssl.SSLContext | None, list[tuple[str, str]], LocalAccess | None]:
        """The files that the command line names. StartError if one is faulty."""
        gate = None
        try:
            membership = await Membership.open(self._command.fleet)
            self._pods = await _find_pods(membership.file)
            connection = membership.file.connection
            tls, metadata = await trio.to_thread.run_sync(_credentials, connection)
            if self._command.serve.access is not None:
                gate = (await stack.enter_async_context(AccessService(self._command.serve.access))).gate
        except TriremeError as error:
            log_bare(f"error: starting the gateway: {error.kind.value} - {error.message}", logging.ERROR)
            raise StartError(error.message) from error
        return membership, tls, metadata, gate

    async def _start(
        self,
        membership: Membership,
        tls: ssl.SSLContext | None,
        metadata: list[tuple[str, str]],
        gate: LocalAccess | None,
        nursery: trio.Nursery,
    ) -> FleetServer:
        """A gateway that has heard its replicas, or was not able to in `_HEARD_WITHIN_S`."""
        options = self._command.serve.server
        clock = SystemClock(trio.lowlevel.current_clock().current_time)
        turn = Turn()
        nursery.start_soon(turn.keep_running)
        readiness = Readiness(nursery.start_soon, turn, poll_s=options.poll_s)
        offload = Offload()
        offload.start(nursery)
        tracing = Tracing(options.tracing, clock)
        tracing.start(nursery)
        router = FleetRouter(membership.file.settings, Random())
        start_link = partial(_start_link, membership.file, turn, readiness, tls, metadata)
        server = FleetServer(router, turn, readiness, offload, options, tracing.tracer, clock, start_link, gate)
        await nursery.start(server.run)
        await nursery.start(membership.follow, server)
        if self._pods is not None:
            await nursery.start(self._pods.follow, server)
        with trio.move_on_after(_HEARD_WITHIN_S):
            await server.until(lambda: all(replica.reported for replica in server.members.values()))
        for replica in server.members.values():
            logger.info("replica %s at %s: %s", replica.name, replica.address, replica.state)
        return server

    async def _serve(self, server: FleetServer, membership: Membership, nursery: trio.Nursery) -> bool:
        """Open the ports, serve until a signal comes, and stop in order; whether that was in time."""
        command, shutdown = self._command.serve, self._shutdown
        log = FleetLog(self._log, server.management.make)
        services = OwnServices(server, command, log)
        openai = OpenAiService(server, command)
        await services.open(nursery)
        await openai.open(nursery)
        if command.metrics is not None:
            access = AccessChecks.of(server, "metrics")
            page = FleetPage(server, membership.consoles, access)
            application = MetricsApplication(FleetCollector(server), access, page)
            service = HttpService(application, command.metrics.service, server.client_accounts)
            await open_service(service, "Metrics", "Metrics Service", nursery)
        settle_memory()
        shutdown.serving = True
        self._opened(server, services.addresses)
        await shutdown.until_asked()
        if shutdown.drains_s:
            logger.info("Draining for %.1f s: not ready, and clients are to connect anew", shutdown.drains_s)
            server.begin_drain()
            services.begin_drain()
            openai.begin_drain()
            await shutdown.until_stop()
        remaining_s = await openai.drain(await services.drain(command.server.exit_timeout_s))
        return await server.stop(remaining_s)


async def _find_pods(file: FleetFile) -> KubernetesMembership | None:
    """What follows the replicas' Service, if the file names one. TriremeError if that cannot be."""
    if file.kubernetes is None:
        return None
    settings = await trio.to_thread.run_sync(in_cluster, file.kubernetes, os.environ)
    return KubernetesMembership(settings, ApiServer(settings, Random()), Random())


def _credentials(connection: ConnectionSettings) -> tuple[ssl.SSLContext | None, list[tuple[str, str]]]:
    """How replicas are connected to, and what goes with each call. Blocks. InvalidArgumentError if a file is faulty."""
    metadata: list[tuple[str, str]] = []
    try:
        if connection.token_file is not None:
            token = read_token(connection.token_file)
            metadata.append(("authorization", f"Bearer {token}"))
        if not connection.tls:
            return None, metadata
        context = ssl.create_default_context(cafile=connection.ca_file)
        context.set_alpn_protocols(["h2"])
        if connection.certificate_file is not None:
            context.load_cert_chain(connection.certificate_file, connection.key_file)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise InvalidArgumentError(f"[connection] of the file of the fleet: {error}") from error
    return context, metadata


def _start_link(
    file: FleetFile,
    turn: Turn,
    readiness: Readiness,
    tls: ssl.SSLContext | None,
    metadata: list[tuple[str, str]],
    address: str,
    events: LinkEvents,
) -> GrpcReplicaLink:
    limits = LinkLimits(report_interval_ms=file.report_interval_ms)
    return GrpcReplicaLink(address, turn, readiness, events, Random(), tls=tls, metadata=metadata, limits=limits)
