"""Routes in a server: requests for a name go to its targets, and changes lose nothing (`actors.routes`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from later_files import later_change
from valued_models import CONFIG, Gates, sequence_request, value_of, valued_request, write_model
from valued_server import fails, serving, until

from trireme.actors import InferenceServer
from trireme.actors.route_file import RouteFile
from trireme.engine.errors import ColdModelError, InvalidArgumentError, NotFoundError, RefusalReason, UnavailableError
from trireme.engine.options import ControlMode
from trireme.engine.request import InferenceRequest, Routing
from trireme.engine.routing.route import ModelRoute, Target

BOTH = CONFIG + "version_policy { all {} }\n"
SLOTS = "instance_group { count: 5 kind: KIND_CPU }\n"
SEQUENCES = BOTH + SLOTS + "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n"
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


async def test_changes_of_operators_are_in_the_log(
    tmp_path: Path, gates: Gates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trireme.routes")
    write_model(tmp_path, "a", {1: 1, 2: 2}, BOTH)
    async with serving(tmp_path, gates, "a") as server:
        await server.management.set_route("r", shares(75, 25))
        await server.management.remove_route("r")
    assert [line for line in caplog.messages if line.startswith("route")] == [
        "route 'r' was set while the server runs: 75 % to 'a:1', 25 % to 'a:2'",
        "route 'r' was removed while the server runs",
    ]


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


# ---- which target ----


async def test_what_a_route_is_sticky_by_decides(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1, 2: 2}, BOTH)
    async with serving(tmp_path, gates, "a") as server:
        by: dict[str, Callable[[int], dict[str, Any]]] = {
            "header:x-user": lambda number: {"routing": Routing(f"user {number}")},
            "parameter:user": lambda number: {"parameters": {"user": number}},
            "request-id": lambda number: {"id": f"request {number}"},
        }
        for sticky, fields in by.items():
            await server.management.set_route("r", shares(50, 50, sticky=sticky))
            assert server.describe("r").key_header == ("x-user" if sticky.startswith("header") else "")
            seen = [await answers(server, 3, **fields(number)) for number in range(24)]
            assert all(len(each) == 1 for each in seen)
            assert {value for each in seen for value in each} == {1, 2}


async def test_sequences_end_where_they_began_though_their_route_changes_or_goes(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1, 2: 2}, SEQUENCES)
    async with serving(tmp_path, gates, "a") as server:

        async def tell(sequence: int, flags: str = "") -> float:
            return value_of(await server.infer(sequence_request("r", sequence, flags)))

        await server.management.set_route("r", shares(100, 0))
        assert [await tell(number, "s") for number in (1, 2, 3)] == [1, 1, 1]
        await server.management.set_route("r", shares(0, 100))
        assert [await tell(1), await tell(4, "s"), await tell(1, "e"), await tell(1, "s")] == [1, 2, 1, 2]
        await server.management.remove_route("r")
        assert server.describe("r").config.has_sequence_batching
        assert [await tell(2), await tell(4), await tell(2, "e"), await tell(4, "e")] == [1, 2, 1, 2]
        await fails(tell(5, "s"), NotFoundError, "Request for unknown model: 'r' is not found")
        assert [await tell(3, "e"), await tell(1, "e")] == [1, 2]
        await fails(tell(3), NotFoundError, "Request for unknown model: 'r' is not found")
        with pytest.raises(NotFoundError):
            server.describe("r")


async def test_a_sequence_that_began_at_the_model_of_a_routes_name_ends_there(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1, 2: 2}, SEQUENCES)
    async with serving(tmp_path, gates, "a") as server:

        async def tell(sequence: int, flags: str = "") -> float:
            return value_of(await server.infer(sequence_request("a", sequence, flags)))

        assert await tell(1, "s") == 2
        await server.management.set_route("a", shares(100, 0))
        assert [await tell(2, "s"), await tell(1), await tell(1, "e"), await tell(1, "s")] == [1, 2, 2, 1]


async def test_a_target_that_is_unloaded_answers_what_it_has_and_the_others_what_comes(
    tmp_path: Path, gates: Gates
) -> None:
    for name, value in (("one", 1), ("two", 2)):
        write_model(tmp_path, name, {1: value})
    async with serving(tmp_path, gates, "one", "two") as server, trio.open_nursery() as nursery:
        await server.management.set_route("r", {"targets": {"one": 50, "two": 50}})
        told: list[float] = []

        async def tell(gate: str) -> None:
            told.append(value_of(await server.infer(valued_request("r", gate=gate))))

        for _ in range(6):
            nursery.start_soon(tell, "go")
        await until(lambda: len(gates.waiting) == 2)  # an instance each; the others are in their queues
        await server.unload_model("two")
        assert await route_state(server, "two") == (False, 0.0)
        gates.open("go")
        assert (await answers(server, 10)) == {1: 10}
        await until(lambda: len(told) == 6)
        assert Counter(told) == {1: 3, 2: 3}
        await server.load_model("two", {})
        assert await route_state(server, "two") == (True, 50.0)
        assert await answers(server, 10) == {1: 5, 2: 5}


async def route_state(server: InferenceServer, target: str) -> tuple[bool, float]:
    """Whether it is ready, and its share."""
    state = (await route(server))["state"]
    (found,) = [each for each in state["targets"] if each["target"] == target]
    return found["ready"], found["share"]


async def test_a_request_that_waited_for_room_goes_to_who_can_serve_by_then(tmp_path: Path, gates: Gates) -> None:
    for name, value in (("one", 1), ("two", 2)):
        write_model(tmp_path, name, {1: value})
    async with serving(tmp_path, gates, "one", "two", max_inflight_requests=1) as server:
        await server.management.set_route("r", {"targets": {"one": 1, "two": 99}})
        async with trio.open_nursery() as nursery:
            told: list[float] = []

            async def tell(model: str, gate: str = "") -> None:
                told.append(value_of(await server.infer(valued_request(model, gate=gate))))

            nursery.start_soon(tell, "one", "go")
            await until(lambda: gates.waiting)
            nursery.start_soon(tell, "r")
            await until(lambda: server.budget_statistics().waiting)
            await server.unload_model("two")
            gates.open("go")
        assert told == [1, 1]


async def test_nothing_is_lost_while_a_route_changes(tmp_path: Path, gates: Gates) -> None:
    """A thousand requests in flight; meanwhile its weights change, its targets come and go."""
    for name, value in (("one", 1), ("two", 2), ("three", 3)):
        write_model(tmp_path, name, {1: value})
    async with serving(tmp_path, gates, "one", "two", "three") as server:
        routes = [{"one": 50, "two": 50}, {"two": 100}, {"one": 30, "two": 30, "three": 40}, {"three": 90, "one": 10}]
        await server.management.set_route("r", {"targets": routes[0]})
        told: Counter[float] = Counter()

        async def tell(gate: str) -> None:
            told[value_of(await server.infer(valued_request("r", gate=gate)))] += 1

        async with trio.open_nursery() as nursery:
            for targets in routes:
                await server.management.set_route("r", {"targets": targets})
                for number in range(250):
                    nursery.start_soon(tell, "go" if number < 3 else "")
                await trio.testing.wait_all_tasks_blocked()
            assert sum(told.values()) < 1_000
            await server.unload_model("two")
            await server.management.set_route("r", {"targets": {"one": 100}})
            gates.open("go")
        assert told == {1: 125 + 75 + 25, 2: 125 + 250 + 75, 3: 100 + 225}


# ---- what is refused ----


async def test_targets_that_are_unknown_or_differ_are_refused(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1, 2: 2}, BOTH)
    write_model(tmp_path, "wide", {1: 1}, WIDE)
    write_model(tmp_path, "cold", {1: 1})
    async with serving(tmp_path, gates, "a", "wide") as server:
        manage = server.management
        await fails(
            manage.set_route("r", {"targets": {"a:1": 50, "b": 50}}),
            InvalidArgumentError,
            "route 'r': target 'b' is unknown, expected a model of the repository, such as 'a', 'cold', 'wide'",
        )
        await fails(
            manage.set_route("r", {"targets": {"a:1": 50, "wide": 50}}),
            InvalidArgumentError,
            "route 'r': target 'wide': input 'IN' is FP32[2], expected FP32[1] as 'a:1' has",
        )
        assert not await manage.route_status()
        await manage.set_route("r", {"targets": {"a:1": 50, "cold": 50}})
        assert await answers(server, 4) == {1: 4}
        await fails(manage.route_status("x"), NotFoundError, "there is no route 'x'")
        await fails(manage.remove_route("x"), NotFoundError, "there is no route 'x'")
        await fails(manage.stop_rollout("x"), NotFoundError, "there is no route 'x'")
        text = "route 'r' has no rollout under way that could be stopped"
        await fails(manage.stop_rollout("r"), InvalidArgumentError, text)


async def test_routes_do_not_change_where_nothing_else_does(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1})
    async with serving(tmp_path, gates, model_control_mode=ControlMode.NONE) as server:
        text = (
            "routes cannot be changed while this server runs, expected --routes, or explicit or on-demand as "
            "--model-control-mode"
        )
        for call in (
            server.management.set_route("r", {"targets": {"a": 100}}),
            server.management.remove_route("r"),
            server.management.stop_rollout("r"),
        ):
            await fails(call, UnavailableError, text)
        await server.routes.read_file([ModelRoute("r", ((Target("a"), 100),))])
        assert await answers(server, 1) == {1: 1}
        await server.management.remove_route("r")


async def test_a_target_that_comes_to_differ_gets_nothing(
    tmp_path: Path, gates: Gates, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in (("one", 1), ("two", 2)):
        write_model(tmp_path, name, {1: value})
    async with serving(tmp_path, gates, "one", "two") as server:
        await server.management.set_route("r", {"targets": {"one": 50, "two": 50}})
        write_model(tmp_path, "two", {1: 2}, WIDE)
        await server.load_model("two", {})
        assert await answers(server, 4) == {1: 4}
        (_, two) = (await route(server))["state"]["targets"]
        why = "target 'two': input 'IN' is FP32[2], expected FP32[1] as 'one' has"
        assert (two["ready"], two["why"]) == (False, why)
        write_model(tmp_path, "one", {1: 1.5})
        await server.load_model("one", {})
        assert caplog.messages.count(f"route 'r' cannot use a target: {why}") == 1
        write_model(tmp_path, "two", {1: 2})
        await server.load_model("two", {})
        assert await answers(server, 4) == {1.5: 2, 2: 2}


async def test_without_any_target_that_can_serve_a_request_is_told_why(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "one", {1: 1})
    async with serving(tmp_path, gates, "one") as server:
        await server.management.set_route("r", {"targets": {"one": 100}})
        assert server.model_ready("r")
        assert await server.management.model_ready("r")
        await server.unload_model("one")
        await until(lambda: not server.model_ready("one"))
        why = "Request for unknown model: 'one' has no available versions"
        text = f"Request for unknown model: no target of route 'r' is at ready state: {why}"
        await fails(server.infer(valued_request("r")), UnavailableError, text)
        assert server.refusal_statistics()[RefusalReason.NOT_READY] == 1
        with pytest.raises(UnavailableError, match=r"route 'r' is at ready state: .*'one' has no"):
            server.describe("r")
        assert not await server.management.model_ready("r")
        assert not server.model_ready("r")


# ---- what is told ----


async def test_statistics_and_metadata_of_a_route(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1, 2: 2}, BOTH)
    async with serving(tmp_path, gates, "a") as server:
        await server.management.set_route("r", shares(50, 50))
        await answers(server, 4)
        told = await server.management.model_statistics("r")
        assert [(each["name"], each["version"], each["inference_count"]) for each in told["model_stats"]] == [
            ("r", "0", 4),
            ("a", "1", 2),
            ("a", "2", 2),
        ]
        sums, *of_targets = told["model_stats"]
        for kind, duration in sums["inference_stats"].items():
            assert duration["ns"] == sum(each["inference_stats"][kind]["ns"] for each in of_targets)
        assert sums["last_inference"] == max(each["last_inference"] for each in of_targets)
        description = server.describe("r")
        assert (description.name, description.versions, description.config.name) == ("r", (), "r")
        assert [each.name for each in description.config.input] == ["IN"]
        shown = await route(server)
        assert [(each["requests"], each["failures"]) for each in shown["state"]["targets"]] == [(2, 0), (2, 0)]
        lines = {
            f"{each.name}{dict(each.labels)}": each.value
            for family in server.routes.families()
            for each in family.samples
        }
        assert lines["trireme_route_requests_total{'route': 'r', 'target': 'a:1', 'outcome': 'success'}"] == 2
        assert lines["trireme_route_share_ratio{'route': 'r', 'target': 'a:2'}"] == 0.5


async def test_refusals_and_what_clients_do_are_told_apart(tmp_path: Path, gates: Gates) -> None:
    short = CONFIG + "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n"
    write_model(tmp_path, "one", {1: 1}, short.replace("max_batch_size: 0", ""))
    async with serving(tmp_path, gates, "one") as server:
        await server.management.set_route("r", {"targets": {"one": 100}})
        with pytest.raises(InvalidArgumentError):
            await server.infer(InferenceRequest("r"))
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(server.infer, valued_request("r", gate="go"))
                await trio.testing.wait_all_tasks_blocked()
            await until(lambda: gates.waiting)
            for _ in range(2):
                with pytest.raises(UnavailableError):
                    await server.infer(valued_request("r"))
            gates.open("go")
        counted = {result.value: count for (_, result), count in server.routes._records["r"].results.items()}
        assert counted == {"other": 1, "failure": 2, "success": 2}


async def test_a_model_may_ask_a_route(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1, 2: 2}, BOTH)
    async with serving(tmp_path, gates, "a") as server:
        await server.management.set_route("r", shares(50, 50))
        found: list[float] = []
        asked = trio.Event()

        def answered(question: Any) -> None:
            found.extend(value_of(outcome) for outcome, _ in question.take())
            if len(found) == 4:
                asked.set()

        models = server.services.models
        assert models is not None
        for _ in range(4):
            models.ask(valued_request("r"), False, answered)
        await asked.wait()
        assert Counter(found) == {1: 2, 2: 2}


async def test_targets_are_loaded_on_demand(tmp_path: Path, gates: Gates) -> None:
    for name, value in (("one", 1), ("two", 2), ("none", 3)):
        write_model(tmp_path, name, {1: value})
    mode = {"model_control_mode": ControlMode.ON_DEMAND, "model_memory_limit": 1 << 30}
    async with serving(tmp_path, gates, **mode) as server:
        await server.management.set_route("r", {"targets": {"one": 50, "two": 50, "none": 0}})
        with pytest.raises(ColdModelError) as caught:
            server.describe("r")
        assert caught.value.name == "one"
        assert await answers(server, 4) == {1: 2, 2: 2}
        assert [each["share"] for each in (await route(server))["state"]["targets"]] == [50, 50, 0]
        assert server.describe("r").name == "r"


# ---- rollouts and files ----


async def test_a_canary_begins_when_its_target_is_ready_and_goes_back_if_it_fails(
    tmp_path: Path, gates: Gates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trireme.routes")
    for name, value in (("one", 1), ("two", 2)):
        write_model(tmp_path, name, {1: value})
    async with serving(tmp_path, gates, "one") as server:
        canary = {"target": "two", "steps": [20, 100], "step-secs": 0.2}
        await server.management.set_route("r", {"targets": {"one": 100, "two": 0}, "canary": canary})
        assert await answers(server, 10) == {1: 10}
        assert (await route(server))["state"]["rollout"]["state"] == "waiting"
        await server.load_model("two", {})
        assert await answers(server, 10) == {1: 8, 2: 2}
        rollout = (await route(server))["state"]["rollout"]
        assert (rollout["state"], rollout["step"], rollout["steps"], rollout["percent"]) == ("step", 1, 2, 20)
        assert 0 <= rollout["left_s"] <= 0.2
        await server.unload_model("two")
        assert await answers(server, 10) == {1: 10}
        rollout = (await route(server))["state"]["rollout"]
        assert (rollout["state"], rollout["percent"], rollout["left_s"]) == ("back", 0, 0)
        assert rollout["reason"] == "'two' is not ready any more"
        assert [(each.levelname, each.message) for each in caplog.records if "rollout" in each.message] == [
            ("INFO", "route 'r': rollout of 'two' is step, with 20 % of the requests: it can serve"),
            ("WARNING", "route 'r': rollout of 'two' is back, with 0 % of the requests: 'two' is not ready any more"),
        ]


async def test_what_is_set_holds_until_the_file_says_something_else(tmp_path: Path, gates: Gates) -> None:
    models = tmp_path / "models"
    write_model(models, "a", {1: 1, 2: 2}, BOTH)
    path = tmp_path / "routes.toml"

    def write(text: str) -> None:
        with later_change(path):
            path.write_text(text)

    path.write_text("[routes.r]\ntargets = { 'a:1' = 100 }\n[routes.s]\ntargets = { 'a:2' = 100 }\n")
    async with serving(models, gates, model_control_mode=ControlMode.NONE) as server:
        file = RouteFile(path)
        await file.follow(server.routes)
        assert [await answers(server, 1, name) for name in "rs"] == [{1: 1}, {2: 1}]
        await server.management.set_route("r", shares(0, 100))
        assert [each["state"]["origin"] for each in await server.management.route_status()] == ["live", "file"]
        write("[routes.r]\ntargets = { 'a:1' = 100 }\n[routes.s]\ntargets = { 'a:1' = 100 }\n")
        await file.look(server.routes)
        assert [await answers(server, 1, name) for name in "rs"] == [{2: 1}, {1: 1}]
        for faulty in ("[routes.r]\ntargets = { 'a:1' = 99 }\n", "[routes.r]\ntargets = { 'b' = 100 }\n"):
            write(faulty)
            await file.look(server.routes)
        assert [await answers(server, 1, name) for name in "rs"] == [{2: 1}, {1: 1}]
        write("[routes.r]\ntargets = { 'a:1' = 50, 'a:2' = 50 }\n")
        await file.look(server.routes)
        assert await answers(server, 4) == {1: 2, 2: 2}
        assert server.routes.names == ["r"]
        assert server.routes.updates == {"applied": 3, "refused": 2}
