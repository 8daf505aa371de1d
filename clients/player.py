"""Plays a request log against a running server.

Rules:
 1. In open loop a request is due at its time of the log, however the server does; its latency counts from then, also if
    the client could not send it in time (no coordinated omission). In a closed loop it is due when its client was
    answered and has thought.
 2. Requests of a sequence are sent one after the other, each when the one before it was answered. In a closed loop the
    client that began a sequence goes on with it before it takes anything else.
 3. A connection has one request in flight. There are as many as are needed at a time, up to a limit; beyond that, what
    is due waits for one.
 4. A request whose connection breaks is not sent again: nothing is known of what came of it.
 5. When all have been sent, answers are waited for, for `timeout_s` at most.
"""

from __future__ import annotations

import heapq
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random

import numpy as np

from ..engine.errors import InvalidArgumentError
from ..engine.logs.request_log import LoggedRequest, RequestTraffic
from .connections import BUFFER_BYTES, HttpLoadConnection, LoadConnection, RefusedError
from .grpc_connection import GrpcLoadConnection
from .played import UNANSWERED, PlayedLog
from .prepared import Parts, RequestPreparer
from .stream_connection import StreamLoadConnection
from .target import LoadProtocol, LoadTarget

DEFAULT_CONNECTIONS = 256
_AT_FIRST = 8
_LONGEST_WAIT_S = 1.0
_NO_ANSWER = "not answered in time"
_LEAD_S = 0.05


def play(
    traffic: RequestTraffic,
    target: LoadTarget,
    *,
    connections: int = DEFAULT_CONNECTIONS,
    speed: float = 1.0,
    timeout_s: float = 60.0,
    seed: int = 1,
    maker: RequestPreparer | None = None,
    on_progress: Callable[[int], object] = lambda _answered: None,
) -> PlayedLog:
    """Play a log on connections that are closed afterwards: what `LoadClient` takes and raises, and its `play`."""
    with LoadClient(target, connections, maker) as client:
        return client.play(traffic, speed=speed, timeout_s=timeout_s, seed=seed, on_progress=on_progress)


class LoadClient:
    """Plays logs one after the other. Its connections stay open, and it asks once what it has to know of a model, so
    that a later log costs the server nothing but its requests.

    Args:
        connections: how many there may be at a time.
        maker: makes the requests, if not from what the server says of its models.

    Raises:
        InvalidArgumentError: there is no connection to play on.
    """

    def __init__(
        self, target: LoadTarget, connections: int = DEFAULT_CONNECTIONS, maker: RequestPreparer | None = None
    ) -> None:
        if connections < 1:
            raise InvalidArgumentError(f"connections must be at least 1, not {connections}")
        self._maker = maker or RequestPreparer(target)
        self._target, self._connections = target, connections
        self._pool: ConnectionPool | None = None

    def play(
        self,
        traffic: RequestTraffic,
        *,
        speed: float = 1.0,
        timeout_s: float = 60.0,
        seed: int = 1,
        on_progress: Callable[[int], object] = lambda _answered: None,
    ) -> PlayedLog:
        """Play a log; blocks until all requests are answered, or given up.

        Args:
            speed: so many times as fast as in the log.
            timeout_s: how long to wait for the last answers.
            seed: of the times for which the clients of a closed loop think.
            on_progress: called once in a while with how many requests are done.

        Raises:
            RefusedError: the server cannot be reached, or does not describe a model.
            InvalidArgumentError: there is nothing to play.
        """
        if not traffic.requests:
            raise InvalidArgumentError("the log has no requests")
        if not 0 < speed < float("inf"):
            raise InvalidArgumentError(f"speed must be more than 0, not {speed}")
        parts = [self._maker.make(request) for request in traffic.requests]
        if self._pool is None:  # once the requests are made: a connection without any is closed after a while
            self._pool = ConnectionPool(self._target, self._connections)
        player = _Player(traffic, parts, self._pool, speed, Random(seed))
        player.run(timeout_s, on_progress)
        self._pool.give_up()
        return player.played()

    def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> LoadClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class ConnectionPool:
    """Connections to a server, made as they are needed.

    Args:
        limit: how many there may be.
    """

    def __init__(self, target: LoadTarget, limit: int) -> None:
        self._target = target
        self._limit = limit
        self._made = 0
        self._poller = select.epoll()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._open: dict[int, LoadConnection] = {}
        self._idle: list[LoadConnection] = []
        self._requests: dict[LoadConnection, int] = {}
        try:
            for _ in range(min(_AT_FIRST, limit)):
                self._idle.append(self._connect())
        except OSError as error:
            self.close()
            raise RefusedError(f"no server answers at {target}: {error}") from error

    @property
    def has_room(self) -> bool:
        """A request can be sent now."""
        return bool(self._idle) or len(self._open) < self._limit

    @property
    def in_flight(self) -> Iterable[int]:
        """Requests that are not answered."""
        return list(self._requests.values())

    def send(self, request: int, parts: Parts) -> str:
        """Send a request, of this number. Why that failed; empty if it did not."""
        try:
            connection = self._idle.pop() if self._idle else self._connect()
        except OSError as error:
            return f"no connection: {error.strerror or error}"
        self._requests[connection] = request
        try:
            connection.ask(parts)
            if connection.wanted & select.EPOLLOUT:
                self._poller.modify(connection.socket, connection.wanted)
        except (OSError, RefusedError) as error:
            self._drop(connection)
            return str(error)
        return ""

    def answers(self, wait_s: float) -> list[tuple[int, int, str]]:
        """Wait, for so long at most; requests that are answered now, or lost, each with status and reason."""
        if wait_s > 0:
            select.select([self._poller], [], [], wait_s)  # which takes fractions of milliseconds, as epoll does not
        done: list[tuple[int, int, str]] = []
        for descriptor, what in self._poller.poll(0):
            connection = self._open.get(descriptor)
            if connection is None:
                continue
            try:
                if what & select.EPOLLOUT:
                    connection.flush()
                complete = bool(what & ~select.EPOLLOUT) and connection.receive(self._buffer)
                if connection.wanted & select.EPOLLOUT or what & select.EPOLLOUT:
                    self._poller.modify(descriptor, connection.wanted)
            except RefusedError as error:
                request = self._drop(connection)
                if request is not None:
                    done.append((request, UNANSWERED, str(error)))
                continue
            if complete:
                request = self._requests.pop(connection, None)
                if request is not None:
                    done.append((request, connection.status, connection.reason))
                if connection.usable and request is not None:
                    self._idle.append(connection)
                else:
                    self._drop(connection)
        return done

    def give_up(self) -> None:
        """Close those connections whose requests have not been answered."""
        for connection in list(self._requests):
            self._drop(connection)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()
        self._poller.close()

    def _connect(self) -> LoadConnection:
        target = self._target
        number, self._made = self._made, self._made + 1
        if target.protocol.is_http:
            opened: LoadConnection = HttpLoadConnection(target.port, number, target.host, target.tls)
        else:
            made = StreamLoadConnection if target.protocol is LoadProtocol.STREAM else GrpcLoadConnection
            opened = made(target.port, number, target.host, metadata=target.headers(), tls=target.tls)
        self._open[opened.socket.fileno()] = opened
        self._poller.register(opened.socket, opened.wanted)
        return opened

    def _drop(self, connection: LoadConnection) -> int | None:
        """Close a connection; the number of the request that it had."""
        del self._open[connection.socket.fileno()]
        if connection in self._idle:
            self._idle.remove(connection)
        connection.close()
        return self._requests.pop(connection, None)


class _Player:
    """One play of a log. Times are seconds from its first moment."""

    def __init__(
        self, traffic: RequestTraffic, parts: Sequence[Parts], pool: ConnectionPool, speed: float, chance: Random
    ) -> None:
        requests = traffic.requests
        count = len(requests)
        self._traffic, self._parts, self._pool, self._chance = traffic, parts, pool, chance
        self._loop = traffic.loop
        self._scheduled = np.full(count, np.nan)
        self._sent = np.full(count, np.nan)
        self._latency = np.full(count, np.nan)
        self._status = np.full(count, UNANSWERED, np.int32)
        self._reason = np.zeros(count, np.int32)
        self._reasons = {_NO_ANSWER: 0}
        self._done = 0
        self._next = _successors(requests)
        self._blocked = set(self._next.values())  # the one before has not been answered (rule 2)
        self._held: set[int] = set()  # of these, those that are due
        self._ready: deque[int] = deque(maxlen=count)
        self._untaken: deque[int] = deque(maxlen=count)
        self._due: list[tuple[float, int]] = []
        if self._loop is None:
            first_s = requests[0].offset_s
            self._due = [((each.offset_s - first_s) / speed, at) for at, each in enumerate(requests)]
            heapq.heapify(self._due)
        else:
            self._untaken.extend(at for at in range(count) if at not in self._blocked)
            for _ in range(min(self._loop.clients, len(self._untaken))):
                heapq.heappush(self._due, (0.0, self._untaken.popleft()))

    def run(self, timeout_s: float, on_progress: Callable[[int], object]) -> None:
        """Play."""
        pool, due = self._pool, self._due
        began_s = time.perf_counter() + _LEAD_S
        now_s, heard_s, told_s = -_LEAD_S, 0.0, 0.0
        while self._done < len(self._parts):
            self._take_due(now_s)
            self._send_ready(began_s)
            now_s = time.perf_counter() - began_s
            wait_s = min(_LONGEST_WAIT_S, due[0][0] - now_s) if due else min(_LONGEST_WAIT_S, timeout_s)
            answers = pool.answers(wait_s)
            now_s = time.perf_counter() - began_s
            for at, status, reason in answers:
                self._end(at, status, reason, now_s)
            if answers or due:
                heard_s = now_s
            elif now_s - heard_s > timeout_s:
                return  # rule 5
            if now_s - told_s > _LONGEST_WAIT_S:
                told_s = now_s
                on_progress(self._done)

    def played(self) -> PlayedLog:
        """What was seen."""
        unsent = np.isnan(self._scheduled)
        self._scheduled[unsent] = 0.0
        arrays = self._scheduled, self._sent, self._latency, self._status, self._reason
        return PlayedLog(self._traffic, *arrays, list(self._reasons))

    def _take_due(self, now_s: float) -> None:
        due = self._due
        while due and due[0][0] <= now_s:
            at_s, at = heapq.heappop(due)
            self._scheduled[at] = at_s
            if at in self._blocked and self._loop is None:
                self._held.add(at)
            else:
                self._ready.append(at)

    def _send_ready(self, began_s: float) -> None:
        ready, pool = self._ready, self._pool
        while ready and pool.has_room:
            at = ready.popleft()
            now_s = self._sent[at] = time.perf_counter() - began_s
            failure = pool.send(at, self._parts[at])
            if failure:
                self._end(at, UNANSWERED, failure, now_s)

    def _end(self, at: int, status: int, reason: str, now_s: float) -> None:
        """A request has its answer, or gets none."""
        self._done += 1
        self._status[at] = status
        self._reason[at] = self._reasons.setdefault(reason, len(self._reasons))
        if status != UNANSWERED:
            self._latency[at] = now_s - self._scheduled[at]
        follower = self._next.get(at)
        if self._loop is not None:
            if follower is None and self._untaken:
                follower = self._untaken.popleft()
            if follower is not None:
                think_s = self._loop.think_s
                pause_s = self._chance.expovariate(1 / think_s) if think_s else 0.0
                heapq.heappush(self._due, (now_s + pause_s, follower))
        elif follower is not None:
            self._blocked.discard(follower)
            if follower in self._held:
                self._held.remove(follower)
                self._ready.append(follower)


def _successors(requests: Sequence[LoggedRequest]) -> dict[int, int]:
    """Of each request of a sequence, the one that follows it there."""
    last: dict[tuple[str, int | str], int] = {}
    following: dict[int, int] = {}
    for at, request in enumerate(requests):
        if request.sequence:
            key = request.model, request.sequence
            if key in last and not request.start:
                following[last[key]] = at
            last[key] = at
    return following
