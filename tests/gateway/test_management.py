"""What clients ask of a fleet is asked of its replicas, and merged."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
from fleet_world import ONE, FleetWorld, describe, gone, opened_fleet, row
from trio.testing import MockClock

from trireme.engine.config import config_protobuf
from trireme.engine.errors import (
    ColdModelError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RefusalReason,
    TriremeError,
    UnavailableError,
    UnsupportedError,
)
from trireme.engine.memory.regions import RegionKind
from trireme.gateway.management import FleetLog
from trireme.proto.messages import inference as pb


@pytest.fixture
async def world() -> AsyncIterator[FleetWorld]:
    async with opened_fleet(server_id="gate") as world:
        await world.join("a", ONE)
        await world.join("b", ONE)
        yield world


def statistics(count: int, **more: Any) -> bytes:
    durations = pb.InferStatistics(success=pb.StatisticDuration(count=count, ns=10 * count))
    batch = pb.InferBatchStatistics(batch_size=4, compute_infer=pb.StatisticDuration(count=1, ns=5))
    stats = pb.ModelStatistics("one", "1", 100 + count, count, 1, durations, [batch], **more)
    return bytes(pb.ModelStatisticsResponse(model_stats=[stats]))


async def test_statistics_are_added_up(world: FleetWorld) -> None:
    responses = {"0": pb.InferResponseStatistics(success=pb.StatisticDuration(count=2, ns=3))}
    memory = [pb.MemoryUsage(type="CPU", id=0, byte_size=7)]
    world.links["a"].answers["ModelStatistics"] = statistics(3, response_stats=responses, memory_usage=memory)
    world.links["b"].answers["ModelStatistics"] = statistics(4, memory_usage=memory)
    (record,) = (await world.server.management.model_statistics("one"))["model_stats"]
    assert list(record) == [
        *("name", "version", "last_inference", "inference_count", "execution_count"),
        *("inference_stats", "response_stats", "batch_stats", "memory_usage"),
    ]
    assert (record["last_inference"], record["inference_count"], record["execution_count"]) == (104, 7, 2)
    assert record["inference_stats"]["success"] == {"count": 7, "ns": 70}
    assert record["inference_stats"]["queue"] == {"count": 0, "ns": 0}
    assert record["response_stats"]["0"]["success"] == {"count": 2, "ns": 3}
    assert record["batch_stats"][0]["batch_size"] == 4
    assert record["batch_stats"][0]["compute_infer"] == {"count": 2, "ns": 10}
    assert record["memory_usage"] == [{"type": "CPU", "id": 0, "byte_size": 7}] * 2


async def test_a_model_that_one_replica_has_not_is_no_error(world: FleetWorld) -> None:
    world.links["a"].answers["ModelStatistics"] = InvalidArgumentError("requested model 'one' is not available")
    world.links["b"].answers["ModelStatistics"] = statistics(4)
    (record,) = (await world.server.management.model_statistics("one"))["model_stats"]
    assert record["inference_count"] == 4


async def test_what_all_replicas_say_is_the_error(world: FleetWorld) -> None:
    for link in world.links.values():
        link.answers["ModelStatistics"] = InvalidArgumentError("requested model 'x' is not available")
    with pytest.raises(InvalidArgumentError, match=r"^requested model 'x' is not available$"):
        await world.server.management.model_statistics("x")


async def test_no_sum_without_a_part_of_it(world: FleetWorld) -> None:
    world.links["a"].answers["ModelStatistics"] = statistics(4)
    world.links["b"].answers["ModelStatistics"] = UnavailableError("it is busy")
    with pytest.raises(UnavailableError, match="at 1 of 2 replicas: replica b: it is busy"):
        await world.server.management.model_statistics()


async def test_replicas_that_are_not_connected_are_not_asked(world: FleetWorld) -> None:
    with world.turn:
        world.links["b"].events.lost("gone")
    world.links["a"].answers["ModelStatistics"] = statistics(4)
    await world.server.management.model_statistics()
    assert not world.links["b"].asked
    with world.turn:
        world.links["a"].events.lost("gone")
    with pytest.raises(UnavailableError, match="no replica of the fleet is connected"):
        await world.server.management.model_statistics()


def index(*rows: tuple[str, str, str, str]) -> bytes:
    models = [pb.RepositoryIndexResponseModelIndex(*each) for each in rows]
    return bytes(pb.RepositoryIndexResponse(models=models))


async def test_an_index_says_where_a_version_is_not_ready(world: FleetWorld) -> None:
    same = ("two", "1", "UNAVAILABLE", "unloaded")
    world.links["a"].answers["RepositoryIndex"] = index(("one", "1", "READY", ""), same, ("three", "", "", ""))
    world.links["b"].answers["RepositoryIndex"] = index(("one", "1", "UNAVAILABLE", "boom"), same)
    assert await world.server.management.repository_index() == [
        {"name": "one", "version": "1", "state": "READY", "reason": "replica b: UNAVAILABLE: boom"},
        {"name": "three"},
        {"name": "two", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
    ]
    (_, message) = world.links["a"].asked[0]
    assert not pb.RepositoryIndexRequest.parse(message).ready


async def test_a_load_is_made_at_every_replica(world: FleetWorld, autojump_clock: MockClock) -> None:
    def loaded(name: str) -> Callable[[bytes], bytes]:
        def load(message: bytes) -> bytes:
            request = pb.RepositoryModelLoadRequest.parse(message)
            assert request.model_name == "new"
            assert request.parameters["config"].string_param == "{}"
            assert request.parameters["file:1/m"].bytes_param == b"\0"
            return b""

        return load

    for name, link in world.links.items():
        link.answers["RepositoryModelLoad"] = loaded(name)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def hear() -> None:
            for name in world.links:
                await trio.sleep(0.1)
                world.tell(name, row("new", describe("new")), everything=False, generation=2)

        began_s = trio.current_time()
        await world.server.management.load_model("new", {"config": "{}", "file:1/m": b"\0"})
        assert trio.current_time() - began_s == pytest.approx(0.2, abs=0.05), "when this gateway has heard of it"
    assert await world.server.management.model_ready("new")


async def test_a_load_that_fails_in_part_says_where(world: FleetWorld, autojump_clock: MockClock) -> None:
    world.links["b"].answers["RepositoryModelLoad"] = InternalError("failed to load 'new', no such file")
    with pytest.raises(InternalError) as failed:
        await world.server.management.load_model("new", {})
    assert failed.value.message == (
        "failed to load 'new' at 1 of 2 replicas: replica b: failed to load 'new', no such file"
    )
    with world.turn:
        world.links["b"].events.lost("gone")
    world.links["b"].answers["RepositoryModelLoad"] = UnavailableError("it cannot be reached")
    with pytest.raises(UnavailableError, match="replica b: it cannot be reached"):
        await world.server.management.load_model("new", {})


async def test_a_load_that_fails_in_part_is_heard_of_too(world: FleetWorld, autojump_clock: MockClock) -> None:
    """Who could load it serves it when the client is told who could not."""
    world.links["b"].answers["RepositoryModelLoad"] = InternalError("no such file")
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def hear() -> None:
            await trio.sleep(0.2)
            world.tell("a", row("new", describe("new")), everything=False, generation=2)

        with pytest.raises(InternalError, match="at 1 of 2 replicas: replica b: no such file"):
            await world.server.management.load_model("new", {})
    assert await world.server.management.model_ready("new")


async def test_a_load_of_what_has_not_changed_is_answered_soon(world: FleetWorld, autojump_clock: MockClock) -> None:
    """With the next report of each, which says nothing new."""
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def hear() -> None:
            for name in world.links:
                await trio.sleep(0.3)
                world.tell(name, everything=False)

        began_s = trio.current_time()
        await world.server.management.load_model("one", {})
        assert trio.current_time() - began_s == pytest.approx(0.6, abs=0.05)


async def test_an_unload_is_made_at_every_replica(world: FleetWorld, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def hear() -> None:
            await trio.sleep(0.1)
            for name in world.links:
                world.tell(name, gone("one"), everything=False, generation=2)

        await world.server.management.unload_model("one", True)
    for link in world.links.values():
        (_, message) = link.asked[0]
        request = pb.RepositoryModelUnloadRequest.parse(message)
        assert request.parameters["unload_dependents"].bool_param
    with pytest.raises(NotFoundError):
        world.server.describe("one")


async def test_about_the_gateway(world: FleetWorld) -> None:
    management = world.server.management
    about = await management.server_metadata()
    assert about["name"] == "gate"
    assert "sequence" in about["extensions"]
    assert not any("shared_memory" in each for each in about["extensions"])
    assert await management.live()
    assert await management.ready()
    assert await management.model_ready("one")
    assert not await management.model_ready("one", 2)
    for name in ("a", "b"):
        world.tell(name, state="draining", everything=False)
    assert not await management.ready()
    assert not await management.model_ready("one")


async def test_there_is_no_shared_memory(world: FleetWorld) -> None:
    management = world.server.management
    assert await management.region_status(RegionKind.SYSTEM) == []
    await management.unregister_region(RegionKind.SYSTEM)
    with pytest.raises(UnsupportedError, match="a gateway has no shared memory"):
        await management.register_system_region("r", "/r", 0, 4)
    with pytest.raises(UnsupportedError):
        await management.register_cuda_region("r", b"", 0, 4)
    with pytest.raises(UnsupportedError):
        await management.fleet_report()
    assert await management.custom_metric("family") == []


def settings(rate: str) -> bytes:
    shown = {"trace_level": ["TIMESTAMPS"], "trace_rate": [rate]}
    values = {name: pb.TraceSettingResponseSettingValue(value=each) for name, each in shown.items()}
    return bytes(pb.TraceSettingResponse(settings=values))


async def test_trace_settings_are_those_of_the_replicas(world: FleetWorld) -> None:
    for link in world.links.values():
        link.answers["TraceSetting"] = settings("5")
    shown = await world.server.management.trace_settings("one", {"level": 1, "rate": 5, "count": None})
    assert shown == [("trace_level", ["TIMESTAMPS"]), ("trace_rate", "5")]
    asked = pb.TraceSettingRequest.parse(world.links["a"].asked[0][1])
    assert asked.model_name == "one"
    assert {name: each.value for name, each in asked.settings.items()} == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": ["5"],
        "trace_count": [],
    }
    world.links["b"].answers["TraceSetting"] = settings("7")
    shown = await world.server.management.trace_settings()
    assert shown[1] == ("trace_rate", "5 (replica a), 7 (replica b)")


async def test_log_settings_are_changed_everywhere(world: FleetWorld) -> None:
    changed: list[dict[str, Any]] = []

    class Own:
        async def change_and_show(self, **changes: Any) -> str:
            changed.append(changes)
            return "shown"

    log = FleetLog(Own(), world.server.management.make)
    assert await log.change_and_show() == "shown"
    assert not world.links["a"].asked
    await log.change_and_show(info=False, verbose=2, format="ISO8601")
    given = pb.LogSettingsRequest.parse(world.links["b"].asked[0][1]).settings
    assert given["log_info"].bool_param is False
    assert given["log_verbose_level"].uint32_param == 2
    assert given["log_format"].string_param == "ISO8601"
    world.links["b"].answers["LogSettings"] = UnavailableError("no")
    with pytest.raises(UnavailableError, match="replica b: no"):
        await log.change_and_show(info=True)
    assert changed == [{}, {"info": False, "verbose": 2, "format": "ISO8601"}]


async def test_a_model_on_demand_is_loaded_by_one_replica(world: FleetWorld, autojump_clock: MockClock) -> None:
    cold = ["Unavailable", ColdModelError("cold").message, RefusalReason.NOT_IN_MEMORY.value]
    for name in ("a", "b"):
        world.tell(name, row("cold", v1=cold), everything=False)
    with pytest.raises(ColdModelError):
        world.server.describe("cold")
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def load() -> None:
            await trio.sleep(0.1)
            asked = [name for name, link in world.links.items() if link.asked]
            assert len(asked) == 1
            world.tell(asked[0], row("cold", describe("cold")), everything=False)

        await world.server.management.want("cold")
    world.server.describe("cold")
    with pytest.raises(TriremeError):
        await world.server.management.want("unknown")


async def test_routes_are_set_at_every_replica_and_shown_by_one(world: FleetWorld, autojump_clock: MockClock) -> None:
    management = world.server.management
    with pytest.raises(NotFoundError):
        await management.route_status("route")
    route = describe("route", -1, versions=())
    route.config.message.parameters["route"].string_value = json.dumps({"name": "route", "targets": {}})
    for name, link in world.links.items():
        world.tell(name, row("route", route), everything=False)
        config = pb.ModelConfig.parse(config_protobuf(route.config))
        link.answers["ModelConfig"] = bytes(pb.ModelConfigResponse(config=config))
    assert await management.route_status("route") == [{"name": "route", "targets": {}}]
    assert await management.route_status() == [{"name": "route", "targets": {}}]
    await management.set_route("route", {"targets": {"one": 100}})
    await management.stop_rollout("route")
    await management.remove_route("route")
    loads = [pb.RepositoryModelLoadRequest.parse(message) for _, message in world.links["b"].asked[-3:-2]]
    assert loads[0].parameters["route"].string_param == '{"targets": {"one": 100}}'
    unloads = [pb.RepositoryModelUnloadRequest.parse(message) for _, message in world.links["b"].asked[-2:]]
    assert [list(each.parameters) for each in unloads] == [["stop_rollout"], ["route"]]
