"""The link to one replica: a connection that is made anew whenever it is lost, and the calls on it (`gateway.links`).

Rule 1: Calls go to the newest connection that is ready. When it retires (the replica drains, or a connection has its
        age), the next one is made at once, while what is open on the old one is finished.
Rule 2: While the replica takes no more calls at a time, or the next connection is being made, requests wait in a line
        of bounded length. Without a connection, and with a full line, they fail: not executed.
Rule 3: What fails within `infer` is told later in the turn, never from inside.
Rule 4: After a failure the link waits before it connects: twice as long each time, up to a bound, varied by chance.

    DOWN ─ ready ▶ UP ─ the last connection retires or is lost ▶ ANEW ─ ready ▶ UP
      ▲                                                            │
      └───────────────── lost, or no connection to be had ─────────┘
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import trio

from ....actors.actor import Recipient, Turn
from ....actors.socket_readiness import Readiness
from ....engine.errors import DeadlineError, TriremeError, UnavailableError, UnsupportedError
from ....engine.fleet.types import ReplicaLostError
from ....engine.memo import Memo
from ....engine.request import InferenceRequest
from ....gateway.links import LinkEvents, ReplicaCall, RequestAtReplica
from ...http2.driver import ReadingRoom
from ...http2.frames import RequestBlock
from ...http2.headers import encode_block
from ...sockets.transport import PlainTransport, TlsTransport, Transport
from ..infer_writer import KINDS_WANTED
from ..wire import VARINT, tag
from ..wire_writer import varint
from .calls import AskCall, InferCall, StreamCall, WatchCall
from .connection import ReplicaConnection
from .headers import TRACE_HEADERS, may_pass
from .limits import LinkLimits
from .requests import write_infer_request
from .responses import ReplicaResponses

log = logging.getLogger(__name__)

_INFER = "inference.GRPCInferenceService/ModelInfer"
_STREAM_INFER = "inference.GRPCInferenceService/ModelStreamInfer"
_WATCH = "trireme.Fleet/Watch"
_METHODS = 64
_RETRY_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """Of a link since it began.

    Attributes:
        connections: that were ready.
        failures: connections that were lost, or could not be made.
        open_calls: of all kinds, on the connection that takes more.
        waiting: requests in the line.
    """

    connections: int
    failures: int
    open_calls: int
    waiting: int


class GrpcReplicaLink(Recipient):
    """A `gateway.links.ReplicaLink`; `run` is a task of its owner's.

    Args:
        address: ``host:port`` (``[host]:port`` for IPv6) of the replica's gRPC service.
        turn, readiness: of the event loop.
        events: is told how the link fares. `LinkEvents.lost` is told of connections that could not be made, too.
        chance: varies the waits before connecting anew.
        tls: a context for clients that offers ``h2`` by ALPN; None for plain TCP.
        metadata: goes with every call; names in lower case.

    Raises:
        ValueError: the address is none.
    """

    def __init__(
        self,
        address: str,
        turn: Turn,
        readiness: Readiness,
        events: LinkEvents,
        chance: Random,
        *,
        tls: ssl.SSLContext | None = None,
        metadata: Sequence[tuple[str, str]] = (),
        limits: LinkLimits | None = None,
    ) -> None:
        super().__init__()
        self.address = address
        self._host, self._port = split_address(address)
        self._turn = turn
        self._readiness = readiness
        self._events = events
        self._chance = chance
        self._tls = tls
        self._limits = limits or LinkLimits()
        self._names = frozenset(name for name, _ in metadata)
        self._metadata = [(name.encode(), value.encode()) for name, value in metadata]
        self._blocks: Memo[RequestBlock] = Memo(_METHODS, 256)
        self._infer_block = self._block(_INFER)
        self._stream_block = self._block(_STREAM_INFER, (KINDS_WANTED.encode(), b"1"))
        self._responses = ReplicaResponses()
        self._room = ReadingRoom(readiness.buffer)
        self._room.turn = turn
        self._connection: ReplicaConnection | None = None  # ready, and takes calls
        self._next: ReplicaConnection | None = None  # that is being made
        self._changes = trio.lowlevel.ParkingLot()  # of these
        self._without_room = trio.lowlevel.ParkingLot()  # tasks that ask, until there is room or no connection
        self._nursery: trio.Nursery | None = None
        self._is_up = False  # `connected` was told last, rather than `lost`
        self._why = "it was not connected yet"
        self._line: deque[InferCall | StreamCall] = deque()
        self._refused: list[tuple[ReplicaCall, TriremeError]] = []  # rule 3
        self._had_no_room = False
        self._watch: WatchCall | None = None
        self._connections = self._failures = 0

    def __repr__(self) -> str:
        state = "up" if self._is_up else f"down: {self._why}"
        found = self.statistics()
        return f"<GrpcReplicaLink to {self.address}: {state}, {found.open_calls} calls, {found.waiting} waiting>"

    def statistics(self) -> LinkStatistics:
        open_calls = 0 if self._connection is None else len(self._connection.calls)
        return LinkStatistics(self._connections, self._failures, open_calls, len(self._line))

    # ---- requests ----

    def has_room(self) -> bool:
        connection = self._connection
        if connection is not None and not self._line and connection.has_room():
            return True
        self._had_no_room = True
        return False

    def infer(self, request: InferenceRequest, decoupled: bool, call: ReplicaCall) -> RequestAtReplica:
        try:
            parts, size = write_infer_request(request)
        except TriremeError as error:
            error.__traceback__ = None
            self._refuse(call, error)
            return None
        block = self._stream_block if decoupled else self._infer_block
        if request.passed_on or request.trace is not None:
            block = self._with_headers(block, request)
        sent = (StreamCall if decoupled else InferCall)(block, parts, size, call, self._responses)
        connection = self._connection
        if connection is not None and not self._line and connection.core.has_room:
            connection.begin(sent)
        elif not self._is_up:
            self._refuse(call, self._unavailable())
        elif len(self._line) >= self._limits.waiting_requests:
            self._refuse(call, UnavailableError(f"too many requests wait for the replica at {self.address}"))
        else:
            self._line.append(sent)
        return sent

    def cancel(self, sent: RequestAtReplica) -> None:
        if isinstance(sent, InferCall | StreamCall):
            if sent.owner is not None:
                sent.give_up()
            elif sent in self._line:
                self._line.remove(sent)

    def taken(self, sent: RequestAtReplica, count: int) -> None:
        if isinstance(sent, StreamCall):
            sent.taken(count)

    async def ask(self, method: str, message: bytes, timeout_s: float) -> bytes:
        with trio.move_on_after(timeout_s):
            while self._connection is None or not self._connection.core.has_room:
                if not self._is_up:
                    raise self._unavailable()
                await self._without_room.park()
            call = AskCall(self._block(method), message)
            with self._turn:
                self._connection.begin(call)
            try:
                return await call.result()
            finally:
                with self._turn:
                    call.give_up()
        raise DeadlineError(f"the replica at {self.address} did not answer {method} within {timeout_s:g} s")

    def _unavailable(self) -> ReplicaLostError:
        return ReplicaLostError(f"the replica at {self.address} cannot be reached: {self._why}")

    def _refuse(self, call: ReplicaCall, error: TriremeError) -> None:
        self._refused.append((call, error))
        self._turn.post(self)

    def take_turn(self) -> None:
        self.posted = False
        refused, self._refused = self._refused, []
        for call, error in refused:
            call.failed(error, executed=False)
        if self._had_no_room and self.has_room():
            self._had_no_room = False
            self._events.room()

    def fail(self, error: Exception) -> None:
        log.error("unexpected failure of who is told by %r", self, exc_info=error)

    # ---- header blocks ----

    def _block(self, method: str, *more: tuple[bytes, bytes]) -> RequestBlock:
        block = self._blocks.get(method)
        if block is None or more:
            block = RequestBlock(
                encode_block(
                    (
                        (b":method", b"POST"),
                        (b":scheme", b"http" if self._tls is None else b"https"),
                        (b":path", f"/{method}".encode()),
                        (b":authority", self.address.encode()),
                        (b"te", b"trailers"),
                        (b"content-type", b"application/grpc"),
                        *self._metadata,
                        *more,
                    )
                )
            )
            if not more:
                self._blocks.remember(method, block)
        return block

    def _with_headers(self, block: RequestBlock, request: InferenceRequest) -> RequestBlock:
        """A request's header block with those that are its own: its client's, or the context of its trace here."""
        own = {} if request.trace is None else request.trace.headers()
        passed_on = [field for field in request.passed_on if may_pass(*field) and field[0] not in self._names]
        if own:
            passed_on = [*own.items(), *(field for field in passed_on if field[0] not in TRACE_HEADERS)]
        more = encode_block([(name.encode(), value.encode()) for name, value in passed_on])
        return RequestBlock(block.block + more) if more else block

    # ---- connections ----

    async def run(self) -> None:
        """Connects, and connects anew, until cancelled."""
        failures = 0
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            while True:
                began_s = trio.current_time()
                if await self._connect(nursery):
                    while self._connection is not None:
                        await self._changes.park()
                lasted = trio.current_time() - began_s > self._limits.lasting_s
                failures = failures + 1 if not lasted else 0 if self._is_up else 1
                if failures:
                    await trio.sleep(self._retry_s(failures))

    def _retry_s(self, failures: int) -> float:
        limits = self._limits
        longest = min(limits.longest_retry_s, limits.first_retry_s * _RETRY_FACTOR ** min(failures - 1, 32))
        return longest * self._chance.uniform(0.5, 1.0)

    async def _connect(self, nursery: trio.Nursery) -> bool:
        """Waits until a connection is ready, or there is none to be had. Whether there is one."""
        why = f"no connection within {self._limits.connect_timeout_s:g} s"
        with trio.move_on_after(self._limits.connect_timeout_s):
            try:
                transport = await self._open()
            except OSError as error:
                why = f"cannot connect: {os.strerror(error.errno) if error.errno else error}"
            else:
                connection = self._next = ReplicaConnection(self, self._room, transport, self._limits)
                nursery.start_soon(connection.run)
                while self._next is connection:
                    await self._changes.park()
                if self._connection is connection:
                    return True
                why = self._why
        unfinished, self._next = self._next, None
        if unfinished is not None:
            unfinished.abort()
        self._failures += 1
        with self._turn:
            self._down(why)
        return False

    async def _open(self) -> Transport:
        """Raises OSError: no address of the host can be connected to."""
        try:
            found = await trio.socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except UnicodeError as error:  # as of a label that is empty, or longer than 63 characters
            raise OSError(f"'{self._host}' is no name of a host") from error
        problem: OSError = OSError(f"{self._host} has no address")
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            wrapped = trio.socket.from_stdlib_socket(sock)
            connected = False
            try:
                await wrapped.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connected = True
            except OSError as error:
                problem = error
            finally:
                if not connected:
                    wrapped.close()
            if not connected:
                continue
            if self._tls is None:
                return PlainTransport(sock, self._readiness, self.address)
            stream = trio.SSLStream(
                trio.SocketStream(wrapped), self._tls, server_hostname=self._host, https_compatible=True
            )
            return TlsTransport(stream, self._readiness, self.address)
        raise problem

    # ---- what connections tell, in an open turn ----

    def ready(self, connection: ReplicaConnection) -> None:
        if connection is not self._next:  # it took too long
            connection.retire()
            return
        self._next, self._connection = None, connection
        self._connections += 1
        self._changes.unpark_all()
        self._ask_for_reports(connection)
        if not self._is_up:
            self._is_up = True
            self._events.connected()
        self.room(connection)

    def retiring(self, connection: ReplicaConnection) -> None:
        if connection is self._connection:
            self._connection = None
            self._changes.unpark_all()
            watch, self._watch = self._watch, None
            if watch is not None:
                watch.give_up()

    def over(self, connection: ReplicaConnection, why: str, suddenly: bool) -> None:
        self._changes.unpark_all()
        if connection is self._next:
            self._next, self._why = None, why
        elif suddenly:
            self._failures += 1
            self._down(why)

    @property
    def wants_room(self) -> bool:
        return bool(self._line or self._had_no_room or self._without_room)

    def room(self, connection: ReplicaConnection) -> None:
        line = self._line
        if connection is self._connection:
            while line and connection.core.has_room:
                connection.begin(line.popleft())
            if self._had_no_room and not line:
                self._turn.post(self)
            if self._without_room and connection.core.has_room:
                self._without_room.unpark_all()

    def _down(self, why: str) -> None:
        """There is no connection, and none to be had at once."""
        self._why = why
        self._is_up = False
        while self._line:
            self._line.popleft().fail(self._unavailable(), executed=False)
        self._changes.unpark_all()
        self._without_room.unpark_all()
        self._events.lost(why)

    # ---- reports ----

    def _ask_for_reports(self, connection: ReplicaConnection) -> None:
        message = varint(tag(1, VARINT)) + varint(self._limits.report_interval_ms)
        self._watch = WatchCall(
            self._block(_WATCH), message, self._events.report, partial(self._reports_ended, connection)
        )
        connection.begin(self._watch)

    def _reports_ended(self, connection: ReplicaConnection, error: TriremeError | None) -> None:
        self._watch = None
        if error is None or connection is not self._connection:
            return
        if isinstance(error, UnsupportedError):
            self._events.unreported(f"it is no server for gateways: {error.message or 'it does not know this call'}")
            return
        self._events.unreported(error.message)
        if self._nursery is not None:
            self._nursery.start_soon(self._ask_again, connection)

    async def _ask_again(self, connection: ReplicaConnection) -> None:
        await trio.sleep(self._limits.watch_retry_s)
        if connection is self._connection and connection.core.has_room:
            with self._turn:
                self._ask_for_reports(connection)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address. Raises ValueError: it is no ``host:port``."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"'{address}' is no address of a replica, expected host:port")
    return host, int(port)
