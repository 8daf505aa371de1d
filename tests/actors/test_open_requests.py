"""The requests that instances hold."""

from __future__ import annotations

import trio
from watched_models import virtual_server

from trireme.simulations.models import Profile, simple_model, simple_request


async def test_a_request_is_open_from_its_execution_to_its_answer(autojump_clock) -> None:
    async with virtual_server(simple_model("m", Profile(2.0))) as server, trio.open_nursery() as nursery:
        assert server.open_requests(9) == {}
        for _ in range(2):
            nursery.start_soon(server.infer, simple_request("m"))
        await trio.sleep(1.0)
        found = server.open_requests(9)
        ((open_one,),) = found.values()
        assert list(found) == [("", "m", 1)]
        assert (open_one.end_ns, open_one.instance) == (-1, "m_0")
        assert 0 <= open_one.received_ns <= open_one.start_ns
        assert server.open_requests(0) == {}
        await trio.sleep(4.0)
        assert server.open_requests(9) == {}
