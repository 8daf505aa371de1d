"""A service: listening sockets, the connections accepted on them, and their end."""

from __future__ import annotations

import logging
import math
import resource
import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import trio

from ...actors.actor import Turn
from ...actors.socket_readiness import Readiness
from ...engine.admission.client_bytes import ClientAccounts
from ...engine.metrics.refusals import RefusalCounts
from .limits import Limits, within_open_files
from .listener import BindError, Listener, endpoint, listen
from .roster import Connection, Roster, ServiceStatistics
from .transport import TlsOptions, Transport, server_context

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Where and how a service listens.

    Attributes:
        bind: addresses, ``host:port`` each (``[host]:port`` for IPv6); port 0 takes any free one.
        tls: certificate and key; None for plain TCP.
        reuse_port: let other processes listen on the same port (``--reuse-http-port``, ``--reuse-grpc-port``).
        name: what the log calls the service: ``HTTP``, ``GRPC``, ``Metrics``.
    """

    bind: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    tls: TlsOptions | None = None
    reuse_port: bool = False
    name: str = "HTTP"


class Service(ABC):
    """Serves connections of one protocol, which TLS offers by ALPN as `protocols`, best first.

    ``await nursery.start(service.serve)`` opens it; `stop` closes it, or `drain` and `close` in two steps when the core
    is to be stopped in between (docs/reference/command-line.md#shutdown).

    Args:
        readiness: where the sockets of clients are watched; None for one of its own.
        accounts, refusals: see `Roster`.
    """

    protocols: tuple[str, ...] = ()

    def __init__(
        self,
        options: ServiceOptions,
        readiness: Readiness | None = None,
        accounts: ClientAccounts | None = None,
        refusals: RefusalCounts | None = None,
    ) -> None:
        self._options = options
        self._readiness = readiness
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._roster = Roster(within_open_files(options.limits, open_files), accounts, refusals)
        self._sockets: list[socket.socket] = []
        self._scope = trio.CancelScope()
        self._closed = trio.Event()

    @abstractmethod
    def connection(self, transport: Transport, client: tuple[str, int] | None, roster: Roster) -> Connection:
        """What serves an accepted client; `client` is its (address, port)."""

    def open(self, turn: Turn) -> None:
        """The service is about to accept connections, which are heard in these turns."""

    async def accompany(self) -> None:
        """What else runs while the service does, until cancelled."""

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """(host, port) of every listening socket, in the order of `ServiceOptions.bind`; empty before `bind`."""
        return tuple(address for each in self._sockets if (address := endpoint(each.getsockname())) is not None)

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports listened on, in the order of `ServiceOptions.bind`."""
        return tuple(port for _, port in self.addresses)

    def statistics(self) -> ServiceStatistics:
        return self._roster.statistics()

    def bind(self) -> None:
        """Opens the ports; clients that connect from now on wait for `serve`, which binds itself if need be.

        Raises:
            BindError: an address is taken or cannot be bound. None is held then.
        """
        try:
            for bind in self._options.bind:
                limits = self._options.limits
                self._sockets.append(listen(bind, reuse_port=self._options.reuse_port, backlog=limits.backlog))
        except BindError:
            self._close_sockets()
            raise

    async def serve(self, *, task_status: trio.TaskStatus[tuple[int, ...]] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until `close` or cancellation. Starts with the ports.

        Raises:
            BindError: see `bind`.
            InvalidArgumentError: the TLS files cannot be used.
        """
        try:
            context = None if self._options.tls is None else server_context(self._options.tls, self.protocols)
            if not self._sockets:
                self.bind()
            with self._scope:
                async with trio.open_nursery() as nursery:
                    readiness = self._readiness
                    if readiness is None:
                        readiness = Readiness()
                        nursery.start_soon(readiness.keep_waking)
                        nursery.start_soon(readiness.turn.keep_running)
                    self.open(readiness.turn)
                    for listening in self._sockets:
                        listener = Listener(self.connection, listening, self._roster, readiness, context)
                        nursery.start_soon(listener.run, nursery.start_soon)
                    nursery.start_soon(self._roster.keep_sweeping)
                    nursery.start_soon(self.accompany)
                    task_status.started(self.ports)
        finally:
            self._roster.abort_all()
            self._close_sockets()
            self._closed.set()

    def begin_drain(self) -> None:
        """Serves on, but has clients connect anew (`Roster.begin_drain`); `drain` follows."""
        self._roster.begin_drain()

    async def drain(self, budget_s: float) -> float:
        """Closes new connections unserved, and idle ones, and waits until the others have gone
        (docs/reference/command-line.md#shutdown).

        Requests on open connections are answered, each as the last one of its connection. Returns what is left of the
        budget, which is used up in steps of a second.
        """
        self._roster.stop_accepting()
        remaining_s = budget_s
        while remaining_s > 0 and len(self._roster):
            count = len(self._roster)
            log.info("Timeout %d: Found %d %s service connections", math.ceil(remaining_s), count, self._options.name)
            with trio.move_on_after(min(1.0, remaining_s)) as step:
                while len(self._roster):
                    await self._roster.change()
            if step.cancelled_caught:
                remaining_s -= 1
        return max(0.0, remaining_s)

    def close(self) -> None:
        """Cancels every connection and closes the ports. Does not wait; `serve` returns soon."""
        self._roster.abort_all()
        self._scope.cancel()

    async def stop(self, budget_s: float) -> float:
        """`drain`, then `close`; returns when all is closed, with what is left of the budget."""
        remaining_s = await self.drain(budget_s)
        self.close()
        await self._closed.wait()
        return remaining_s

    def _close_sockets(self) -> None:
        for each in self._sockets:
            trio.lowlevel.notify_closing(each)
            each.close()
        self._sockets.clear()
