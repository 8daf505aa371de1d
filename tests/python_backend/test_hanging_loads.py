"""A model that hangs while it is loaded: whoever does not want it any more does not wait for it."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from python_models import CONFIG, IDENTITY, ask, child_processes, open_repository, until, write_model

from trireme.actors import InferenceServer
from trireme.engine.errors import TriremeError, UnavailableError
from trireme.engine.options import ControlMode

HANG = """
    import os, time

    def hang():
        open({began!r}, "w").close()
        while not os.path.exists({release!r}):
            time.sleep(0.01)
"""
AUTO_COMPLETE = """
        @staticmethod
        def auto_complete_config(config):
            hang()
            return config
"""
INITIALIZE = """
        def initialize(self, args):
            hang()
"""
HANGS = {"while imported": "\n    hang()\n", "auto_complete_config": AUTO_COMPLETE, "initialize": INITIALIZE}
IN_PROCESS = CONFIG + 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'


@dataclass
class Hanging:
    """A repository with a model `m` that hangs until it is released."""

    folder: Path
    where: str = INITIALIZE
    config: str = CONFIG
    failures: list[TriremeError] = field(default_factory=list)

    def write(self) -> None:
        hang = HANG.format(began=str(self.folder / "began"), release=str(self.folder / "release"))
        code = hang + self.where if "def " not in self.where else hang + IDENTITY + self.where
        write_model(self.repository, "m", code, self.config)

    def mend(self) -> None:
        self.model.write_text(textwrap.dedent(IDENTITY))

    @property
    def repository(self) -> Path:
        return self.folder / "models"

    @property
    def model(self) -> Path:
        return self.repository / "m" / "1" / "model.py"

    async def until_hanging(self) -> None:
        await until((self.folder / "began").exists)

    async def load(self, server: InferenceServer) -> None:
        try:
            await server.load_model("m", {})
        except TriremeError as error:
            self.failures.append(error)


@asynccontextmanager
async def hanging(
    tmp_path: Path, where: str = INITIALIZE, config: str = CONFIG, **options: Any
) -> AsyncIterator[tuple[InferenceServer, Hanging]]:
    """A server that loads a model which hangs, and that has no patience."""
    world = Hanging(tmp_path, where, config)
    world.write()
    settings = {"model_control_mode": ControlMode.EXPLICIT, "load_patience_s": 0.0, **options}
    with trio.fail_after(100):
        async with open_repository(world.repository, **settings) as server, trio.open_nursery() as nursery:
            nursery.start_soon(world.load, server)
            await world.until_hanging()
            yield server, world


@pytest.mark.parametrize("where", HANGS.values(), ids=HANGS)
async def test_a_stop_ends_the_load(tmp_path: Path, where: str) -> None:
    async with hanging(tmp_path, where, exit_timeout_s=100.0) as (server, world):
        assert await server.stop(100.0)
        await until(lambda: world.failures and not child_processes())
    (failure,) = world.failures
    assert isinstance(failure, UnavailableError)
    assert failure.message == "Server is stopping, models are not loaded or unloaded any more"


async def test_a_stop_does_not_wait_for_a_model_in_the_servers_process(tmp_path: Path) -> None:
    """Nothing can end its thread."""
    async with hanging(tmp_path, config=IN_PROCESS) as (server, world):
        assert await server.stop(100.0)
        (tmp_path / "release").touch()
        await until(lambda: world.failures)


@pytest.mark.parametrize("where", HANGS.values(), ids=HANGS)
async def test_a_start_can_be_cancelled(tmp_path: Path, where: str) -> None:
    """As by SIGTERM before the ports are open."""
    world = Hanging(tmp_path, where)
    world.write()
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:

            async def start() -> None:
                async with open_repository(world.repository):
                    pytest.fail("started")

            nursery.start_soon(start)
            await world.until_hanging()
            nursery.cancel_scope.cancel()
        await until(lambda: not child_processes())


@pytest.mark.parametrize("where", HANGS.values(), ids=HANGS)
async def test_an_unload_ends_the_load(tmp_path: Path, where: str) -> None:
    async with hanging(tmp_path, where) as (server, world):
        await server.unload_model("m")
        await until(lambda: world.failures)
        assert world.failures[0].message == (
            "load failed for model 'm': it was unloaded meanwhile, no version is available\n"
        )
        await until(lambda: [row.reason for row in server.repository_index()] == ["unloaded"])
        await until(lambda: not child_processes())
        world.mend()
        await server.load_model("m", {})
        assert (await server.infer(ask("m", 1))).outputs[0].array.tolist() == [[1]]


async def test_a_load_of_something_newer_ends_the_load(tmp_path: Path) -> None:
    async with hanging(tmp_path) as (server, world):
        world.mend()
        await server.load_model("m", {})
        assert [each.message for each in world.failures] == [
            "load failed for model 'm': there is something newer to load\n"
        ]
        assert (await server.infer(ask("m", 1))).outputs[0].array.tolist() == [[1]]


async def test_a_configuration_is_something_newer(tmp_path: Path) -> None:
    async with hanging(tmp_path, AUTO_COMPLETE) as (server, world):
        with pytest.raises(TriremeError):  # but for which the model has no outputs
            await server.load_model(
                "m", {"config": '{"backend":"python","parameters":{"EXECUTION":{"string_value":"x"}}}'}
            )
        assert [each.message for each in world.failures] == [
            "load failed for model 'm': there is something newer to load\n"
        ]


async def test_a_load_of_the_same_waits(tmp_path: Path) -> None:
    """Also when the model has written into its directory meanwhile, as Python does."""
    async with hanging(tmp_path) as (server, world), trio.open_nursery() as nursery:
        (world.model.parent / "cache.bin").touch()
        (process,) = child_processes()
        nursery.start_soon(world.load, server)
        await until(lambda: len(server._control._locks._line) > 1)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert child_processes() == {process}
        (tmp_path / "release").touch()
    assert not world.failures


async def test_a_poll_ends_the_load_of_what_has_been_replaced(tmp_path: Path) -> None:
    world = Hanging(tmp_path)
    write_model(world.repository, "other")
    options = {"model_control_mode": ControlMode.POLL, "repository_poll_s": 0.05, "load_patience_s": 0.0}
    with trio.fail_after(100):
        async with open_repository(world.repository, **options) as server:
            world.write()
            await world.until_hanging()
            world.mend()
            await until(lambda: server.model_ready("m"))
