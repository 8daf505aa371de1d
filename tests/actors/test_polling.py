"""Poll mode: what is served follows the repository (docs/reference/model-control.md#control-modes)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from valued_models import Gates, ensemble_config, write_model
from valued_server import ask, index, serving, until

from trireme.engine.options import ControlMode
from trireme.engine.repository.local import LocalRepository
from trireme.engine.repository.source import Scan

POLL = {"model_control_mode": ControlMode.POLL, "repository_poll_s": 0.01}


async def test_what_comes_changes_and_goes_is_followed(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1})
    async with serving(tmp_path, gates, **POLL) as server:
        assert await ask(server, "a") == 1
        write_model(tmp_path.parent / "new", "b", {4: 4})
        (tmp_path.parent / "new" / "b").rename(tmp_path / "b")
        await until(lambda: server.model_ready("b"))
        assert await ask(server, "b") == 4
        write_model(tmp_path, "b", {4: 4, 5: 5})
        await until(lambda: server.model_ready("b", 5))
        shutil.rmtree(tmp_path / "b")
        await until(lambda: not server.model_ready("b"))
        assert [row[0] for row in await index(server)] == ["a"]
        assert await ask(server, "a") == 1


async def test_a_broken_change_keeps_the_old_one_until_it_is_mended(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1})
    async with serving(tmp_path, gates, **POLL) as server:
        write_model(tmp_path, "a", {1: 1, 2: "broken"})
        await until(lambda: any(row.reason == "Internal: no value" for row in server.repository_index()))
        assert await ask(server, "a") == 1
        (tmp_path / "a" / "2" / "value.txt").write_text("2")
        await until(lambda: server.model_ready("a", 2))
        assert await ask(server, "a") == 2


async def test_ensembles_go_and_come_with_their_members(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1})
    write_model(tmp_path, "e", {1: 0}, ensemble_config("a"))
    async with serving(tmp_path, gates, **POLL) as server:
        (tmp_path / "a").rename(tmp_path.parent / "away")
        await until(lambda: any(row.name == "e" and row.reason == "unloaded" for row in server.repository_index()))
        (tmp_path.parent / "away").rename(tmp_path / "a")
        await until(lambda: server.model_ready("e"))
        assert await ask(server, "e") == 1


async def test_a_repository_that_cannot_be_read_takes_nothing_away(tmp_path: Path, gates: Gates) -> None:
    root = tmp_path / "models"
    write_model(root, "a", {1: 1})
    async with serving(root, gates, **POLL) as server:
        root.rename(tmp_path / "away")
        for _ in range(3):
            await server._control.poll()
        assert await ask(server, "a") == 1
        (tmp_path / "away").rename(root)
        write_model(root, "a", {1: 2})
        await until(lambda: server.statistics("a")[0].statistics.success.count == 0)
        assert await ask(server, "a") == 2


async def test_a_look_that_fails_unexpectedly_is_repeated(
    tmp_path: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def scan(source: LocalRepository) -> Scan:
        raise RuntimeError("can't start new thread")

    write_model(tmp_path, "a", {1: 1})
    async with serving(tmp_path, gates, **POLL) as server:
        with monkeypatch.context() as patch:
            patch.setattr(LocalRepository, "scan", scan)
            await until(lambda: "polling the model repository failed unexpectedly" in caplog.text)
        write_model(tmp_path.parent / "new", "b", {1: 2})
        (tmp_path.parent / "new" / "b").rename(tmp_path / "b")
        await until(lambda: server.model_ready("b"))
        assert (await ask(server, "a"), await ask(server, "b")) == (1, 2)
