"""Instances come and go while their model stays loaded (docs/reference/model-control.md#changes-in-place)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from valued_models import CONFIG, CONFIG_JSON, Gates, ensemble_config, sequence_request, value_of, valued_request
from valued_models import write_model as write
from valued_server import ask, fails, index, serving, until

from trireme.actors import InferenceServer
from trireme.engine.errors import InvalidArgumentError, TriremeError
from trireme.engine.options import ControlMode

SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n"


def counted(count: int, more: str = "") -> str:
    return f"{CONFIG}{more}instance_group {{ name: 'g' count: {count} kind: KIND_CPU }}\n"


def instances(server: InferenceServer, model: str = "a") -> tuple[int, int]:
    """Alive and expected."""
    (entry,) = [each for each in server.model_statistics() if each.name == model and each.reason != "unloaded"]
    return entry.instances_alive, entry.instances


def same_since(server: InferenceServer, model: str = "a") -> bool:
    """Whether the model has not been loaded again since it was first asked: that begins to count anew."""
    (entry,) = server.statistics(model)
    return entry.statistics.success.count > 0


@asynccontextmanager
async def counting(tmp_path: Path, gates: Gates, count: int, more: str = "") -> AsyncIterator[InferenceServer]:
    """Model ``a`` with that many instances."""
    write(tmp_path, "a", {1: 1}, counted(count, more))
    async with serving(tmp_path, gates, "a") as server:
        yield server


async def test_more_and_fewer_instances_without_a_reload(tmp_path: Path, gates: Gates) -> None:
    async with counting(tmp_path, gates, 1) as server:
        await ask(server, "a")
        for count in (3, 1, 2):
            write(tmp_path, "a", {1: 1}, counted(count))
            await server.load_model("a", {})
            await until(lambda count=count: instances(server) == (count, count))
            assert await ask(server, "a") == 1
            assert server.describe("a").config.instance_group[0].count == count
        assert same_since(server)


async def test_the_new_instances_take_part(tmp_path: Path, gates: Gates) -> None:
    """With one instance the second request would wait for the first one."""
    async with counting(tmp_path, gates, 1) as server:
        write(tmp_path, "a", {1: 1}, counted(2))
        await server.load_model("a", {})
        first = await server.admit(valued_request("a", gate="g"))
        assert await ask(server, "a") == 1
        gates.open("g")
        await first.response()


async def test_one_that_is_at_work_finishes_before_it_leaves_and_the_load_waits_for_it(
    tmp_path: Path, gates: Gates
) -> None:
    loaded = False

    async def load() -> None:
        nonlocal loaded
        await server.load_model("a", {})
        loaded = True

    async with counting(tmp_path, gates, 2) as server, trio.open_nursery() as nursery:
        replies = [await server.admit(valued_request("a", gate=gate)) for gate in ("g", "h")]
        await until(lambda: len(gates.waiting) == 2)
        write(tmp_path, "a", {1: 1}, counted(1))
        nursery.start_soon(load)
        await until(lambda: instances(server) == (1, 1))
        queued = await server.admit(valued_request("a"))
        await trio.testing.wait_all_tasks_blocked()
        assert not loaded
        gates.open("g")
        gates.open("h")
        for reply in (*replies, queued):
            assert value_of(await reply.response()) == 1
        await until(lambda: loaded)


async def test_a_configuration_of_the_request_may_change_them_too(tmp_path: Path, gates: Gates) -> None:
    write(tmp_path, "a", {1: 1})
    async with serving(tmp_path, gates, "a") as server:
        await ask(server, "a")
        override = CONFIG_JSON % ("a", ',"instance_group":[{"count":4,"kind":"KIND_CPU"}]')
        await server.load_model("a", {"config": override})
        assert instances(server) == (4, 4)
        assert same_since(server)


@pytest.mark.parametrize("more", ["max_batch_size: 0 parameters { key: 'x' value: { string_value: 'y' } }\n", ""])
async def test_anything_else_is_a_reload(tmp_path: Path, gates: Gates, more: str) -> None:
    """Another setting, or an editor's swap file."""
    async with counting(tmp_path, gates, 1) as server:
        await ask(server, "a")
        if not more:
            (tmp_path / "a" / ".config.pbtxt.swp").write_text("")
        write(tmp_path, "a", {1: 1}, counted(2, more))
        await server.load_model("a", {})
        assert instances(server) == (2, 2)
        assert not same_since(server)


async def test_a_version_policy_changes_only_what_it_chooses(tmp_path: Path, gates: Gates) -> None:
    policy = "version_policy {{ specific {{ versions: {} }} }}\n"
    write(tmp_path, "a", {1: 1, 2: 2, 3: 3}, counted(1, policy.format("[1, 2]")))
    async with serving(tmp_path, gates, "a") as server:
        assert await ask(server, "a") == 2
        write(tmp_path, "a", {1: 1, 2: 2, 3: 3}, counted(1, policy.format("[2, 3]")))
        await server.load_model("a", {})
        assert await ask(server, "a") == 3
        counts = {entry.version: entry.statistics.success.count for entry in server.statistics("a")}
        assert counts == {2: 1, 3: 1}
        await until(lambda: server.repository_index()[0].reason == "unloaded")
        assert [row[1:3] for row in await index(server)] == [("1", "UNAVAILABLE"), ("2", "READY"), ("3", "READY")]


async def test_an_ensemble_stays_what_it_is_when_a_member_gets_instances(tmp_path: Path, gates: Gates) -> None:
    write(tmp_path, "a", {1: 1}, counted(1))
    write(tmp_path, "e", {1: 0}, ensemble_config("a"))
    async with serving(tmp_path, gates, "e") as server:
        await ask(server, "e")
        write(tmp_path, "a", {1: 1}, counted(3))
        await server.load_model("a", {})
        assert instances(server) == (3, 3)
        assert same_since(server, "e")


async def test_a_failing_update_keeps_what_there_was(tmp_path: Path, gates: Gates) -> None:
    async with counting(tmp_path, gates, 1) as server:
        await ask(server, "a")
        write(tmp_path, "a", {1: 1}, counted(3))
        gates.spoil("no room")
        text = "load failed for model 'a': version 1 is at READY state: Internal: no room;\n"
        await fails(server.load_model("a", {}), InvalidArgumentError, text)
        assert await ask(server, "a") == 1
        assert instances(server) == (1, 1)
        assert server.ready()
        gates.spoil("")
        await server.load_model("a", {})
        assert instances(server) == (3, 3)
        assert same_since(server)


async def test_groups_that_cannot_be_are_refused(tmp_path: Path, gates: Gates) -> None:
    async with counting(tmp_path, gates, 1) as server:
        write(tmp_path, "a", {1: 1}, counted(1).replace("KIND_CPU", "KIND_GPU"))
        text = (
            "load failed for model 'a': version 1 is at UNAVAILABLE state: Invalid argument: instance group g of model "
            "a has kind KIND_GPU but no GPUs are available;\n"
        )
        await fails(server.load_model("a", {}), InvalidArgumentError, text)
        assert await ask(server, "a") == 1


async def test_an_instance_with_sequences_leaves_when_they_are_over(tmp_path: Path, gates: Gates) -> None:
    async with counting(tmp_path, gates, 2, SEQUENCES) as server:
        for sequence in (1, 2):  # one on each instance
            await server.infer(sequence_request("a", sequence, "s"))
        write(tmp_path, "a", {1: 1}, counted(1, SEQUENCES))
        await server.load_model("a", {})
        for flags in ("", "e"):
            for sequence in (1, 2):
                assert value_of(await server.infer(sequence_request("a", sequence, flags))) == 1
        waiting = [await server.admit(sequence_request("a", sequence, "s")) for sequence in (3, 4)]
        await waiting[0].response()
        await server.infer(sequence_request("a", 3, "e"))
        await waiting[1].response()
        assert server.repository_index()[0].reason == ""


@pytest.mark.parametrize("end", ["stop", "unload", "reload"])
async def test_whatever_comes_while_instances_are_made(tmp_path: Path, gates: Gates, end: str) -> None:
    """The change is over before the model is unloaded or loaded again; a server that stops waits for it."""
    async with counting(tmp_path, gates, 1) as server, trio.open_nursery() as nursery:
        gates.hold = "made"
        write(tmp_path, "a", {1: 1}, counted(3))
        outcome: list[object] = []

        async def change() -> None:
            try:
                outcome.append(await server.load_model("a", {}))
            except TriremeError as error:
                outcome.append(error)

        nursery.start_soon(change)
        await until(lambda: gates.waiting)
        assert await ask(server, "a") == 1
        if end == "stop":
            nursery.start_soon(server.stop, 20)
            await until(lambda: server.exiting)
        elif end == "unload":
            nursery.start_soon(server.unload_model, "a")
        else:
            write(tmp_path, "a", {1: 5}, counted(3))
            nursery.start_soon(server.load_model, "a", {})
        gates.open("made")
        await until(lambda: outcome)
        if end == "reload":
            await until(lambda: server.describe("a").config.instance_group[0].count == 3)
            assert await ask(server, "a") in (1, 5)
    assert server.drained


async def test_polling_changes_them_too(tmp_path: Path, gates: Gates) -> None:
    write(tmp_path, "a", {1: 1}, counted(1))
    poll: dict[str, Any] = {"model_control_mode": ControlMode.POLL, "repository_poll_s": 0.01}
    async with serving(tmp_path, gates, **poll) as server:
        await ask(server, "a")
        write(tmp_path, "a", {1: 1}, counted(2))
        await until(lambda: instances(server) == (2, 2))
        assert same_since(server)
