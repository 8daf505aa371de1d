"""Repository agents: what they are told, and what they may do (docs/reference/model-control.md#repository-agents)."""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from valued_models import CONFIG, CONFIG_JSON, Gates, ensemble_config
from valued_models import write_model as write
from valued_server import POLL_FAILED, ask, fails, serving, until

from trireme.engine.errors import InternalError, InvalidArgumentError
from trireme.engine.options import ControlMode
from trireme.engine.repository.agents import AgentAction, AgentModel, AgentRegistry, RepositoryAgent

DOCUMENT = Path(__file__).parents[2] / "docs" / "repository-agents.md"


def asked(*agents: str, **parameters: str) -> str:
    """A configuration that names agents, all with the same parameters."""
    settings = "".join(f'parameters {{ key: "{key}" value: "{value}" }} ' for key, value in parameters.items())
    names = "".join(f'agents {{ name: "{agent}" {settings} }} ' for agent in agents)
    return CONFIG + f"model_repository_agents {{ {names} }}\n"


class Diary:
    """Agents that write down what they are told, as ``name ACTION directory``.

    Attributes:
        handed_over: by agent, the directory to load in place of the model's.
        complaints: by agent, the action at which it raises.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.handed_over: dict[str, Path] = {}
        self.complaints: dict[str, AgentAction] = {}
        self.parameters: list[Mapping[str, str]] = []

    def registry(self, *names: str) -> AgentRegistry:
        return AgentRegistry({name: self._agent(name) for name in names})

    def _agent(self, name: str) -> type[RepositoryAgent]:
        diary = self

        class Writing(RepositoryAgent):
            def act(self, action: AgentAction, model: AgentModel) -> Path | None:
                diary.lines.append(f"{name} {action.value} {model.directory.name}")
                if diary.complaints.get(name) is action:
                    raise RuntimeError("no")
                if action is AgentAction.LOAD:
                    diary.parameters.append(self.parameters)
                return diary.handed_over.get(name)

        return Writing

    def take(self) -> list[str]:
        lines, self.lines[:] = list(self.lines), []
        return lines


@pytest.fixture
def diary() -> Diary:
    return Diary()


def options(diary: Diary) -> dict[str, Any]:
    return {"agents": diary.registry("x", "y")}


async def test_a_life_in_order(tmp_path: Path, gates: Gates, diary: Diary) -> None:
    """LOAD and UNLOAD as configured, the rest in reverse; a reload is a life of its own."""
    write(tmp_path, "a", {1: 1}, asked("x", "y", key="value"))
    async with serving(tmp_path, gates, "a", **options(diary)) as server:
        assert diary.take() == ["x LOAD a", "y LOAD a", "y LOAD_COMPLETE a", "x LOAD_COMPLETE a"]
        assert diary.parameters == [{"key": "value"}] * 2
        await server.load_model("a", {})
        assert diary.take() == [], "what has not changed is not looked at"
        write(tmp_path, "a", {1: 2}, asked("x"))
        await server.load_model("a", {})
        await until(lambda: len(diary.lines) == 6)
        lines = diary.take()
        assert [line for line in lines if "UNLOAD" not in line] == ["x LOAD a", "x LOAD_COMPLETE a"]
        assert [line for line in lines if "UNLOAD" in line] == [
            *("x UNLOAD a", "y UNLOAD a"),
            *("y UNLOAD_COMPLETE a", "x UNLOAD_COMPLETE a"),
        ]
        await server.unload_model("a")
        await until(lambda: len(diary.lines) == 2)
        assert diary.take() == ["x UNLOAD a", "x UNLOAD_COMPLETE a"]


async def test_the_end_of_the_server_is_the_end_of_the_model(tmp_path: Path, gates: Gates, diary: Diary) -> None:
    write(tmp_path, "a", {1: 1}, asked("x"))
    async with serving(tmp_path, gates, "a", **options(diary)):
        diary.take()
    assert diary.take() == ["x UNLOAD a", "x UNLOAD_COMPLETE a"]


async def test_an_agent_may_hand_over_another_directory(tmp_path: Path, gates: Gates, diary: Diary) -> None:
    """Its configuration counts from then on; the next agent is told of it."""
    write(tmp_path / "models", "a", {1: 1}, asked("x", "y"))
    write(tmp_path / "elsewhere", "b", {1: 8, 3: 9}, CONFIG + 'parameters { key: "k" value { string_value: "v" } }')
    diary.handed_over["x"] = tmp_path / "elsewhere" / "b"
    async with serving(tmp_path / "models", gates, "a", **options(diary)) as server:
        assert await ask(server, "a") == 9
        assert server.describe("a").version == 3
        assert server.describe("a").config.parameters == {"k": "v"}
        assert diary.take() == ["x LOAD a", "y LOAD b", "y LOAD_COMPLETE b", "x LOAD_COMPLETE a"]
        assert [row.name for row in server.repository_index()] == ["a"]


async def test_the_agent_of_the_documentation(tmp_path: Path, gates: Gates) -> None:
    """Here what decrypts is a copy of what lies elsewhere."""
    (code,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    write(tmp_path / "models", "a", {1: 1}, asked("decrypt", key="secret"))
    plain = write(tmp_path / "plain", "a", {1: 8}, CONFIG)
    places: list[Path] = []

    def decrypt_all(directory: Path, place: Path, key: str) -> None:
        assert (directory, key) == (tmp_path / "models" / "a", "secret")
        places.append(shutil.copytree(plain, place))

    names: dict[str, Any] = {"decrypt_all": decrypt_all}
    exec(compile(code, DOCUMENT.name, "exec"), names)
    agents = AgentRegistry({"decrypt": names["Decrypt"]})
    async with serving(tmp_path / "models", gates, "a", agents=agents) as server:
        assert await ask(server, "a") == 8
        assert [place.is_dir() for place in places] == [True]
    assert [place.parent.exists() for place in places] == [False]


async def test_what_is_handed_over_must_be_a_model(
    tmp_path: Path, gates: Gates, diary: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "a", {1: 1}, asked("x"))
    async with serving(tmp_path, gates, **options(diary)) as server:
        for other in (tmp_path / "nowhere", write(tmp_path.parent / "bad", "b", {1: 1}, "nonsense")):
            diary.handed_over["x"] = other
            await fails(server.load_model("a", {}), InternalError, POLL_FAILED.format("a"))
            assert diary.take() == ["x LOAD a", "x LOAD_FAIL a"]
    assert f"failed to stat file {tmp_path / 'nowhere'}" in caplog.text


async def test_an_agent_may_refuse(
    tmp_path: Path, gates: Gates, diary: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    """What is served goes on being so; those that were told to load learn that it failed."""
    write(tmp_path, "a", {1: 1}, asked("x", "y"))
    async with serving(tmp_path, gates, "a", **options(diary)) as server:
        diary.take()
        diary.complaints["y"] = AgentAction.LOAD
        write(tmp_path, "a", {1: 2}, asked("x", "y"))
        await fails(server.load_model("a", {}), InternalError, POLL_FAILED.format("a"))
        assert diary.take() == ["x LOAD a", "y LOAD a", "y LOAD_FAIL a", "x LOAD_FAIL a"]
        assert await ask(server, "a") == 1
        diary.complaints.clear()
        await server.load_model("a", {})
        assert await ask(server, "a") == 2
    assert "Poll failed for model directory 'a': repository agent Writing: RuntimeError: no" in caplog.text


async def test_agents_learn_that_a_load_failed(tmp_path: Path, gates: Gates, diary: Diary) -> None:
    write(tmp_path, "a", {1: "broken"}, asked("x"))
    async with serving(tmp_path, gates, **options(diary)) as server:
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="no value"):
                await server.load_model("a", {})
            assert diary.take() == ["x LOAD a", "x LOAD_FAIL a"]
    assert diary.take() == []


async def test_complaints_that_come_too_late_are_logged(
    tmp_path: Path, gates: Gates, diary: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "a", {1: 1}, asked("x"))
    diary.complaints["x"] = AgentAction.LOAD_COMPLETE
    with caplog.at_level(logging.WARNING):
        async with serving(tmp_path, gates, "a", **options(diary)) as server:
            assert await ask(server, "a") == 1
    assert "repository agent Writing of model 'a' failed at LOAD_COMPLETE: no" in caplog.text


async def test_a_configuration_of_the_request_may_name_agents(tmp_path: Path, gates: Gates, diary: Diary) -> None:
    """Files of the request stay as long as what was loaded from them."""
    agents = ',"model_repository_agents":{"agents":[{"name":"x"}]}'
    async with serving(tmp_path, gates, **options(diary)) as server:
        await server.load_model("n", {"config": CONFIG_JSON % ("n", agents), "file:1/value.txt": b"4"})
        assert await ask(server, "n") == 4
        assert diary.take() == ["x LOAD n", "x LOAD_COMPLETE n"]
        await server.unload_model("n")
        await until(lambda: diary.lines[-1:] == ["x UNLOAD_COMPLETE n"])


async def test_members_of_ensembles_have_agents_too(tmp_path: Path, gates: Gates, diary: Diary) -> None:
    write(tmp_path, "a", {1: 1}, asked("x"))
    write(tmp_path, "e", {1: 0}, ensemble_config("a"))
    async with serving(tmp_path, gates, "e", **options(diary)) as server:
        assert await ask(server, "e") == 1
        assert diary.take() == ["x LOAD a", "x LOAD_COMPLETE a"]


async def test_polling_goes_by_the_repository(tmp_path: Path, gates: Gates, diary: Diary) -> None:
    write(tmp_path / "models", "a", {1: 1}, asked("x"))
    diary.handed_over["x"] = write(tmp_path / "elsewhere", "b", {1: 8})
    mode = {"model_control_mode": ControlMode.POLL, "repository_poll_s": 0.01}
    async with serving(tmp_path / "models", gates, **mode, **options(diary)) as server:
        for _ in range(3):
            await server._control.poll()
        assert len(diary.take()) == 2
        diary.handed_over["x"] = write(tmp_path / "elsewhere", "c", {1: 9})
        write(tmp_path / "models", "a", {1: 2}, asked("x"))
        await until(lambda: "x UNLOAD_COMPLETE a" in diary.lines)
        assert await ask(server, "a") == 9
        shutil.rmtree(tmp_path / "models" / "a")
        await until(lambda: diary.lines[-1] == "x UNLOAD_COMPLETE a" and not server.model_ready("a"))


async def test_an_unknown_agent_is_named(tmp_path: Path, gates: Gates, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "a", {1: 1}, asked("nobody"))
    async with serving(tmp_path, gates) as server:
        await fails(server.load_model("a", {}), InternalError, POLL_FAILED.format("a"))
    assert "unable to find repository agent 'nobody'" in caplog.text


class TestChecksum:
    async def test_what_is_as_it_should_be_is_loaded(self, tmp_path: Path, gates: Gates) -> None:
        digest = hashlib.md5(b"1").hexdigest()
        write(tmp_path, "a", {1: 1}, asked("checksum", **{"md5:1/value.txt": digest}))
        async with serving(tmp_path, gates, "a") as server:
            assert await ask(server, "a") == 1

    @pytest.mark.parametrize(
        ("key", "text"),
        [
            (
                "MD5:1/value.txt",
                "Mismatched MD5 hash for file {}/1/value.txt, expect: 0, got: c4ca4238a0b923820dcc509a6f75849b",
            ),
            ("1/value.txt", "failed to parse key: 1/value.txt"),
            ("SHA1:1/value.txt", "Unsupported checksum algorithm: SHA1:1/value.txt"),
            ("MD5:2/value.txt", "failed to open text file for read {}/2/value.txt: No such file or directory"),
            ("MD5:1", "failed to open text file for read {}/1: Is a directory"),
            ("MD5:../b/secret", "checksum file '../b/secret' is outside the model's directory"),
            ("MD5:/etc/passwd", "checksum file '/etc/passwd' is outside the model's directory"),
        ],
    )
    async def test_anything_else_is_refused(
        self, tmp_path: Path, gates: Gates, caplog: pytest.LogCaptureFixture, key: str, text: str
    ) -> None:
        directory = write(tmp_path, "a", {1: 1}, asked("checksum", **{key: "0"}))
        async with serving(tmp_path, gates) as server:
            await fails(server.load_model("a", {}), InternalError, POLL_FAILED.format("a"))
        assert f"Poll failed for model directory 'a': {text.format(directory)}" in caplog.text
