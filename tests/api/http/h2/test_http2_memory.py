"""Where bodies over HTTP/2 are received: in a front end's process, in memory that the engine views."""

from __future__ import annotations

import numpy as np
import pytest
from http2_client import http2
from http_sockets import reply, serving

from trireme.actors import socket_readiness
from trireme.actors.offload import body_memory
from trireme.api.http.exchange import Exchange


async def test_a_large_body_is_in_the_memory_that_was_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[memoryview] = []

    def memory(nbytes: int) -> memoryview:
        made.append(body_memory(nbytes))
        return made[-1]

    monkeypatch.setattr(socket_readiness, "body_memory", memory)
    received: list[memoryview] = []

    async def app(exchange: Exchange) -> None:
        more = True
        while more:
            piece, more = await exchange.read()
            if piece:
                received.append(memoryview(piece))
        await reply(exchange)

    body = bytes(range(256)) * 4_096
    async with serving(app) as service, http2(service) as client:
        for sent in (body, b"small"):
            number = await client.begin("POST", "/a", sent, headers=[("content-length", str(len(sent)))])
            assert (await client.finish(number)).status == 200
    assert [len(each) for each in made] == [len(body)]
    assert received[0] == body
    assert np.shares_memory(np.frombuffer(received[0], np.uint8), np.frombuffer(made[0], np.uint8))
