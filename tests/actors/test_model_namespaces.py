"""Models of equal names in different repositories (docs/reference/model-control.md#namespaces), and those that have
only one namespace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from valued_models import CONFIG_JSON, Gates, ensemble_config, valued_request
from valued_models import write_model as write
from valued_server import POLL_FAILED, ask, fails, index, serving, until

from trireme.actors import InferenceServer, StartupError
from trireme.engine.errors import InternalError, InvalidArgumentError, NotFoundError
from trireme.engine.options import ControlMode

SPACES: Any = {"model_namespacing": True}
POLL = {"model_control_mode": ControlMode.POLL, "repository_poll_s": 0.01}

AMBIGUOUS = (
    "There are 2 identifiers of model 'dup' in global map, model namespace must be provided to resolve ambiguity."
)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two repositories with a model ``dup`` each, that adds 1 and 2; ``one`` and ``other`` have each a model more."""
    one, other = tmp_path / "one", tmp_path / "other"
    write(one, "dup", {1: 1})
    write(one, "a", {1: 10})
    write(other, "dup", {1: 2})
    write(other, "b", {1: 20})
    return one, other


class TestNamespaces:
    async def test_equal_names_are_served_and_asked_for_by_name_alone_are_ambiguous(
        self, two: tuple[Path, Path], gates: Gates
    ) -> None:
        async with serving(two, gates, "*", **SPACES) as server:
            assert [await ask(server, "a"), await ask(server, "b")] == [10, 20]
            await fails(server.infer(valued_request("dup")), InvalidArgumentError, AMBIGUOUS)
            assert not server.model_ready("dup")
            with pytest.raises(InvalidArgumentError, match=r"^requested model 'dup' is not available$"):
                server.statistics("dup")
            assert [row[:3] for row in await index(server)] == [
                ("a", "1", "READY"),
                ("dup", "1", "READY"),
                ("b", "1", "READY"),
                ("dup", "1", "READY"),
            ]
            assert server.ready()

    async def test_statistics_name_the_repository(self, two: tuple[Path, Path], gates: Gates) -> None:
        async with serving(two, gates, "*", **SPACES) as server:
            assert [(entry.name, entry.namespace) for entry in server.statistics()] == [
                ("a", str(two[0])),
                ("dup", str(two[0])),
                ("b", str(two[1])),
                ("dup", str(two[1])),
            ]

    async def test_load_and_unload_are_for_all_of_a_name(self, two: tuple[Path, Path], gates: Gates) -> None:
        async with serving(two, gates, **SPACES) as server:
            await server.load_model("dup", {})
            assert [row.state.value for row in server.repository_index() if row.state] == ["READY"] * 2
            await server.unload_model("dup")
            await until(lambda: [row.reason for row in server.repository_index()].count("unloaded") == 2)
            text = "Request for unknown model: 'dup' is not found"
            await fails(server.infer(valued_request("dup")), NotFoundError, text)
            await fails(server.load_model("nope", {}), InternalError, POLL_FAILED.format("nope"))

    async def test_a_name_is_clear_again_when_one_model_of_it_is_left(
        self, two: tuple[Path, Path], gates: Gates
    ) -> None:
        async with serving(two, gates, **SPACES, **POLL) as server:
            (two[0] / "dup").rename(two[0].parent / "away")
            await until(lambda: server.model_ready("dup"))
            assert await ask(server, "dup") == 2
            (two[0].parent / "away").rename(two[0] / "dup")
            await until(lambda: not server.model_ready("dup"))
            await fails(server.infer(valued_request("dup")), InvalidArgumentError, AMBIGUOUS)

    async def test_an_ensemble_prefers_the_model_beside_it(self, two: tuple[Path, Path], gates: Gates) -> None:
        """Whatever is loaded again, and in whichever repository."""
        write(two[0], "e_one", {1: 0}, ensemble_config("dup"))
        write(two[1], "e_other", {1: 0}, ensemble_config("dup"))
        async with serving(two, gates, "e_one", "e_other", **SPACES) as server:
            assert [await ask(server, "e_one"), await ask(server, "e_other")] == [1, 2]
            write(two[0], "dup", {1: 5})
            await server.load_model("dup", {})
            assert [await ask(server, "e_one"), await ask(server, "e_other")] == [5, 2]

    async def test_an_ensemble_takes_the_only_one_elsewhere(self, two: tuple[Path, Path], gates: Gates) -> None:
        write(two[0], "e", {1: 0}, ensemble_config("b"))
        async with serving(two, gates, "e", **SPACES) as server:
            assert await ask(server, "e") == 20
            await server.unload_model("b")
            await until(lambda: not server.model_ready("e"))
            await server.load_model("b", {})
            assert await ask(server, "e") == 20

    async def test_a_member_that_could_be_several_is_none(
        self, two: tuple[Path, Path], gates: Gates, tmp_path: Path
    ) -> None:
        write(tmp_path / "third", "e", {1: 0}, ensemble_config("dup"))
        async with serving((*two, tmp_path / "third"), gates, **SPACES) as server:
            text = "contains models that are not available or ambiguous: dup"
            with pytest.raises(InvalidArgumentError, match=text):
                await server.load_model("e", {})

    async def test_what_comes_with_a_request_has_no_namespace(self, two: tuple[Path, Path], gates: Gates) -> None:
        async with serving(two, gates, **SPACES) as server:
            await server.load_model("new", {"config": CONFIG_JSON % ("new", ""), "file:1/value.txt": b"7"})
            assert await ask(server, "new") == 7
            await server.unload_model("new")
            await until(lambda: not server.model_ready("new"))

    async def test_an_override_is_for_all_of_a_name(self, two: tuple[Path, Path], gates: Gates) -> None:
        async with serving(two, gates, "*", **SPACES) as server:
            config = CONFIG_JSON % ("dup", ',"parameters":{"k":{"string_value":"v"}}')
            await server.load_model("dup", {"config": config})
            found = [model.config.parameters for model in server._repository.models() if model.name == "dup"]
            assert found == [{"k": "v"}] * 2


class TestOneNamespace:
    async def test_a_name_in_two_repositories_is_not_served(self, two: tuple[Path, Path], gates: Gates) -> None:
        async with serving(two, gates, "a", "b") as server:
            assert [await ask(server, "a"), await ask(server, "b")] == [10, 20]
            reason = "model appears in two or more repositories"
            assert ("dup", "", "UNAVAILABLE", reason) in await index(server)
            assert [row.name for row in server.repository_index(ready_only=True)] == ["a", "b", "dup"]
            await fails(server.load_model("dup", {}), InternalError, POLL_FAILED.format("dup"))

    @pytest.mark.parametrize("exit_on_error", [True, False])
    async def test_it_is_an_error_at_start(
        self, two: tuple[Path, Path], gates: Gates, exit_on_error: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        mode: Any = {"model_control_mode": ControlMode.NONE, "exit_on_error": exit_on_error}
        if exit_on_error:
            with pytest.raises(StartupError):
                async with serving(two, gates, **mode):
                    pytest.fail("the server must not open")
        else:
            async with serving(two, gates, **mode) as server:
                assert await ask(server, "a") == 10
                assert not server.ready()
        assert "failed to poll model 'dup': not unique across all model repositories" in caplog.text

    async def test_a_served_model_that_gets_a_double_is_unloaded_by_polling(
        self, two: tuple[Path, Path], gates: Gates
    ) -> None:
        """And comes back when it is alone again, as in Triton."""

        def known(server: InferenceServer) -> str:
            return next(row.reason for row in server.repository_index() if row.name == "a")

        async with serving(two, gates, **POLL, exit_on_error=False) as server:
            write(two[1], "a", {1: 11})
            await until(lambda: "two or more" in known(server))
            await until(lambda: not server.model_ready("a"))
            text = "Request for unknown model: 'a' has no available versions"
            await fails(server.infer(valued_request("a")), NotFoundError, text)
            (two[0] / "a").rename(two[0].parent / "away")
            await until(lambda: server.model_ready("a"))
            assert await ask(server, "a") == 11
