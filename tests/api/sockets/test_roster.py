"""The sweep over connections: who has run out of time, whose client has left."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from trireme.api.sockets.limits import Limits
from trireme.api.sockets.roster import Connection, ConnectionPhase, Roster
from trireme.engine.admission.client_bytes import ClientBytes

LIMITS = Limits(head_timeout_s=1.0, idle_timeout_s=None, body_timeout_s=2.0, write_timeout_s=3.0, linger_timeout_s=4.0)


class FakeConnection(Connection):
    """A connection in a given phase, over a real pair of sockets."""

    def __init__(self, phase: ConnectionPhase, since_s: float = 0.0) -> None:
        self.phase = phase
        self.since_s = since_s
        self.ours, self.theirs = socket.socketpair()
        self.ended = ""
        self.slow = False
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        raise AssertionError("the roster runs nothing")

    def fileno(self) -> int:
        return self.ours.fileno()

    def time_out(self) -> None:
        self.ended = "time"

    def abort(self) -> None:
        self.ended = "abort"
        self.phase = ConnectionPhase.ENDING
        self._scope.cancel()

    def retire(self) -> None:
        self.ended = "retired"

    def go_away(self) -> None:
        self.ended = "away"

    def is_slow(self, now_s: float) -> bool:
        return self.slow

    def make_way(self, account: ClientBytes) -> bool:
        raise AssertionError("it holds nothing")

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def running() -> Iterator[FakeConnection]:
    connection = FakeConnection(ConnectionPhase.APP)
    yield connection
    connection.close()


@pytest.mark.parametrize(
    ("phase", "limit_s"),
    [
        (ConnectionPhase.HANDSHAKE, 1.0),
        (ConnectionPhase.HEAD, 1.0),
        (ConnectionPhase.BODY, 2.0),
        (ConnectionPhase.SENDING, 3.0),
        (ConnectionPhase.CLOSING, 4.0),
        (ConnectionPhase.IDLE, None),
        (ConnectionPhase.APP, None),
        (ConnectionPhase.ENDING, None),
        (ConnectionPhase.CALLS, None),
    ],
)
async def test_phases_have_limits(phase: ConnectionPhase, limit_s: float | None) -> None:
    roster = Roster(LIMITS)
    connection = FakeConnection(phase)
    roster.add(connection)
    roster.sweep(limit_s or 1e9)
    assert connection.ended == ""
    roster.sweep((limit_s or 1e9) + 0.001)
    assert connection.ended == ("" if limit_s is None else "time")
    assert roster.statistics().timeouts == (limit_s is not None)
    connection.close()


async def test_idle_limit_is_optional() -> None:
    roster = Roster(Limits(idle_timeout_s=10.0))
    connection = FakeConnection(ConnectionPhase.IDLE)
    roster.add(connection)
    roster.sweep(11.0)
    assert connection.ended == "time"
    connection.close()


@pytest.mark.parametrize("leaving", ["close", "reset", "half-close"])
async def test_client_that_left_is_found_at_the_second_sweep(running: FakeConnection, leaving: str) -> None:
    """Who has just begun is let be: most requests are over by then. Half-closing counts as leaving (roster.py)."""
    roster = Roster(LIMITS)
    roster.add(running)
    if leaving == "half-close":
        running.theirs.shutdown(socket.SHUT_WR)
    else:
        if leaving == "reset":
            running.ours.send(b"never read")
        running.theirs.close()
    running.since_s = 5.0
    roster.sweep(5.1)
    assert running.ended == ""
    roster.sweep(5.2)
    assert running.ended == "abort"
    assert roster.statistics().disconnects == 1


async def test_client_that_waits_is_left_in_peace(running: FakeConnection) -> None:
    """Also when it has sent more already, which is not touched."""
    roster = Roster(LIMITS)
    roster.add(running)
    running.theirs.send(b"next request")
    for now_s in (1.0, 2.0, 3.0):
        roster.sweep(now_s)
    assert running.ended == ""
    assert running.ours.recv(100) == b"next request"


async def test_statistics_count(running: FakeConnection) -> None:
    roster = Roster(Limits(max_connections=2))
    other = FakeConnection(ConnectionPhase.IDLE)
    roster.add(running)
    roster.add(other)
    roster.remove(running)
    roster.remove(running)
    statistics = roster.statistics()
    assert (statistics.connections, statistics.peak_connections, statistics.accepted) == (1, 2, 2)
    roster.abort_all()
    assert (other.ended, running.ended) == ("abort", "")
    other.close()


async def test_slow_body_runs_out_of_time(running: FakeConnection) -> None:
    """However recently something came. Other phases are not asked."""
    roster = Roster(LIMITS)
    roster.add(running)
    running.slow = True
    roster.sweep(0.1)
    assert running.ended == ""
    running.phase = ConnectionPhase.BODY
    roster.sweep(0.2)
    assert (running.ended, roster.statistics().timeouts) == ("time", 1)


@pytest.fixture
def crowd() -> Iterator[list[FakeConnection]]:
    connections = [FakeConnection(ConnectionPhase.IDLE, since_s=float(10 - number)) for number in range(5)]
    yield connections
    for connection in connections:
        connection.close()


async def test_address_that_holds_too_many_loses_its_longest_idle(crowd: list[FakeConnection]) -> None:
    roster = Roster(Limits(max_connections=10))
    for connection in crowd:
        assert roster.make_room("greedy")
        roster.add(connection, "greedy")
    assert roster.make_room("other")
    crowd[4].phase = ConnectionPhase.APP  # idle for longest otherwise
    assert roster.make_room("greedy")
    assert [connection.ended for connection in crowd] == ["", "", "", "abort", ""]
    assert roster.statistics().evicted == 1


async def test_one_that_was_told_to_end_before_it_began_makes_place_once(crowd: list[FakeConnection]) -> None:
    """It enters its first phase all the same."""
    roster = Roster(Limits(max_connections=10))
    for connection in crowd:
        assert roster.make_room("greedy")
        roster.add(connection, "greedy")
    assert roster.make_room("greedy")
    crowd[4].phase = ConnectionPhase.IDLE
    assert roster.make_room("greedy")
    assert [connection.ended for connection in crowd] == ["", "", "", "abort", "abort"]


async def test_address_that_holds_too_many_busy_ones_is_refused(crowd: list[FakeConnection]) -> None:
    roster = Roster(Limits(max_connections=10))
    for connection in crowd:
        connection.phase = ConnectionPhase.APP
        roster.add(connection, "greedy")
    assert not roster.make_room("greedy")
    assert roster.make_room("other")
    assert (roster.statistics().refused, roster.statistics().evicted) == (1, 0)
    roster.remove(crowd[0])
    assert roster.make_room("greedy")


async def test_idle_one_is_found_behind_many_busy_ones() -> None:
    """Few are looked at for each newcomer, and other ones the next time."""
    roster = Roster(Limits(max_connections=400))
    connections = [FakeConnection(ConnectionPhase.APP) for _ in range(199)]
    idle = FakeConnection(ConnectionPhase.IDLE)
    for connection in (*connections, idle):
        roster.add(connection, "greedy")
    assert [roster.make_room("greedy") for _ in range(4)] == [False, False, False, True]
    assert idle.ended == "abort"
    for connection in (*connections, idle):
        connection.close()


async def test_successor_counts_for_the_same_address(crowd: list[FakeConnection]) -> None:
    roster = Roster(Limits(max_connections=4))
    first, second, *_ = crowd
    roster.add(first, "someone")
    roster.replace(first, second)
    assert (len(roster), roster.statistics().accepted) == (1, 1)
    roster.remove(first)
    assert len(roster) == 1
    roster.remove(second)
    assert (len(roster), roster.make_room("someone")) == (0, True)


async def test_stopping_leaves_little_time_to_who_asks_nothing(crowd: list[FakeConnection]) -> None:
    """All are told; who does not go is ended, unless something is running."""
    roster = Roster(LIMITS)
    for connection, phase in zip(
        crowd,
        (
            ConnectionPhase.HANDSHAKE,
            ConnectionPhase.IDLE,
            ConnectionPhase.HEAD,
            ConnectionPhase.APP,
            ConnectionPhase.CALLS,
        ),
        strict=True,
    ):
        connection.phase, connection.since_s = phase, 0.0
        roster.add(connection)
    roster.stop_accepting()
    assert [connection.ended for connection in crowd] == ["away"] * 5
    roster.sweep(LIMITS.linger_timeout_s + 0.1)
    assert [connection.ended for connection in crowd] == ["time"] * 3 + ["away"] * 2


async def test_no_sweeping_without_connections(autojump_clock: trio.testing.MockClock) -> None:
    """An idle server does not wake up."""
    roster = Roster(LIMITS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(roster.keep_sweeping)
        await trio.sleep(100)
        assert roster.now_s == 0.0
        connection = FakeConnection(ConnectionPhase.HEAD, since_s=trio.current_time())
        roster.add(connection)
        await trio.sleep(5)
        assert connection.ended == "time"
        nursery.cancel_scope.cancel()
    connection.close()
