"""`trireme serve`: from the command line to the exit code (docs/reference/command-line.md#start,
docs/reference/command-line.md#shutdown).

Start: parse, load the models, gRPC, HTTP, metrics; no port is open before the models are loaded.
End, on SIGINT or SIGTERM: the server drains, if it is to (``--drain-secs``, `engine.draining`). Then HTTP takes no new
connections and waits for the open ones to go, then gRPC does; the server answers what is in flight and unloads; the
ports close. One budget, ``--exit-timeout-secs``, is for all that follows the drain.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from ...actors import InferenceServer, StartupError
from ...actors.access_gate import LocalAccess
from ...actors.route_file import RouteFile
from ...engine.config.json_text import wide_fields
from ...engine.description import IndexEntry
from ...engine.errors import InvalidArgumentError, TriremeError
from ...engine.repository.source import RepositorySource, Scan
from ...engine.repository.temporary import remove_abandoned
from ..access import AccessChecks
from ..console.guard import ConsoleMode
from ..http.app import HttpService
from ..logging import Log, log_bare, log_table, logging_to
from ..metrics.collector import MetricsApplication, ServerCollector
from ..metrics.host import HostMeter
from ..sockets.limits import raise_open_file_limit
from .access import AccessService
from .command import MetricsSettings, ServeCommand, build_command, limits_in_vain
from .flag_table import FLAGS, GROUPS
from .flags import UsageError, parse
from .further_services import FurtherServices
from .interpreter import return_code, settle_memory, switch_often
from .load_log import LoadLog
from .request_logging import RequestLogService
from .services import ClientServices, Listening, OwnServices, StartError, open_service
from .shutdown import EndSignals
from .start_view import StartView, start_view, tell_failures, tell_remedy
from .tables import load_display, startup_tables
from .usage import ServerProgram, answer_as_triton, answer_usage_error

if TYPE_CHECKING:
    from ..console.application import Console
    from .app_serving import ServedApps

logger = logging.getLogger("trireme.serve")

_EXAMPLES = "trireme serve --model-repository models\n  trireme serve app.py --reload"
_PROGRAM = ServerProgram("trireme serve", GROUPS, _EXAMPLES)
_FAILED = 1

Opened = Callable[[InferenceServer, Sequence[Listening]], None]
Refused = Callable[[StartError], None]
_FEW_OPEN_FILES = 16_384


def serve(words: Sequence[str]) -> int:
    """Serve, as the command line after ``serve`` says, until told to stop. Returns the exit code: 0 after a shutdown in
    time; 1 if the command line was wrong, the server could not start, or time ran out."""
    try:
        flags = parse(words, FLAGS, operands=True)
        command = build_command(flags, os.environ)
    except UsageError as error:
        return answer_usage_error(error, _PROGRAM)
    return _serve_command(command, start_view(flags, os.environ))


def serve_as_triton(words: Sequence[str]) -> int:
    """The same for what starts tritonserver: its usage text, and its exit code for help."""
    try:
        command = build_command(parse(words, FLAGS), os.environ)
    except UsageError as error:
        return answer_as_triton(error, "tritonserver", GROUPS)
    return _serve_command(command)


def _serve_command(command: ServeCommand, view: StartView | None = None) -> int:
    for line in command.deprecations:
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(logging_to(command.log, view))
        except OSError as error:
            sys.stderr.write(f"error: cannot open log file '{command.log.file}': {error.strerror}\n")
            return _FAILED
        switch_often()
        return trio.run(_run, command, log, view)


async def _run(command: ServeCommand, log: Log, view: StartView | None) -> int:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        return await run_server(command, log, signals, lambda _server, _addresses: None, view)


async def run_server(
    command: ServeCommand,
    log: Log | None,
    signals: AsyncIterable[int],
    opened: Opened,
    view: StartView | None = None,
    refused: Refused = lambda _error: None,
) -> int:
    """Serve until told to stop.

    Args:
        log: None if this is a part of a program: the log and the interpreter's settings are the program's, and there
            are no front ends in processes of their own.
        signals: numbers of signals as they come; the first one ends the server (`EndSignals`).
        opened: told of the server and of where it listens, as soon as it does.
        view: shows the start to a person; None if there is none.
        refused: told why it does not start, which the log says, too.

    Returns:
        The exit code.
    """
    for warning in command.warnings:
        logger.warning("%s", warning)
    open_files = raise_open_file_limit()
    if 0 <= open_files < _FEW_OPEN_FILES:  # below 0 is without limit
        logger.info("connections are limited by the %d files that the process may have open (ulimit -Hn)", open_files)
    exit_code = 0
    shutdown = EndSignals(command.drain_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shutdown.heed, signals)
        with shutdown.everything:
            exit_code = _FAILED
            exit_code = await _serve(command, log, shutdown, opened, view, refused)
        if not shutdown.serving and shutdown.asked:
            exit_code = 0
        nursery.cancel_scope.cancel()
    return exit_code


async def _serve(
    command: ServeCommand,
    log: Log | None,
    shutdown: EndSignals,
    opened: Opened,
    view: StartView | None,
    refused: Refused,
) -> int:
    try:
        async with contextlib.AsyncExitStack() as stack:
            gate = await _open_access(command, stack)
            routes = None if command.routes is None else RouteFile(command.routes)
            if routes is not None:
                with _reading_routes():
                    await routes.read()
            apps = await _open_apps(command, stack)
            if apps is not None:
                command = replace(command, server=apps.options, apps=None)
            server = await _load(command, log, stack, gate, view, apps)
            if apps is not None:
                following = await stack.enter_async_context(trio.open_nursery())
                stack.callback(following.cancel_scope.cancel)
                following.start_soon(apps.follow, server)
            if routes is not None:
                with _reading_routes():
                    await routes.follow(server.routes)
            if log is not None:
                log.follow(lambda settings: server.tell_requests(settings.verbose > 0))
            in_time = await _serve_ports(server, command, log, shutdown, opened, view)
            if not in_time:
                logger.error("failed to stop server: Internal - Exit timeout expired. Exiting immediately.")
                shutdown.everything.cancel()
                await trio.lowlevel.checkpoint()
    except StartError as error:
        refused(error)
        return _FAILED
    return 0


async def _open_apps(command: ServeCommand, stack: contextlib.AsyncExitStack) -> ServedApps | None:
    """The apps, written as a repository; None if there are none. StartError if one is faulty."""
    if command.apps is None:
        return None
    from ...apps.inspecting import AppError
    from .app_serving import open_apps

    apps = stack.enter_context(open_apps(command.apps, command.server))
    try:
        await apps.write()
    except AppError as error:
        log_bare(f"error: {error}", logging.ERROR)
        raise StartError(str(error)) from error
    return apps


class _Unspecified(RepositorySource):
    """The repositories of a command line that names none."""

    def scan(self) -> Scan:
        raise InvalidArgumentError("--model-repository must be specified")


async def _open_access(command: ServeCommand, stack: contextlib.AsyncExitStack) -> LocalAccess | None:
    """The access rules; None if there are none. StartError if they cannot be read."""
    if command.access is None:
        return None
    try:
        return (await stack.enter_async_context(AccessService(command.access))).gate
    except TriremeError as error:
        log_bare(f"error: reading access rules: {error.kind.value} - {error.message}", logging.ERROR)
        raise StartError(error.message) from error


@contextlib.contextmanager
def _reading_routes() -> Iterator[None]:
    """StartError if the file of routes is faulty: by itself, which is seen before the models are loaded, or as to its
    targets, which are known then."""
    try:
        yield
    except TriremeError as error:
        log_bare(f"error: reading routes: {error.kind.value} - {error.message}", logging.ERROR)
        raise StartError(error.message) from error


async def _load(
    command: ServeCommand,
    log: Log | None,
    stack: contextlib.AsyncExitStack,
    gate: LocalAccess | None,
    view: StartView | None,
    apps: ServedApps | None = None,
) -> InferenceServer:
    """Open the server and show what it has got. StartError if it does not open."""
    server = None
    failed = LoadLog()
    try:
        log_requests = None
        if command.request_log is not None:
            log_requests = await stack.enter_async_context(RequestLogService(command.request_log))
        await trio.to_thread.run_sync(remove_abandoned)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("ModelConfig 64-bit fields:")
            for field in wide_fields():
                logger.debug("\t%s", field)
        with load_display(None if log is None else log.handler) as on_load, failed.listening():
            source = None if command.server.model_repository else _Unspecified()
            progress = on_load if view is None else view.following(on_load)
            server = InferenceServer(command.server, progress, source=source, request_log=log_requests, access=gate)
            await stack.enter_async_context(server)
    except TriremeError as error:
        if server is not None and isinstance(error, StartupError):
            _show_tables(server, error.index)
            tell_failures(command.server, error.index, failed.failures, view, apps)
            if view is not None:
                view.show_failed(error.index)
        log_bare(f"error: creating server: {error.kind.value} - {error.message}", logging.ERROR)
        tell_remedy(error.message, view)
        raise StartError(_why(error, failed.failures)) from error
    for warning in limits_in_vain(command.server.gpu_limits, server.gpus):
        logger.warning("%s", warning)
    _show_tables(server)
    if server.started:
        tell_failures(command.server, server.repository_index(), failed.failures, view, apps)
    return server


def _why(error: TriremeError, failures: Mapping[str, str]) -> str:
    """Why the server does not start, with the reasons of all models that did not load."""
    reasons = dict(failures)
    if isinstance(error, StartupError):
        reasons = {**{entry.name: entry.reason for entry in error.index if entry.reason}, **reasons}
    return "\n".join([error.message, *(f"model '{name}': {reason}" for name, reason in sorted(reasons.items()))])


def _show_tables(server: InferenceServer, index: Sequence[IndexEntry] | None = None) -> None:
    for text in startup_tables(server, index):
        log_table(text)


async def _serve_ports(
    server: InferenceServer,
    command: ServeCommand,
    log: Log | None,
    shutdown: EndSignals,
    opened: Opened,
    view: StartView | None,
) -> bool:
    """Open the ports, serve until a signal comes, and stop in order; whether everything in flight was answered in time.
    StartError if a port cannot be opened."""
    in_time = False
    start_error = None
    with contextlib.ExitStack() as reserved:
        services = _services_of(server, command, log, reserved)
        async with trio.open_nursery() as nursery:
            metrics = None
            if command.metrics is not None:
                console = _console(server, command, command.metrics, log, services)
                metrics = _start_metrics(server, command.metrics, nursery, console)
            own: list[Listening] = []
            further = FurtherServices(server, command, None if metrics is None else metrics.page)
            try:
                await services.open(nursery)
                await further.open(nursery)
                if metrics is not None and command.metrics is not None:
                    service = HttpService(metrics, command.metrics.service, server.client_accounts)
                    own = await open_service(service, "Metrics", "Metrics Service", nursery)
            except StartError as error:
                start_error = error
            else:
                if log is not None:
                    settle_memory()
                shutdown.serving = True
                opened(server, services.addresses)
                if view is not None:
                    shown = [*services.addresses, *own]
                    view.show_started(server, shown, command.http, console=_has_console(command))
                if log is not None:
                    await trio.to_thread.run_sync(return_code)
                await shutdown.until_asked()
                if shutdown.drains_s:
                    logger.info("Draining for %.1f s: not ready, and clients are to connect anew", shutdown.drains_s)
                    server.begin_drain()
                    services.begin_drain()
                    further.begin_drain()
                    await shutdown.until_stop()
                server.end_loads()
                remaining_s = await services.drain(server.options.exit_timeout_s)
                remaining_s = await further.drain(remaining_s)
                in_time = await server.stop(remaining_s)
            nursery.cancel_scope.cancel()
    if start_error is not None:
        raise start_error
    return in_time


def _services_of(
    server: InferenceServer, command: ServeCommand, log: Log | None, reserved: contextlib.ExitStack
) -> ClientServices:
    """Those that the command line asks for. Ports of front ends are kept in `reserved`."""
    if log is None or not command.front_ends:
        return OwnServices(server, command, log)
    from .front_end_services import FrontEndServices

    return FrontEndServices(server, command, log, reserved)


def _has_console(command: ServeCommand) -> bool:
    return command.metrics is not None and command.metrics.console is not ConsoleMode.OFF


def _console(
    server: InferenceServer, command: ServeCommand, settings: MetricsSettings, log: Log | None, services: ClientServices
) -> Console | None:
    """The console; None with ``--console=off``."""
    if settings.console is ConsoleMode.OFF:
        return None
    from ..console.application import Console

    options = None if command.http is None else command.http.options
    access = AccessChecks.of(server, "metrics")
    return Console(server, settings.console, options, log, access, services.processes)


def _start_metrics(
    server: InferenceServer, settings: MetricsSettings, nursery: trio.Nursery, console: Console | None
) -> MetricsApplication:
    """Begin to take readings."""
    meter = HostMeter(
        server.options.gpu_limits.pinned_pool_bytes,
        cpu=settings.cpu,
        gpu=settings.gpu,
        environment=os.environ,
        gpu_uuids=server.gpus.uuids,
        pinned_used_bytes=server.services.pinned_used_bytes,
    )
    if settings.cpu:
        logger.info("Collecting CPU metrics")
    nursery.start_soon(meter.keep_reading, settings.interval_s)
    collector = ServerCollector(
        server, meter.readings, counter_latencies=settings.counter_latencies, quantiles=settings.quantiles
    )
    return MetricsApplication(collector, AccessChecks.of(server, "metrics"), console)
