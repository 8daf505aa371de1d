"""`trireme.Fleet/Watch`: what gateways are told of a replica."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import trio
from grpc_fakes import FakeStream, GrpcClient
from grpclib.exceptions import GRPCError
from http_fakes import FakeServer
from multidict import MultiDict, MultiDictProxy
from trio.testing import MockClock

from trireme.api.grpc.application import RestrictedProtocols, paths_of
from trireme.api.grpc.call_head import CallHead
from trireme.api.request_parameters import Restriction
from trireme.proto.messages import trireme as pb

WATCH = "/trireme.Fleet/Watch"


class Watched:
    """A server whose reports are set here."""

    def __init__(self) -> None:
        self.server = FakeServer()
        self.generation = 1
        self.asked: list[int] = []
        self.server.management.fleet_report = self.report  # type: ignore[method-assign]
        self.client = GrpcClient(self.server)

    async def report(self, since: int = 0) -> dict[str, Any]:
        self.asked.append(since)
        return {"generation": self.generation, "state": "ready", "models": [], "all": not since}

    async def watch(self, seconds: float, interval_ms: int = 0) -> list[dict[str, Any]]:
        stream = FakeStream([pb.WatchRequest(interval_ms=interval_ms)])
        with trio.move_on_after(seconds):
            await self.client.handlers[WATCH].func(stream)
        return [orjson.loads(each.json) for each in stream.sent]


@pytest.fixture
def watched() -> Watched:
    return Watched()


async def test_what_does_not_change_is_told_once_a_second(watched: Watched, autojump_clock: MockClock) -> None:
    told = await watched.watch(2.55)
    assert len(told) == 3
    assert watched.asked == [0, *[1] * 25]


async def test_a_change_is_told_at_the_next_interval(watched: Watched, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def change() -> None:
            await trio.sleep(0.31)
            watched.generation = 2

        told = await watched.watch(0.52, interval_ms=50)
    assert [each["generation"] for each in told] == [1, 2]
    assert watched.asked[:8] == [0, 1, 1, 1, 1, 1, 1, 1]
    assert watched.asked[8:] == [2, 2, 2]


async def test_it_ends_with_the_server(watched: Watched, autojump_clock: MockClock) -> None:
    """Or its drain would wait for gateways."""
    watched.server.exiting = True
    (told,) = await watched.watch(10)
    assert told["state"] == "draining"


async def test_it_ends_when_the_service_stops(watched: Watched, autojump_clock: MockClock) -> None:
    watched.client.application.stop_accepting()
    (told,) = await watched.watch(10)
    assert told["state"] == "draining"


def test_restrictions_of_statistics_hold_for_it() -> None:
    assert WATCH in paths_of("statistics")
    guard = RestrictedProtocols([Restriction(("statistics",), "key", "value")])
    with pytest.raises(GRPCError):
        guard(CallHead(WATCH, MultiDictProxy(MultiDict()), user_agent=None))
