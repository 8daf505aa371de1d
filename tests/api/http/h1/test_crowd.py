"""While many sockets wait for their turn, a connection takes in little at a time: how much, not for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from http_fakes import FakeServer
from http_sockets import PATIENCE_S, Responses, connect, until

from trireme.actors.socket_readiness import Readiness
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import HttpOptions
from trireme.api.http.h1.messages import RequestParser
from trireme.api.sockets.service import ServiceOptions
from trireme.api.sockets.transport import PlainTransport

HEALTH = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int | str]:
    """How many bytes were parsed at once, and when others were let run, in order."""
    steps: list[int | str] = []
    feed, yield_turn = RequestParser.feed, PlainTransport.yield_turn

    def fed(parser: RequestParser, data: bytes) -> None:
        steps.append(len(data))
        feed(parser, data)

    async def yielded(transport: PlainTransport) -> None:
        steps.append("yields")
        await yield_turn(transport)

    monkeypatch.setattr(RequestParser, "feed", fed)
    monkeypatch.setattr(PlainTransport, "yield_turn", yielded)
    return steps


class Crowd(Readiness):
    """Others always wait."""

    @property
    def crowded(self) -> bool:  # type: ignore[override]
        return True

    @crowded.setter
    def crowded(self, crowded: bool) -> None:
        """It stays."""


@asynccontextmanager
async def serving(crowded: bool) -> AsyncIterator[HttpService]:
    readiness = Crowd() if crowded else Readiness()
    server: Any = FakeServer()
    server.readiness = readiness
    service = HttpService(HttpApplication(server, HttpOptions()), ServiceOptions(("127.0.0.1:0",)))
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readiness.keep_waking)
            nursery.start_soon(readiness.turn.keep_running)
            await nursery.start(service.serve)
            yield service
            service.close()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("crowded", [True, False])
async def test_requests_that_come_at_once_are_parsed_a_few_at_a_time(seen: list[int | str], crowded: bool) -> None:
    async with serving(crowded) as service, await connect(service) as client:
        await client.send_all(HEALTH * 1_000)
        answers = Responses(client)
        assert {(await answers.next()).status for _ in range(1_000)} == {200}
    sizes = [each for each in seen if isinstance(each, int)]
    assert sum(sizes) == 1_000 * len(HEALTH)
    if crowded:
        assert max(sizes) == 4096
        assert sizes[0] == 4096


async def test_a_head_of_many_headers_is_parsed_in_parts(seen: list[int | str]) -> None:
    async with serving(crowded=True) as service, await connect(service) as client:
        await client.send_all(HEALTH.removesuffix(b"\r\n") + b"ab: cd\r\n" * 1_000)
        await until(lambda: sum(each for each in seen if isinstance(each, int)) > 8_000)
        assert seen[:3] == [4096, "yields", len(HEALTH) - 2 + 8_000 - 4096]
