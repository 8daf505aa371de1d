"""Accepts connections: one task for a listening socket."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from ...actors.socket_readiness import Readiness
from ...engine.errors import UnavailableError
from .limits import shared_address
from .roster import Connection, Roster
from .transport import PlainTransport, TlsTransport, Transport

log = logging.getLogger(__name__)

_BURST = 64
_AT_ONCE = 8
_MOST_NEW = 1024
_STARVED_S = 0.1
_STARVED_ERRNOS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class BindError(UnavailableError):
    """An address cannot be listened on; the message names it (docs/reference/command-line.md#start)."""


def listen(bind: str, *, reuse_port: bool, backlog: int) -> socket.socket:
    """A listening, non-blocking socket on ``host:port``.

    Raises:
        BindError: the address cannot be bound.
    """
    listening = None
    try:
        host, _, port = bind.rpartition(":")
        host = host.strip("[]")
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, int(port)))
        listening.setblocking(False)
        listening.listen(backlog)  # with SO_REUSEADDR, it may be only here that a taken port shows
    except (OSError, OverflowError) as error:
        if listening is not None:
            listening.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise BindError(f"Socket '{bind}' already in use ") from error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BindError(f"Socket '{bind}' cannot be bound: {reason}") from error
    return listening


def reserve(bind: str, *, shared: bool) -> tuple[socket.socket, str]:
    """A socket that holds a port for sockets of other processes of this user, and does not listen itself; and the
    address with the port, should that be any free one.

    Args:
        shared: servers that this one does not know may listen there, too.

    Raises:
        BindError: the address cannot be bound.
    """
    if not shared:  # or another server's front ends would get half of the connections
        with listen(bind, reuse_port=False, backlog=1) as alone:
            bind = f"{bind.rpartition(':')[0]}:{alone.getsockname()[1]}"
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, int(port)))
    except OSError as error:
        held.close()
        raise BindError(f"Socket '{bind}' cannot be bound: {error.strerror}") from error
    return held, f"{bind.rpartition(':')[0]}:{held.getsockname()[1]}"


def endpoint(address: object) -> tuple[str, int] | None:
    """(host, port) of an IPv4 or IPv6 socket address."""
    return (address[0], address[1]) if isinstance(address, tuple) and len(address) >= 2 else None


@dataclass(slots=True, eq=False)
class Listener:
    """Accepts on one socket and starts a connection for each client.

    While the roster is full it does not accept. An address that holds too many connections gives one up for each new
    one (`roster`, rule 5). Of many clients that connect together all are accepted, which is cheap, so that none waits
    behind all those of another address; they begin when it is their address's turn (`socket_readiness`, rule 5).
    When accepting fails for want of files or memory it pauses, and says so once. When the service is stopping it closes
    new connections at once, without a word (docs/reference/command-line.md#shutdown).
    """

    connect: Callable[[Transport, tuple[str, int] | None, Roster], Connection]
    listening: socket.socket
    roster: Roster
    readiness: Readiness
    context: ssl.SSLContext | None
    _starved: bool = field(default=False, init=False)
    _new: dict[socket.socket, None] = field(default_factory=dict, init=False)  # accepted, and not begun

    @property
    def _has_room(self) -> bool:
        """Another connection may be accepted, if only to be closed."""
        new = len(self._new)
        places = self.roster.limits.max_connections
        return new < _MOST_NEW and (len(self.roster) + new < places or not self.roster.accepting)

    async def run(self, start_soon: Callable[..., None]) -> None:
        """Accepts until cancelled; hands every connection's `run` to `start_soon`."""
        roster = self.roster
        try:
            while True:
                while not self._has_room:
                    if self._new:
                        await trio.lowlevel.checkpoint()
                    else:
                        await roster.change()
                await trio.lowlevel.wait_readable(self.listening)
                if not self._accept_burst(start_soon):
                    await trio.sleep(_STARVED_S)
        finally:
            for client in self._new:
                client.close()
            self._new.clear()

    def _accept_burst(self, start_soon: Callable[..., None]) -> bool:
        """Accepts what has queued up, within bounds. False when there are no resources to accept with."""
        for count in range(_BURST):
            if not self._has_room:
                break
            try:
                client, address = self.listening.accept()
            except OSError as error:
                # Whatever else fails here (the client has left already, the network has) concerns that client only.
                return error.errno not in _STARVED_ERRNOS or self._pause(error)
            self._starved = False
            shared = shared_address(address[0]) if isinstance(address, tuple) else ""
            self._new[client] = None
            begin = partial(self._begin, client, address, shared, start_soon)
            if count < _AT_ONCE and len(self._new) == 1:
                begin()
            else:
                self.readiness.call_in_turn(shared, begin)
        return True

    def _begin(self, client: socket.socket, address: object, shared: str, start_soon: Callable[..., None]) -> None:
        roster = self.roster
        if client not in self._new:
            return  # closed meanwhile
        del self._new[client]
        roster.read_clock()
        if not roster.accepting:
            client.close()
            roster.dropped += 1
        elif not roster.make_room(shared):
            client.close()
        else:
            connection = self._connection(client, address, shared)
            roster.add(connection, shared)
            start_soon(connection.run)

    def _pause(self, error: OSError) -> bool:
        self.roster.accept_failures += 1
        if not self._starved:
            self._starved = True
            log.error(
                "cannot accept connections on %s: %s; trying again until it works (%d connections are open)",
                endpoint(self.listening.getsockname()),
                error.strerror,
                len(self.roster),
            )
        return False

    def _connection(self, client: socket.socket, address: object, shared: str) -> Connection:
        client.setblocking(False)
        with contextlib.suppress(OSError):  # a client that has left already; its connection will find out
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport: Transport
        if self.context is None:
            transport = PlainTransport(client, self.readiness, shared)
        else:
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(client))
            tls = trio.SSLStream(stream, self.context, server_side=True, https_compatible=True)
            transport = TlsTransport(tls, self.readiness, shared)
        return self.connect(transport, endpoint(address), self.roster)
