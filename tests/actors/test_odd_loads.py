"""Loads that nobody would ask for: they cost whoever asked for them, and never the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import valued_models
from valued_models import CONFIG, CONFIG_JSON, Gates, write_model
from valued_server import POLL_FAILED, ask, fails, serving, until

from trireme.engine.errors import InternalError, InvalidArgumentError, shown
from trireme.engine.repository.agents import AgentAction, AgentModel, AgentRegistry, RepositoryAgent
from trireme.engine.repository.source import ModelSource

AGENT = 'model_repository_agents { agents { name: "x" } }'


@pytest.mark.parametrize(
    ("name", "path"),
    [("a\0b", "1/value.txt"), ("n" * 300, "1/value.txt"), ("n", "1/\udc80\ud800"), ("n", "d/" * 1500 + "x")],
    ids=["zero byte", "long name", "no Unicode", "deep"],
)
async def test_files_that_cannot_be_written(
    tmp_path: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch, name: str, path: str
) -> None:
    root, temporary = tmp_path / "models", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    write_model(root, "a", {1: 1})
    async with serving(root, gates, "a") as server:
        parameters = {"config": CONFIG_JSON % ("n", ""), f"file:{path}": b"1"}
        await fails(server.load_model(name, parameters), InternalError, POLL_FAILED.format(shown(name)))
        assert await ask(server, "a") == 1
        assert not list(temporary.iterdir())


async def test_files_that_there_is_no_place_for(
    tmp_path: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a container whose file system can only be read, for one."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    write_model(tmp_path / "models", "a", {1: 1})
    async with serving(tmp_path / "models", gates, "a") as server:
        parameters = {"config": CONFIG_JSON % ("n", ""), "file:1/value.txt": b"1"}
        await fails(server.load_model("n", parameters), InternalError, POLL_FAILED.format("n"))
        assert await ask(server, "a") == 1
    assert "failed to write the files of model 'n': No such file or directory" in caplog.text


async def test_more_instances_than_can_be(tmp_path: Path, gates: Gates) -> None:
    write_model(tmp_path, "a", {1: 1})
    async with serving(tmp_path, gates, "a") as server:
        with pytest.raises(InvalidArgumentError, match="ask for 2147483647 instances, more than the 1024"):
            await server.load_model("a", {"config": CONFIG_JSON % ("a", ',"instance_group":[{"count":2147483647}]')})
        assert await ask(server, "a") == 1


async def test_what_nobody_expected_in_a_model_is_a_failure_to_poll(
    tmp_path: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def contents(source: ModelSource) -> Any:
        raise RuntimeError("how odd")

    write_model(tmp_path, "a", {1: 1})
    async with serving(tmp_path, gates, "a") as server:
        write_model(tmp_path, "b", {1: 1})
        monkeypatch.setattr("trireme.engine.repository.local.LocalModel.contents", contents)
        await fails(server.load_model("b", {}), InternalError, POLL_FAILED.format("b"))
        assert await ask(server, "a") == 1
    assert "how odd" in caplog.text


async def test_a_defect_in_a_load_costs_the_call(
    tmp_path: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def apply(control: Any, polled: Any) -> None:
        raise RuntimeError("how odd")

    write_model(tmp_path, "a", {1: 1})
    write_model(tmp_path, "b", {1: 2})
    async with serving(tmp_path, gates, "a") as server:
        with monkeypatch.context() as patch:
            patch.setattr("trireme.actors.model_control.ModelControl._apply", apply)
            await fails(server.load_model("b", {}), InternalError, "RuntimeError: how odd")
        await server.load_model("b", {})
        assert (await ask(server, "a"), await ask(server, "b")) == (1, 2)
    assert "how odd" in caplog.text


async def test_a_model_that_ends_its_thread_while_it_is_loaded(
    tmp_path: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(file: Path) -> float:
        raise SystemExit(3)

    write_model(tmp_path, "a", {1: 1})
    write_model(tmp_path, "b", {1: 2})
    async with serving(tmp_path, gates, "a") as server:
        monkeypatch.setattr(valued_models, "_read", read)
        with pytest.raises(InvalidArgumentError, match=r"the model's code ended its thread \(exit status 3\)"):
            await server.load_model("b", {})
        assert await ask(server, "a") == 1


async def test_a_model_that_cannot_be_closed(
    tmp_path: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def close(loaded: Any) -> None:
        raise RuntimeError("stuck")

    monkeypatch.setattr(valued_models._Loaded, "close", close)
    write_model(tmp_path, "a", {1: 1})
    write_model(tmp_path, "b", {1: 2})
    async with serving(tmp_path, gates, "a", "b") as server:
        await server.unload_model("b")
        await until(lambda: [row.reason for row in server.repository_index()] == ["", "unloaded"])
        assert await ask(server, "a") == 1
    assert "closing model 'b' version 1 failed" in caplog.text


class Careless(RepositoryAgent):
    """Needs a parameter, and hands directories over as text."""

    def __init__(self, parameters: dict[str, str]) -> None:
        super().__init__(parameters)
        self._place: Any = parameters["place"]

    def act(self, action: AgentAction, model: AgentModel) -> Path | None:
        return self._place


async def test_an_agent_that_cannot_be_made(tmp_path: Path, gates: Gates, caplog: pytest.LogCaptureFixture) -> None:
    write_model(tmp_path, "a", {1: 1})
    write_model(tmp_path, "b", {1: 2}, CONFIG + AGENT)
    async with serving(tmp_path, gates, "a", agents=AgentRegistry({"x": Careless})) as server:
        await fails(server.load_model("b", {}), InternalError, POLL_FAILED.format("b"))
        assert await ask(server, "a") == 1
    assert "Poll failed for model directory 'b': repository agent 'x': KeyError: 'place'" in caplog.text


async def test_an_agent_may_hand_over_a_directory_as_text(tmp_path: Path, gates: Gates) -> None:
    place = write_model(tmp_path / "elsewhere", "b", {1: 8})
    agent = AGENT.replace('"x"', f'"x" parameters {{ key: "place" value: "{place}" }}')
    write_model(tmp_path / "models", "a", {1: 1}, CONFIG + agent)
    async with serving(tmp_path / "models", gates, "a", agents=AgentRegistry({"x": Careless})) as server:
        assert await ask(server, "a") == 8
