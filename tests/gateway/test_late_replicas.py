"""What was changed through a gateway is changed at replicas that come later, too."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from fleet_world import ONE, FakeLink, FleetWorld, describe, gone, opened_fleet, row
from trio.testing import MockClock

from trireme.engine.errors import InternalError, NotFoundError, UnavailableError
from trireme.engine.fleet.types import ReplicaLostError
from trireme.gateway.late_replicas import Changes, MadeChange
from trireme.gateway.management import FleetLog
from trireme.proto.messages import inference as pb

NEW = row("new", describe("new"))
LOAD, UNLOAD = "RepositoryModelLoad", "RepositoryModelUnload"


@pytest.fixture
async def world(autojump_clock: MockClock) -> AsyncIterator[FleetWorld]:
    async with opened_fleet() as world:
        await world.join("a", ONE, server="a1")
        await world.join("b", ONE, server="b1")
        yield world


async def make_ready(world: FleetWorld, *names: str, **parameters: Any) -> None:
    """A model is loaded through the gateway; these replicas report it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.server.management.load_model, "new", parameters)
        await trio.sleep(0.1)
        for name in names:
            world.tell(name, NEW, everything=False, generation=2, server=f"{name}1")


async def told(link: FakeLink) -> list[str]:
    """The calls that were made of it, when all that is due has been."""
    await trio.sleep(60)
    return [method.rpartition("/")[2] for method, _ in link.asked]


async def test_who_joins_later_loads_what_was_loaded(world: FleetWorld, autojump_clock: MockClock) -> None:
    """With the parameters of then."""
    await make_ready(world, "a", "b", config="{}")
    late = await world.join("c", ONE, NEW, server="c1")
    assert await told(late) == [LOAD]
    (_, message) = late.asked[0]
    assert pb.RepositoryModelLoadRequest.parse(message).parameters["config"].string_param == "{}"
    world.tell("c", NEW, everything=False, generation=2, server="c1")
    assert await told(late) == [LOAD], "once"


async def test_what_it_has_already_is_not_asked_for(world: FleetWorld, autojump_clock: MockClock) -> None:
    await make_ready(world, "a", "b")
    assert await told(await world.join("c", ONE, NEW, server="c1")) == []
    await world.server.management.unload_model("one")
    assert await told(await world.join("d", NEW, server="d1")) == []


async def test_what_was_unloaded_is_unloaded_there(world: FleetWorld, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.server.management.unload_model, "one")
        await trio.sleep(0.1)
        for name in "ab":
            world.tell(name, gone("one"), everything=False, server=f"{name}1")
    assert await told(await world.join("c", ONE, server="c1")) == [UNLOAD]


async def test_what_others_have_changed_since_is_left_alone(world: FleetWorld, autojump_clock: MockClock) -> None:
    """Another gateway has unloaded what was loaded here, at one replica at least."""
    await make_ready(world, "a", "b")
    world.tell("b", gone("new"), everything=False, server="b1")
    assert await told(await world.join("c", ONE, server="c1")) == []


@pytest.mark.parametrize(("process", "again"), [("b1", []), ("b2", [LOAD])])
async def test_a_replica_that_began_anew_is_late(
    world: FleetWorld, autojump_clock: MockClock, process: str, again: list[str]
) -> None:
    await make_ready(world, "a", "b")
    link = world.links["b"]
    link.asked.clear()
    with world.turn:
        link.events.lost("gone")
        link.events.connected()
    world.tell("b", ONE, server=process)
    assert await told(link) == again


async def test_so_is_one_that_could_not_be_reached(world: FleetWorld, autojump_clock: MockClock) -> None:
    link = world.links["b"]
    link.answers[LOAD] = ReplicaLostError("gone")
    with world.turn:
        link.events.lost("gone")
    with pytest.raises(UnavailableError, match="failed to load 'new' at 1 of 2 replicas: replica b: gone"):
        await world.server.management.load_model("new", {})
    world.tell("a", NEW, everything=False, server="a1")
    link.asked.clear()
    with world.turn:
        link.events.connected()
    world.tell("b", ONE, server="b1")
    assert await told(link) == [LOAD]
    assert world.server.management.late.changes.missing("b1") is not None, "it could not be reached again"
    del link.answers[LOAD]
    with world.turn:
        link.events.lost("gone")
        link.events.connected()
    world.tell("b", ONE, server="b1")
    assert await told(link) == [LOAD, LOAD]


async def test_one_that_cannot_is_not_asked_again(
    world: FleetWorld, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    await make_ready(world, "a", "b")
    await world.server.join("c", "c:1", 1.0)
    late = world.links["c:1"]
    late.answers[LOAD] = InternalError("there is no room")
    with world.turn:
        late.events.connected()
        late.events.report({**_report("c1"), "state": "starting"})
    assert await told(late) == [], "it starts"
    for _ in range(2):
        with world.turn:
            late.events.report(_report("c1"))
        assert await told(late) == [LOAD]
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "replica c cannot load 'new', as others did: there is no room"
    ]


def _report(process: str) -> dict[str, Any]:
    about = {"server": process, "generation": 1, "state": "ready", "loads": {}, "inflight": 0, "capacity": 1}
    return {**about, "all": True, "models": [ONE]}


async def test_settings_and_routes_are_made_in_their_order(world: FleetWorld, autojump_clock: MockClock) -> None:
    management = world.server.management

    class Own:
        async def change_and_show(self, **changes: Any) -> Any: ...

    log = FleetLog(Own(), management.make)
    await management.trace_settings("", {"rate": 10, "level": 1})
    await log.change_and_show(info=False, verbose=1)
    await log.change_and_show(verbose=2)
    for name in "ab":
        world.tell(name, row("route", describe("route", -1)), everything=False, server=f"{name}1")
    await management.set_route("route", {"targets": {"one": 100}})
    await management.stop_rollout("route")
    await management.trace_settings("", {"rate": 20})
    late = await world.join("c", ONE, server="c1")
    assert await told(late) == ["TraceSetting", "LogSettings", "LogSettings", LOAD, UNLOAD, "TraceSetting"]
    (level, info, verbose, _, stop, rate) = [message for _, message in late.asked]
    assert pb.TraceSettingRequest.parse(level).settings["trace_level"].value == ["TIMESTAMPS"]
    assert pb.LogSettingsRequest.parse(info).settings["log_info"].bool_param is False
    assert pb.LogSettingsRequest.parse(verbose).settings["log_verbose_level"].uint32_param == 2
    assert pb.RepositoryModelUnloadRequest.parse(stop).parameters["stop_rollout"].bool_param
    assert pb.TraceSettingRequest.parse(rate).settings["trace_rate"].value == ["20"]
    await management.remove_route("route")
    later = await world.join("d", ONE, server="d1")
    assert (await told(later))[-1] == UNLOAD
    assert LOAD not in await told(later)


async def test_what_no_replica_has_made_is_not_remembered(world: FleetWorld, autojump_clock: MockClock) -> None:
    for link in world.links.values():
        link.answers[LOAD] = NotFoundError("no such model")
    with pytest.raises(NotFoundError):
        await world.server.management.load_model("new", {})
    assert await told(await world.join("c", ONE, server="c1")) == []


def test_so_much_is_remembered(caplog: pytest.LogCaptureFixture) -> None:
    changes = Changes()
    for number in range(3):
        changes.add(MadeChange((str(number),), f"load {number}", (("Load", bytes(24 << 20)),)))
    assert len(changes) == 2
    assert changes.find("0") is None
    assert "will not be asked to load 0" in caplog.text
    for number in range(5_000):
        changes.add(MadeChange((str(number),), "", (("Load", b""),)))
    assert len(changes) == 4_096
    first = changes.missing("p")
    assert first is not None
    assert first.key == ("904",)
    first.tried.add("p")
    second = changes.missing("p")
    assert second is not None
    assert second.key == ("905",)
