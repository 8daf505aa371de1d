"""The fleet is as its file says, whenever that changes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from fleet_world import FleetWorld, opened_fleet

from trireme.engine.errors import InvalidArgumentError
from trireme.gateway.membership import Membership


def write(path: Path, text: str) -> None:
    """As orchestrators do, by a rename."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def replicas(**addresses: str) -> str:
    return "".join(f'[replicas.{name}]\naddress = "{address}:1"\n' for name, address in addresses.items())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    write(path, replicas(a="one", b="two"))
    return path


@pytest.fixture
async def world() -> AsyncIterator[FleetWorld]:
    async with opened_fleet() as world:
        yield world


async def followed(world: FleetWorld, path: Path, nursery: trio.Nursery) -> Membership:
    membership = await Membership.open(path, poll_s=1e6)
    await nursery.start(membership.follow, world.server)
    return membership


async def test_replicas_come_and_go_with_the_file(world: FleetWorld, path: Path, nursery: trio.Nursery) -> None:
    membership = await followed(world, path, nursery)
    assert {name: each.address for name, each in world.server.members.items()} == {"a": "one:1", "b": "two:1"}
    write(path, replicas(b="two", c="three"))
    await membership.look(world.server)
    assert list(world.server.members) == ["b", "c"]


async def test_weights_are_told_to_the_router(world: FleetWorld, path: Path, nursery: trio.Nursery) -> None:
    membership = await followed(world, path, nursery)
    write(path, f"{replicas(b='two', a='one')}weight = 2.5\n")
    await membership.look(world.server)
    assert world.router.told[-1] == ("join", "a", 2.5)


async def test_a_faulty_file_changes_nothing(
    world: FleetWorld, path: Path, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    membership = await followed(world, path, nursery)
    write(path, "[replicas.a]\n")
    await membership.look(world.server)
    assert list(world.server.members) == ["a", "b"]
    assert "fleet.toml:1: replicas.a: found no address" in caplog.text
    path.unlink()  # noqa: ASYNC240
    await membership.look(world.server)
    assert list(world.server.members) == ["a", "b"]
    write(path, replicas(a="one"))
    await membership.look(world.server)
    assert list(world.server.members) == ["a"]


async def test_other_settings_hold_from_the_start(
    world: FleetWorld, path: Path, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    membership = await followed(world, path, nursery)
    write(path, f"[gateway]\nretry-budget = 0\n{replicas(a='one')}")
    await membership.look(world.server)
    assert "hold from the start" in caplog.text
    assert list(world.server.members) == ["a"]


async def test_a_file_that_has_not_changed_is_not_read(world: FleetWorld, path: Path, nursery: trio.Nursery) -> None:
    membership = await followed(world, path, nursery)
    told = len(world.router.told)
    await membership.look(world.server)
    assert len(world.router.told) == told


@pytest.mark.parametrize("first", [replicas(a="one"), '[kubernetes]\nservice = "s"'])
async def test_where_replicas_are_looked_for_holds_from_the_start(
    world: FleetWorld, path: Path, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture, first: str
) -> None:
    """In the file or in Kubernetes; what the other one says is not done."""
    write(path, first)
    membership = await followed(world, path, nursery)
    await world.server.join("pod", "pod:1", 1.0)
    before = list(world.server.members)
    write(path, replicas(b="two") if "kubernetes" in first else '[kubernetes]\nservice = "s"')
    await membership.look(world.server)
    assert list(world.server.members) == before
    assert "[kubernetes] hold from the start" in caplog.text


async def test_a_faulty_file_is_refused_at_the_start(path: Path) -> None:
    write(path, "x")
    with pytest.raises(InvalidArgumentError):
        await Membership.open(path)
