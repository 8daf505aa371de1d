"""The connections of a service: how many, how old, and whether their clients are still there.

Nothing here is done per request: no timer, no task, no cancel scope. One sweep at a time looks at every connection's
phase and at how long it has lasted, by a coarse clock that the sweep itself sets.

Rule 1: A phase that lasts longer than its limit ends its connection. Time in `ConnectionPhase.APP` is not limited.
Rule 2: A connection whose application has been running since before the last sweep is polled, without taking data from
        its socket. If the client has closed, the connection is cancelled, and the inference with it
        (docs/reference/http.md#transport).
Rule 3: Closing the sending side alone counts as closing. A client process that dies, exits or closes its socket sends
        the same FIN as one that calls ``shutdown(SHUT_WR)`` and still reads, so a server that means to notice the
        first must take the second for it; Triton's own HTTP library treats an end of stream likewise. Who half-closes
        after the request still gets every answer that is ready before the sweep comes round, and anything that is
        already being sent.
Rule 4: At `Limits.max_connections` the listeners wait for a place.
Rule 5: An address that holds its share of the places (`has_room`) loses an idle connection for each new one; if none is
        idle, the new one is closed.
Rule 6: While the service drains, new connections are accepted and served. A connection answers what its client has
        sent, and then has it connect anew: over HTTP/1.x by ``Connection: close`` in the next answer behind which
        nothing has come, over HTTP/2 by GOAWAY. One that has come since, and was asked nothing yet, is left until it
        is. Over HTTP/1.x what a client sends behind a request while its answer is on the way is read, and not answered:
        the client is told to send it anew. With TLS that goes for requests in further records as well.
Rule 7: Once no more connections are accepted, those in which nothing is asked have little time left.
"""

from __future__ import annotations

import enum
import math
import select
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import islice

import trio

from ...engine.admission.client_bytes import ClientAccounts, ClientBytes
from ...engine.errors import RefusalReason
from ...engine.metrics.refusals import RefusalCounts
from .limits import Limits, has_room
from .transport import Transport

_OWN_BYTES = 1 << 30
_LOOKED_AT = 64
"""Connections of an address among which an idle one is looked for: a client must not be able to make this long."""


class ConnectionPhase(enum.Enum):
    """What a connection is doing."""

    HANDSHAKE = "TLS handshake"
    IDLE = "waiting for a request"
    HEAD = "receiving a request's head"
    BODY = "receiving a body that the application waits for"
    APP = "application running"
    SENDING = "waiting for the client to read"
    ENDING = "cancelled"
    CLOSING = "saying goodbye"
    CALLS = "serving calls"


_EVICTABLE = frozenset((ConnectionPhase.HANDSHAKE, ConnectionPhase.IDLE, ConnectionPhase.HEAD))
"""In which nothing has been asked."""


class Connection(ABC):
    """One client of a service, as its roster knows it; entered there while it lives.

    Attributes:
        since_s: when its phase began, on the roster's clock.
    """

    def __init__(
        self, transport: Transport, roster: Roster, client: tuple[str, int] | None, phase: ConnectionPhase
    ) -> None:
        self._transport = transport
        self._roster = roster
        self._client = client
        self._scope = trio.CancelScope()
        self._unfinished_account = roster.accounts.unfinished
        self._unread_account = roster.accounts.unread
        self.phase = phase
        self.since_s = roster.now_s

    @abstractmethod
    async def run(self) -> None:
        """The connection's life. Takes it off the roster at its end. Raises nothing but cancellation from outside."""

    @property
    def limits(self) -> Limits:
        return self._roster.limits

    def count_refusal(self, reason: RefusalReason | None) -> None:
        """What the client asked, or the connection, is refused before it could be looked at; not for None."""
        if reason is not None:
            self._roster.refusals.count(reason)

    def fileno(self) -> int:
        return self._transport.fileno()

    @property
    def ends(self) -> bool:
        """It has been told to stop at once (`abort`), whatever its phase says: it may not have begun yet."""
        return self._scope.cancel_called

    def enter(self, phase: ConnectionPhase) -> None:
        self.phase = phase
        self.since_s = self._roster.now_s

    @abstractmethod
    def time_out(self) -> None:
        """The phase has lasted too long."""

    def abort(self) -> None:
        """The client has closed its connection, the service is closing, or the place is needed: stop at once."""
        self.enter(ConnectionPhase.ENDING)
        self._scope.cancel()

    @abstractmethod
    def retire(self) -> None:
        """The service drains (rule 6). May be called again."""

    @abstractmethod
    def go_away(self) -> None:
        """The service is about to close: finish what is asked, take nothing new, and close. At once if nothing is."""

    def is_slow(self, now_s: float) -> bool:
        """In `ConnectionPhase.BODY`: the body comes too slowly."""
        return False

    @abstractmethod
    def make_way(self, account: ClientBytes) -> bool:
        """It holds too much (`client_bytes.Holder`)."""


@dataclass(frozen=True, slots=True)
class ServiceStatistics:
    """A service's counters since it started.

    Attributes:
        connections, peak_connections, max_connections: open now, most at a time, bound.
        dropped: connections closed without a word because the service was stopping.
        evicted, refused: connections closed because their address held too many: idle ones, and new ones.
        requests: requests begun (over HTTP: HTTP/1.x ones).
        disconnects: requests cancelled because their client went away.
        timeouts: connections closed because a phase took too long.
        accept_failures: times that accepting failed for want of resources (open files, memory).
        accepting: new connections are served.
    """

    connections: int
    peak_connections: int
    max_connections: int
    accepted: int
    dropped: int
    evicted: int
    refused: int
    requests: int
    disconnects: int
    timeouts: int
    accept_failures: int
    accepting: bool


class Roster:
    """The open connections of one service, their coarse clock and the service's counters.

    Args:
        accounts: of what the connections hold; None for accounts of its own.
        refusals: where connections are counted that are refused, and requests that are none; None for counts of its
            own.

    Attributes:
        now_s: trio's time at the last sweep or arrival: behind the clock by at most one interval.
        accepting: cleared when the service begins to stop.
        lasting: connections live on after an answer; cleared when the service begins to drain, or to stop.
    """

    def __init__(
        self, limits: Limits, accounts: ClientAccounts | None = None, refusals: RefusalCounts | None = None
    ) -> None:
        self.limits = limits
        self.refusals = refusals or RefusalCounts()
        self.accounts = ClientAccounts.of(_OWN_BYTES, limits.address_share) if accounts is None else accounts
        self.now_s = 0.0
        self.accepting = True
        self.lasting = True
        self.accepted = self.dropped = self.evicted = self.refused = 0
        self.requests = self.disconnects = self.timeouts = self.accept_failures = 0
        self._connections: dict[Connection, str] = {}  # and whose they are
        self._addresses: dict[str, dict[Connection, None]] = {}
        self._peak = 0
        self._swept_s = -math.inf
        self._changed = trio.lowlevel.ParkingLot()
        self._limit_s = {  # of phases that have one
            ConnectionPhase.HANDSHAKE: limits.head_timeout_s,
            ConnectionPhase.IDLE: math.inf if limits.idle_timeout_s is None else limits.idle_timeout_s,
            ConnectionPhase.HEAD: limits.head_timeout_s,
            ConnectionPhase.BODY: limits.body_timeout_s,
            ConnectionPhase.SENDING: limits.write_timeout_s,
            ConnectionPhase.CLOSING: limits.linger_timeout_s,
        }

    def __len__(self) -> int:
        return len(self._connections)

    def read_clock(self) -> None:
        """Sets `now_s`, which stands still while there are no connections: to be called before new ones note it."""
        self.now_s = trio.current_time()

    def make_room(self, address: str) -> bool:
        """Whether `address` may connect. If it holds too many connections, an idle one of them makes place."""
        held = self._addresses.get(address)
        if held is None or has_room(len(held), len(self._connections), self.limits):
            return True
        idlest = None
        for connection in list(islice(held, _LOOKED_AT)):
            if connection.phase not in _EVICTABLE or connection.ends:
                held[connection] = held.pop(connection)  # next time others are looked at
            elif idlest is None or connection.since_s < idlest.since_s:
                idlest = connection
        if idlest is None:
            self.refused += 1
            self.refusals.count(RefusalReason.CONNECTION_LIMIT)
            return False
        self.evicted += 1
        self.refusals.count(RefusalReason.CONNECTION_LIMIT)
        idlest.abort()
        return True

    def add(self, connection: Connection, address: str = "") -> None:
        """Enter a new connection of an address (`limits.shared_address`)."""
        self._connections[connection] = address
        self._addresses.setdefault(address, {})[connection] = None
        self.accepted += 1
        self._peak = max(self._peak, len(self._connections))
        self._changed.unpark_all()

    def remove(self, connection: Connection) -> None:
        address = self._connections.pop(connection, None)
        if address is not None:
            held = self._addresses[address]
            del held[connection]
            if not held:
                del self._addresses[address]
        self._forget(connection)
        self._changed.unpark_all()

    def _forget(self, connection: Connection) -> None:
        self.accounts.unfinished.drop(connection)
        self.accounts.unread.drop(connection)

    def hold(self, account: ClientBytes, connection: Connection, nbytes: int) -> None:
        """A connection holds so many bytes in one of the accounts."""
        if nbytes:
            address = self._connections.get(connection)
            if address is not None:  # else it is over
                account.hold(connection, address, nbytes)
        else:
            account.drop(connection)

    def replace(self, connection: Connection, successor: Connection) -> None:
        """`successor` serves the client from now on."""
        address = self._connections.pop(connection)
        self._forget(connection)
        self._connections[successor] = address
        held = self._addresses[address]
        del held[connection]
        held[successor] = None

    def begin_drain(self) -> None:
        """Rule 6."""
        self.lasting = False
        for connection in list(self._connections):
            connection.retire()

    def stop_accepting(self) -> None:
        """No new connections; those that are there finish what they do."""
        self.accepting = self.lasting = False
        for phase in (ConnectionPhase.HANDSHAKE, ConnectionPhase.IDLE, ConnectionPhase.HEAD):
            self._limit_s[phase] = min(self._limit_s[phase], self.limits.linger_timeout_s)
        for connection in list(self._connections):
            connection.go_away()
        self._changed.unpark_all()

    async def change(self) -> None:
        """Waits until a connection has come or gone."""
        await self._changed.park()

    def abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    def statistics(self) -> ServiceStatistics:
        counted = {name: value for name, value in vars(self).items() if name in ServiceStatistics.__slots__}
        return ServiceStatistics(
            connections=len(self), peak_connections=self._peak, max_connections=self.limits.max_connections, **counted
        )

    def sweep(self, now_s: float) -> None:
        """Ends the connections that have run out of time or lost their client."""
        running: dict[int, Connection] = {}
        last_sweep_s, self._swept_s = self._swept_s, now_s
        self.now_s = now_s
        # Locals, and idle ones first: they may be ten thousand, ten times a second.
        idle, app, body = ConnectionPhase.IDLE, ConnectionPhase.APP, ConnectionPhase.BODY
        limits_s = self._limit_s
        idle_is_limited = limits_s[idle] < math.inf
        for connection in self._connections:
            phase = connection.phase
            if phase is idle and not idle_is_limited:
                continue
            if phase is app:
                if connection.since_s < last_sweep_s:
                    running[connection.fileno()] = connection
                continue
            late = now_s - connection.since_s > limits_s.get(phase, math.inf)
            if late or (phase is body and connection.is_slow(now_s)):
                self.timeouts += 1
                connection.time_out()
        poller = select.poll()
        for descriptor in running:
            poller.register(descriptor, select.POLLRDHUP)  # POLLHUP and POLLERR are always reported
        for descriptor, _ in poller.poll(0) if running else ():
            self.disconnects += 1
            running[descriptor].abort()

    async def keep_sweeping(self) -> None:
        """Sweeps until cancelled; sleeps while there are no connections."""
        while True:
            while not self._connections:
                await self.change()
            await trio.sleep(self.limits.sweep_interval_s)
            self.sweep(trio.current_time())
