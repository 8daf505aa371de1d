"""Routes in a server: requests for a name go to its targets, and changes lose nothing (`actors.routes`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from valued_models import CONFIG, Gates, value_of, valued_request, write_model
from valued_server import fails, serving

from trireme.actors import InferenceServer
from trireme.engine.errors import NotFoundError

BOTH = CONFIG + "version_policy { all {} }\n"
SEQUENCES = BOTH + "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n"
WIDE = BOTH.replace("dims: [ 1 ]", "dims: [ 2 ]", 1)


def shares(old: int, new: int, **others: Any) -> dict[str, Any]:
    return {"targets": {"a:1": old, "a:2": new}, **others}


async def answers(server: InferenceServer, count: int, name: str = "r", **fields: Any) -> Counter[float]:
    """What so many requests are answered."""
    return Counter([value_of(await server.infer(replace(valued_request(name), **fields))) for _ in range(count)])


async def route(server: InferenceServer, name: str = "r") -> dict[str, Any]:
    (shown,) = await server.management.route_status(name)
    return shown


async def test_requests_go_to_the_targets_by_their_weights_and_the_answer_names_who_gave_it(
    tmp_path: Path, gates: Gates
) -> None:
    write_model(tmp_path, "a", {1: 1, 2: 2}, BOTH)
    async with serving(tmp_path, gates, "a") as server:
        await server.management.set_route("r", shares(75, 25))
        assert await answers(server, 100) == {1: 75, 2: 25}
        response = await server.infer(valued_request("r"))
        assert (response.model_name, response.model_version) == ("a", int(value_of(response)))
        await server.management.set_route("r", shares(0, 100))
        assert await answers(server, 10) == {2: 10}
        await server.management.remove_route("r")
        await fails(server.infer(valued_request("r")), NotFoundError, "Request for unknown model: 'r' is not found")


async def test_a_route_may_have_the_name_of_the_model_whose_versions_it_leads_to(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1, 2: 2}, BOTH)
    async with serving(tmp_path, gates, "a") as server:
        model = server.describe("a")
        await server.management.set_route("a", shares(100, 0))
        assert server.describe("a") is not model
        assert await answers(server, 5, "a") == {1: 5}
        assert await answers(server, 5, "a", model_version=2) == {2: 5}
        await server.management.remove_route("a")
        assert await answers(server, 5, "a") == {2: 5}
