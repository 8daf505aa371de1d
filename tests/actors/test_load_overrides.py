"""Configurations and files that come with a load request (docs/reference/model-control.md#load-parameters)."""

from __future__ import annotations

import contextlib
import gc
import weakref
from pathlib import Path

import pytest
from valued_models import CONFIG_JSON, Gates, write_model
from valued_server import POLL_FAILED, ask, fails, index, serving, until

from trireme.engine.errors import InternalError, InvalidArgumentError


class TestOverrides:
    async def test_a_configuration_of_the_request_counts_until_a_file_changes(
        self, tmp_path: Path, gates: Gates
    ) -> None:
        write_model(tmp_path, "a", {1: 1, 2: 2})
        async with serving(tmp_path, gates, "a") as server:
            chosen = CONFIG_JSON % ("a", ',"version_policy":{"specific":{"versions":[1]}}')
            await server.load_model("a", {"config": chosen})
            assert await ask(server, "a") == 1
            await server.load_model("a", {})
            assert await ask(server, "a") == 1, "a plain load changes nothing"
            write_model(tmp_path, "a", {1: 1, 2: 20})
            await server.load_model("a", {})
            assert await ask(server, "a") == 20

    @pytest.mark.parametrize("config", ["{bad", "[]", '{"name":"other"}', '{"nonsense":1}'])
    async def test_a_bad_configuration_is_a_failure_to_poll(self, tmp_path: Path, gates: Gates, config: str) -> None:
        write_model(tmp_path, "a", {1: 1})
        async with serving(tmp_path, gates, "a") as server:
            await fails(server.load_model("a", {"config": config}), InternalError, POLL_FAILED.format("a"))
            assert await ask(server, "a") == 1

    async def test_files_of_the_request_are_the_whole_model(
        self, tmp_path: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root, temporary = tmp_path / "models", tmp_path / "temporary"
        temporary.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(temporary))
        write_model(root, "a", {1: 1, 3: 3})
        files = {"config": CONFIG_JSON % ("a", ""), "file:2/value.txt": b"20"}
        async with serving(root, gates, "a") as server:
            await server.load_model("a", files)
            assert await ask(server, "a") == 20
            assert len(list(temporary.iterdir())) == 1
            await server.load_model("a", {"config": CONFIG_JSON % ("a", ""), "file:2/value.txt": b"21"})
            assert await ask(server, "a") == 21
            await until(lambda: len(list(temporary.iterdir())) == 1)
            await server.load_model("a", {})
            assert await ask(server, "a") == 3, "a plain load goes back to the repository"
            await until(lambda: not list(temporary.iterdir()))
            await server.load_model("new", {"config": CONFIG_JSON % ("new", ""), "file:1/value.txt": b"7"})
            assert await ask(server, "new") == 7
            assert [row[0] for row in await index(server)] == ["a"] * 2, "what is in no repository is not listed"
            await fails(server.load_model("new", {}), InternalError, POLL_FAILED.format("new"))
            assert await ask(server, "new") == 7
            broken = {"config": CONFIG_JSON % ("new", ""), "file:1/value.txt": b"x"}
            with pytest.raises(InvalidArgumentError, match="no value"):
                await server.load_model("new", broken)
            assert await ask(server, "new") == 7
            await until(lambda: len(list(temporary.iterdir())) == 1)
        assert not list(temporary.iterdir())

    @pytest.mark.parametrize(
        ("parameters", "logged"),
        [
            ({"file:1/value.txt": b"1"}, "Load parameter 'config' must be specified for model file override"),
            ({"config": "{}", "file:../x": b"1"}, "must stay within model directory."),
            ({"config": "{}", "file:": b"1"}, "must stay within model directory."),
            (
                {"config": "{}", "file:1": b"1", "file:1/value.txt": b"1"},
                "Invalid file parameter 'file:1/value.txt', directory has been created as a file",
            ),
            ({"config": "{}", "file:1/x": "text"}, "File parameter 'file:1/x' must have bytes type for its value"),
            ({"config": b"{}"}, "Config parameter 'config' must have string type for its value"),
            ({"other": "x"}, "Unrecognized load parameter 'other' with type 'string'"),
        ],
    )
    async def test_files_that_make_no_model_are_a_failure_to_poll(
        self,
        tmp_path: Path,
        gates: Gates,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        parameters: dict[str, str | bytes],
        logged: str,
    ) -> None:
        root, temporary = tmp_path / "models", tmp_path / "temporary"
        temporary.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(temporary))
        write_model(root, "a", {1: 1})
        async with serving(root, gates, "a") as server:
            await fails(server.load_model("a", parameters), InternalError, POLL_FAILED.format("a"))
            assert await ask(server, "a") == 1
        assert logged in caplog.text
        assert not list(temporary.iterdir())


async def test_code_can_be_kept_out_of_load_requests(tmp_path: Path, gates: Gates) -> None:
    """Over whichever protocol it comes; what the repository holds is not concerned."""
    root, aside = tmp_path / "models", tmp_path / "temporary"
    aside.mkdir()
    write_model(root, "a", {1: 1})
    config = CONFIG_JSON % ("a", "")
    async with serving(root, gates, "a", allow_code_upload=False) as server:
        with pytest.raises(InvalidArgumentError, match=r"'file:1/model\.py' may hold code"):
            await server.load_model("a", {"config": config, "file:1/value.txt": b"2", "file:1/model.py": b"pass"})
        assert await ask(server, "a") == 1
        await server.load_model("a", {"config": config, "file:1/value.txt": b"2"})
        assert await ask(server, "a") == 2


async def test_a_configuration_cannot_choose_code_either(tmp_path: Path, gates: Gates) -> None:
    """Nor one that comes with files: what counts is what the repository says of the model."""
    write_model(tmp_path, "a", {1: 1})
    library = CONFIG_JSON % ("a", ',"model_operations":{"op_library_filename":["/tmp/x.so"]}')
    agent = CONFIG_JSON % ("a", ',"model_repository_agents":{"agents":[{"name":"checksum"}]}')
    files = {"file:1/value.txt": b"2", "file:config.pbtxt": b'model_operations { op_library_filename: "/tmp/x.so" }'}
    async with serving(tmp_path, gates, "a", allow_code_upload=False) as server:
        for parameters in ({"config": library}, {"config": library, **files}):
            with pytest.raises(
                InvalidArgumentError, match=r"op_library_filename '/tmp/x\.so' in .*--allow-code-upload="
            ):
                await server.load_model("a", parameters)
        for config in (agent, agent.replace('"backend":"valued",', "")):
            with pytest.raises(InvalidArgumentError, match="model_repository_agents 'checksum'"):
                await server.load_model("a", {"config": config})
        assert await ask(server, "a") == 1
        await server.load_model("a", {"config": CONFIG_JSON % ("a", "")})
        assert await ask(server, "a") == 1
    async with serving(tmp_path, gates, "a") as server:
        await server.load_model("a", {"config": library})


class Parameters(dict[str, str | bytes]):
    """Of a load request, with all of its files."""


async def test_the_files_of_a_load_that_fails_are_freed_at_once(tmp_path: Path, gates: Gates) -> None:
    """They have left the budget: if they waited for the garbage collector, they could fill the memory."""
    async with serving(tmp_path, gates) as server:
        gc.disable()
        try:
            parameters = Parameters({"config": "{}", "file:1/value.txt": b"1"})
            seen = weakref.ref(parameters)
            with contextlib.suppress(InternalError):  # pytest.raises would keep the error, and with it this frame
                await server.load_model("a", parameters)
                pytest.fail("was loaded")
            del parameters
            await until(lambda: seen() is None)
        finally:
            gc.enable()
