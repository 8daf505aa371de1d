"""Messages that still arrive count in the server-wide budget, and wait for room in it without holding up anybody."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import trio
from grpc_echo import SERVICE, Echo, ImmediateEcho, serving
from grpc_peer import GrpcPeer, connect, frame
from http2_held import watch
from http_sockets import UNHURRIED, until
from trio.testing import MockClock, wait_all_tasks_blocked

from trireme.actors.budget import InflightBudget, Lease
from trireme.api.grpc.deadlines import Deadlines, Patience
from trireme.api.grpc.framing import MessageReader, prefix
from trireme.api.http2.limits import Http2Limits
from trireme.api.http2.server import Http2Server
from trireme.api.sockets.limits import Limits
from trireme.engine.admission.shares import HURRY_S

UNARY = SERVICE + "Unary"
EACH = SERVICE + "Each"
MIB = 1 << 20
BUDGET_BYTES = 16 * MIB
WINDOW = Http2Limits(stream_window_bytes=100_000, connection_window_bytes=250_000)


class Budgeted(ImmediateEcho):
    """An echo with a budget.

    Attributes:
        budget: of messages that arrive.
    """

    def __init__(self, address_share: float = 1.0) -> None:
        super().__init__()
        self.budget = InflightBudget(1000, BUDGET_BYTES, address_share)
        self.lease: Callable[..., Lease] = self.budget.lease

    @property
    def held_bytes(self) -> int:
        return self.budget.statistics().bytes

    def fill(self) -> list[Lease]:
        """Two leases that leave room for a few bytes only."""
        leases = [self.budget.lease() for _ in range(2)]
        assert leases[0].grow_nowait(MIB)
        assert leases[1].grow_nowait(BUDGET_BYTES - BUDGET_BYTES // 8 - MIB - 20_000)
        return leases


async def send(peer: GrpcPeer, stream_id: int, body: bytes, *, end: bool = True) -> None:
    """All of it, as the windows allow."""
    at = 0
    while at < len(body):
        size = min(peer.h2.local_flow_control_window(stream_id), peer.h2.max_outbound_frame_size, len(body) - at)
        if size:
            peer.h2.send_data(stream_id, body[at : at + size])
            at += size
            await peer.flush()
        else:
            await peer.receive()
    if end:
        peer.h2.end_stream(stream_id)
        await peer.flush()


@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_what_is_announced_is_taken_before_it_comes(path: str) -> None:
    """And given back when the call is over, or when the next message is asked for."""
    echo = Budgeted()
    async with serving([echo]) as service, await connect(service) as peer:
        stream_id = peer.start(path, end=False)
        body = frame(bytes(5 * MIB))
        await send(peer, stream_id, body[:100_000], end=False)
        await until(lambda: echo.held_bytes == 5 * MIB)
        await send(peer, stream_id, body[100_000:])
        assert (await peer.finish(stream_id)).status == "0"
        await until(lambda: echo.held_bytes == 0)
        assert echo.budget.statistics().leases == 0


@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_messages_that_land_in_their_place_are_counted_while_they_arrive(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Once, all of it, before it has a place; one that has no room has none, and its window is not opened for it."""
    echo, size = Budgeted(), 9 * MIB
    places: list[int] = []
    landed: list[int] = []
    land, take = Http2Server.land, Http2Server.landed

    def spied_land(core: Http2Server[Any], stream_id: int, place: memoryview) -> None:
        places.append(echo.held_bytes)
        land(core, stream_id, place)

    def spied_landed(core: Http2Server[Any], piece: memoryview, now_s: float) -> Any:
        landed.append(echo.held_bytes)
        return take(core, piece, now_s)

    monkeypatch.setattr(Http2Server, "land", spied_land)
    monkeypatch.setattr(Http2Server, "landed", spied_landed)
    async with serving([echo]) as service, await connect(service) as peer, await connect(service) as other:
        stream_id = peer.start(path, end=False)
        await send(peer, stream_id, frame(bytes(size))[: 6 * MIB], end=False)
        await until(lambda: landed != [])
        waiting = other.start(path, end=False)
        await send(other, waiting, frame(bytes(size))[:100_000], end=False)
        await until(lambda: echo.budget.statistics().waiting == 1)
        assert (echo.held_bytes, set(places)) == (size, {size})
        alone = len(places)
        window = other.h2.local_flow_control_window(waiting)
        await send(peer, stream_id, frame(bytes(size))[6 * MIB :])
        assert (await peer.finish(stream_id)).status == "0"
        await until(lambda: len(places) > alone)
        assert echo.held_bytes == size
        while other.h2.local_flow_control_window(waiting) <= window:
            await other.receive()
        await send(other, waiting, frame(bytes(size))[100_000:])
        assert (await other.finish(waiting)).status == "0"
        await until(lambda: (echo.held_bytes, echo.budget.statistics().leases) == (0, 0))
        assert set(landed) == set(places) == {size}


@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_a_message_that_holds_more_than_its_share_has_to_hurry_if_others_wait(
    leaping_clock: MockClock, path: str
) -> None:
    """It comes on, and fast enough for any other."""
    echo = Budgeted(address_share=0.5)
    limits = replace(UNHURRIED, body_grace_s=1e6)
    async with (
        serving([echo], limits=limits) as service,
        await connect(service) as peer,
        trio.open_nursery() as nursery,
    ):
        stream_id = peer.start(path, end=False)
        await send(peer, stream_id, frame(bytes(8 * MIB))[:100_000], end=False)
        await until(lambda: echo.held_bytes == 8 * MIB)
        nursery.start_soon(echo.budget.lease(client="other").grow, 8 * MIB)
        await wait_all_tasks_blocked()
        assert echo.budget.statistics().waiting == 1
        leaping_clock.jump(HURRY_S + 1)
        received = await peer.finish(stream_id)
        assert (received.status, received.message) == ("4", "the request message arrives too slowly")
        await until(lambda: echo.budget.statistics().waiting == 0)


@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_small_messages_in_one_piece_take_nothing(path: str) -> None:
    echo = Budgeted()
    echo.lease = lambda: pytest.fail("none is needed")
    async with serving([echo]) as service, await connect(service) as peer:
        assert (await peer.call(path, frame(b"x" * 10_000))).status == "0"
        stream_id = peer.start(path, end=False)  # nor does a small one that comes in pieces
        for at in range(0, 1005, 67):
            await send(peer, stream_id, frame(b"x" * 1000)[at : at + 67], end=False)
        peer.h2.end_stream(stream_id)
        assert (await peer.finish(stream_id)).status == "0"


@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_a_message_without_room_waits_and_is_not_read_on(path: str) -> None:
    """Its window is not opened again; the connection's is, for others, who go on; and so does it when there is room."""
    echo = Budgeted()
    async with serving([echo], http2=WINDOW) as service, await connect(service) as peer:
        full = echo.fill()
        body = frame(b"0123456789" * 30_000)
        waiting = [peer.start(path, end=False) for _ in range(5)]  # twice what the connection's window holds
        for stream_id in waiting:
            await send(peer, stream_id, body[:99_000], end=False)
        await until(lambda: echo.budget.statistics().waiting == 5)
        for _ in range(100):
            other = peer.start(UNARY, end=False)
            await send(peer, other, frame(b"x" * 4000))
            assert (await peer.finish(other)).status == "0"
        assert [peer.h2.local_flow_control_window(stream_id) for stream_id in waiting] == [1000] * 5
        assert echo.budget.statistics().waiting == 5
        for lease in full:
            lease.close()
        for stream_id in waiting:
            await send(peer, stream_id, body[99_000:])
            received = await peer.finish(stream_id)
            assert (received.status, received.data) == ("0", body)
        await until(lambda: echo.held_bytes == 0)
        assert watch(service).unconsumed_bytes == 0


@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_a_message_that_has_all_come_while_it_waited(path: str) -> None:
    """It fits into the window, its end included."""
    echo = Budgeted()
    async with serving([echo], http2=WINDOW) as service, await connect(service) as peer:
        full = echo.fill()
        body = frame(b"0123456789" * 9_000)
        stream_id = peer.start(path, end=False)
        await send(peer, stream_id, body[:50_000], end=False)
        await until(lambda: echo.budget.statistics().waiting == 1)
        await send(peer, stream_id, body[50_000:])
        cut_off = peer.start(path, end=False)
        await send(peer, cut_off, body[:60_000])
        await until(lambda: echo.budget.statistics().waiting == 2)
        for lease in full:
            lease.close()
        received = await peer.finish(stream_id)
        assert (received.status, received.data) == ("0", body)
        received = await peer.finish(cut_off)
        assert received.status == "13"
        await until(lambda: echo.budget.statistics().leases == 0)


@pytest.mark.parametrize("path", [UNARY, EACH])
@pytest.mark.parametrize("end", ["reset", "deadline", "gone"])
async def test_a_call_that_ends_while_waiting_takes_nothing(path: str, end: str) -> None:
    echo = Budgeted()
    async with serving([echo], http2=WINDOW) as service:
        full = echo.fill()
        async with await connect(service) as peer:
            timeout = [("grpc-timeout", "50m")] if end == "deadline" else []
            stream_id = peer.start(path, None, *timeout, end=False)
            await send(peer, stream_id, frame(bytes(MIB))[:50_000], end=False)
            if end == "reset":
                await until(lambda: echo.budget.statistics().waiting == 1)
                peer.h2.reset_stream(stream_id)
                await peer.flush()
            elif end == "deadline":
                assert (await peer.finish(stream_id)).status == "4"
            if end != "gone":
                await until(lambda: echo.budget.statistics().waiting == 0)
                assert (await peer.call(UNARY, frame(b"x"))).status == "0"
        await until(lambda: service.statistics().connections == 0)
        await until(lambda: echo.budget.statistics().waiting == 0)
        for lease in full:
            lease.close()
        assert (echo.held_bytes, echo.budget.statistics().leases) == (0, 0)


@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_too_many_that_wait_are_refused(path: str) -> None:
    """What waits is in memory, a window each; there is a limit of that, too."""
    echo = Budgeted()
    async with (
        serving([echo], http2=WINDOW, max_waiting_bytes=250_000) as service,
        await connect(service) as peer,
    ):
        full = echo.fill()
        waiting = [peer.start(path, end=False) for _ in range(2)]
        for stream_id in waiting:
            await send(peer, stream_id, frame(bytes(MIB))[:50_000], end=False)
        await until(lambda: echo.budget.statistics().waiting == 2)
        stream_id = peer.start(path, end=False)
        await send(peer, stream_id, frame(bytes(MIB))[:50_000], end=False)
        received = await peer.finish(stream_id)
        assert (received.status, received.message) == (
            "14",
            "the server has too many requests in flight, and 200000 bytes of requests wait for room; try again later",
        )
        peer.h2.reset_stream(waiting[0])
        await peer.flush()
        await until(lambda: service._surroundings.waiting.held_bytes == 100_000)
        stream_id = peer.start(path, end=False)
        await send(peer, stream_id, frame(bytes(MIB))[:50_000], end=False)
        await until(lambda: echo.budget.statistics().waiting == 2)
        for lease in full:
            lease.close()


@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_a_message_that_has_room_must_come_on(path: str) -> None:
    """The rest of it never comes; its call ends, and gives the room back."""
    echo = Budgeted()
    async with (
        serving([echo], limits=Limits(body_rate=1000, body_grace_s=0.01)) as service,
        await connect(service) as peer,
    ):
        stream_id = peer.start(path, frame(bytes(300_000))[:50_000], end=False)
        received = await peer.finish(stream_id)
        assert (received.status, received.message) == ("4", "the request message arrives too slowly")
        await until(lambda: echo.budget.statistics().leases == 0)
        assert watch(service).deadlines == 0


async def test_it_is_given_up_in_the_first_period_in_which_too_little_comes(mock_clock: MockClock) -> None:
    given_up: list[str] = []
    deadlines = Deadlines()
    reader = MessageReader(MIB)
    reader.feed(frame(bytes(100_000))[:50_000])
    assert reader.next() is None
    reader.collect()
    limits = Limits(body_rate=1000, body_grace_s=10.0)
    patience = Patience(deadlines, limits, reader, lambda: given_up.append("slow"))

    def later(seconds: float, nbytes: int) -> list[str]:
        reader.feed(bytes(nbytes))
        mock_clock.jump(seconds)
        deadlines.expire(trio.current_time())
        return given_up

    assert later(9.9, 0) == []
    assert later(0.1, 10_000) == []
    assert later(10, 10_000) == []
    assert later(10, 9_999) == ["slow"]
    assert (later(100, 0), len(deadlines)) == (["slow"], 0)
    patience.stop()
    stopped = Patience(deadlines, limits, reader, lambda: given_up.append("too late"))
    stopped.stop()
    assert (later(100, 0), len(deadlines)) == (["slow"], 0)


@pytest.mark.parametrize("path", [UNARY, EACH])
async def test_what_a_message_unpacks_to_is_taken_as_well(path: str) -> None:
    """Nothing is unpacked that has no room: the bomb waits, packed."""
    echo = Budgeted()
    body = frame(gzip.compress(bytes(4 * MIB)), compressed=True)
    async with serving([echo]) as service, await connect(service) as peer:
        full = echo.fill()
        stream_id = peer.start(path, body, ("grpc-encoding", "gzip"))
        await peer.flush()
        await until(lambda: echo.budget.statistics().waiting == 1)
        assert (await peer.call(UNARY, frame(b"x"))).status == "0"
        for lease in full:
            lease.close()
        received = await peer.finish(stream_id)
        assert (received.status, received.data) == ("0", frame(bytes(4 * MIB)))
        await until(lambda: echo.held_bytes == 0)


async def test_messages_that_are_there_already_let_others_in_between() -> None:
    """A window full of small messages is not worked off in one turn."""
    others: list[int] = []

    class Counting(Echo):
        taken = 0

        async def each(self, stream: Any) -> None:
            async for _ in stream:
                self.taken += 1

    async def take_turns() -> None:
        while True:
            others.append(echo.taken)
            await trio.lowlevel.checkpoint()

    echo = Counting()
    async with serving([echo]) as service, await connect(service) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        stream_id = peer.start(EACH, frame(b"") * 5000)
        assert (await peer.finish(stream_id)).status == "0"
        nursery.cancel_scope.cancel()
    assert echo.taken == 5000
    assert max(later - earlier for earlier, later in pairwise(others)) <= 64


async def test_a_message_that_is_read_into_objects_takes_what_they_take() -> None:
    """Bytes of a file, for example: as received, as protobuf reads them, and as they are handed on."""
    echo = Budgeted()
    async with serving([echo]) as service, await connect(service) as peer:
        stream_id = peer.start(UNARY, None, ("do", "nothing else"), end=False)
        seen: list[int] = []

        def decode(data: bytes, _message_type: Any) -> bytes:
            seen.append(echo.held_bytes)
            return bytes(data)

        codec: Any = service._surroundings.codec
        codec.decode = decode
        await send(peer, stream_id, frame(bytes(MIB)))
        assert (await peer.finish(stream_id)).status == "0"
        assert seen == [4 * MIB]
        await until(lambda: echo.held_bytes == 0)


async def test_messages_of_calls_about_the_server_are_small() -> None:
    """Those that carry tensors or files may be large; the limit of all others is known before they come."""

    class Service:
        def __mapping__(self) -> dict[str, Any]:
            mapping = Echo().__mapping__()
            unary = mapping[UNARY]
            names = ("TraceSetting", "RepositoryModelLoad")
            return mapping | {f"/inference.GRPCInferenceService/{name}": unary for name in names}

    async with serving([Service()]) as service, await connect(service) as peer:
        head = prefix(False, 2 * MIB) + bytes(100_000)
        received = await peer.call("/inference.GRPCInferenceService/TraceSetting", head, end=False)
        assert (received.status, received.message) == ("8", f"Received message larger than max ({2 * MIB} vs. {MIB})")
        body = frame(bytes(2 * MIB))
        stream_id = peer.start("/inference.GRPCInferenceService/RepositoryModelLoad", end=False)
        await send(peer, stream_id, body)
        assert (await peer.finish(stream_id)).status == "0"
