"""Routes in a server: when they do not change, what is counted of rollouts, and what is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from valued_models import CONFIG, Gates, sequence_request, write_model
from valued_server import fails, serving, until

from trireme.actors import InferenceServer
from trireme.engine.errors import UnavailableError

BOTH = CONFIG + "version_policy { all {} }\n"
SEQUENCES = BOTH + "sequence_batching { }\n"
EVEN = {"targets": {"a:1": 50, "a:2": 50}}


async def test_routes_do_not_change_while_the_server_stops(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1, 2: 2}, BOTH)
    async with serving(tmp_path, gates, "a") as server:
        await server.management.set_route("r", EVEN)
        server.end_loads()
        await until(lambda: server.routes._repository.stopping)
        text = "the server is stopping, routes are not changed any more"
        for call in (
            server.management.set_route("r", {"targets": {"a": 100}}),
            server.management.remove_route("r"),
            server.management.stop_rollout("r"),
        ):
            await fails(call, UnavailableError, text)


async def test_a_routes_requests_have_no_share_before_it_is_known_where_they_go(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1, 2: 2}, BOTH)
    async with serving(tmp_path, gates, "a") as server:
        assert server.routes.share("a") is server.routes.share("a", 2)
        await server.management.set_route("a", EVEN)
        assert server.routes.share("a") is None
        assert server.routes.share("a", 2) is not None


def steps_counted(server: InferenceServer) -> float:
    (family,) = (each for each in server.routes.families() if each.name == "trireme_route_rollout_changes_total")
    (sample,) = (each for each in family.samples if dict(each.labels)["state"] == "step")
    return sample.value


async def test_a_step_that_goes_on_is_no_other_step(
    tmp_path: Path, gates: Gates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trireme.routes")
    write_model(tmp_path, "a", {1: 1, 2: 2}, BOTH)
    async with serving(tmp_path, gates, "a") as server:
        canary = {"target": "a:2", "steps": [20, 100], "step-secs": 0.01}
        await server.management.set_route("r", {"targets": {"a:1": 100, "a:2": 0}, "canary": canary})
        await until(lambda: sum("rollout of 'a:2' is step, with 20 %" in line for line in caplog.messages) == 2)
        assert steps_counted(server) == 1
        await server.management.stop_rollout("r")


async def test_sequences_of_which_nothing_is_heard_are_forgotten(
    tmp_path: Path, gates: Gates, mock_clock: trio.testing.MockClock
) -> None:
    write_model(tmp_path, "a", {1: 1, 2: 2}, SEQUENCES)
    async with serving(tmp_path, gates, "a") as server:
        await server.management.set_route("r", EVEN)
        await server.infer(sequence_request("r", 1, "s"))
        assert server.routes._router.sequence_count == 1
        mock_clock.jump(599)
        await trio.testing.wait_all_tasks_blocked()
        assert server.routes._router.sequence_count == 1
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        assert server.routes._router.sequence_count == 0
