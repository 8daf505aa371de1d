"""Where a model's code comes from and where it runs: environments, Python-based backends, the server's own process."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import tarfile
import threading
from pathlib import Path

import pytest
import trio
from calling_models import ADD_ONE, DECOUPLED, HEAD, TEXT, answer, chain
from python_models import (
    CONFIG,
    IDENTITY,
    ask,
    child_processes,
    leap,
    open_descriptors,
    open_repository,
    until,
    write_model,
)
from trio.testing import MockClock

from trireme.engine.config.json_text import config_json
from trireme.engine.errors import InternalError, TriremeError

SAY_VARIABLE = (
    HEAD
    + """
        def execute(self, requests):
            return [text(os.environ.get("CHOSEN", "none") + " " + os.environ.get("ACTIVATED", "none"))]
"""
)

IN_PROCESS = CONFIG + 'parameters { key: "EXECUTION" value { string_value: "in_process" } }\n'


def environment(directory: Path) -> Path:
    """Something that looks like an environment, and has the packages of this one."""
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "activate").write_text("export ACTIVATED=yes\n")
    python = directory / "bin" / "python"
    python.write_text(f'#!/bin/sh\nCHOSEN=yes exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return directory


def with_environment(path: str) -> str:
    return TEXT + f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}\n'


async def test_a_model_runs_in_its_environment(tmp_path: Path) -> None:
    place = environment(tmp_path / "env")
    write_model(tmp_path / "models", "m", SAY_VARIABLE, with_environment(str(place)))
    write_model(tmp_path / "models", "plain", SAY_VARIABLE, TEXT)
    async with open_repository(tmp_path / "models") as server:
        assert await answer(server, "m", 1) == "yes yes"
        assert await answer(server, "plain", 1) == "none none"


async def test_a_packed_environment_is_unpacked_once_and_goes_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = environment(tmp_path / "env")
    config = with_environment("$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    config += "instance_group [{ kind: KIND_CPU count: 2 }]"
    directory = write_model(tmp_path / "models", "m", SAY_VARIABLE, config)
    with tarfile.open(directory / "env.tar.gz", "w:gz") as archive:
        for part in sorted(place.rglob("*")):
            archive.add(part, part.relative_to(place), recursive=False)
    shutil.rmtree(place)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    async with open_repository(tmp_path / "models") as server:
        assert await answer(server, "m", 1) == "yes yes"
        assert len(list((tmp_path / "temporary").iterdir())) == 1
    del server
    await until(lambda: gc.collect() >= 0 and not list((tmp_path / "temporary").iterdir()))


async def test_an_archive_that_is_named_as_data_is_no_environment(tmp_path: Path) -> None:
    """``--allow-code-upload=false`` lets such names pass, and an archive need not begin like one."""
    place = environment(tmp_path / "env")
    config = with_environment("$$TRITON_MODEL_DIRECTORY/env.bin")
    directory = write_model(tmp_path / "models", "m", SAY_VARIABLE, config)
    with tarfile.open(directory / "env.bin", "w") as archive:
        archive.add(place, ".")
    async with open_repository(tmp_path / "models", exit_on_error=False) as server:
        (entry,) = server.repository_index()
    assert entry.reason.endswith("it must be named as an archive, but '.bin' is for data")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "$$TRITON_MODEL_DIRECTORY/none",
            "Internal: Path {directory}/none/bin/activate does not exist. The Python environment should contain",
        ),
        ("$$TRITON_MODEL_DIRECTORY/config.pbtxt", "Internal: cannot unpack the Python environment '{directory}/config"),
    ],
)
async def test_an_environment_that_is_none_fails_the_load(tmp_path: Path, path: str, expected: str) -> None:
    directory = write_model(tmp_path, "m", IDENTITY, with_environment(path))
    async with open_repository(tmp_path, exit_on_error=False) as server:
        (entry,) = server.repository_index()
        assert entry.reason.startswith(expected.format(directory=directory))


async def test_an_environment_without_numpy_is_told_so(tmp_path: Path) -> None:
    place = environment(tmp_path / "env")
    (place / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    write_model(tmp_path / "models", "m", IDENTITY, with_environment(str(place)))
    async with open_repository(tmp_path / "models", exit_on_error=False) as server:
        (entry,) = server.repository_index()
        assert entry.reason.startswith("Internal: the Python environment '")
        assert entry.reason.endswith("cannot host a model: No module named 'numpy'")


@pytest.mark.parametrize("name", ["FORCE_CPU_ONLY_INPUT_TENSORS", "EXECUTION"])
async def test_parameters_of_no_sense_fail_the_load(tmp_path: Path, name: str) -> None:
    config = CONFIG + f'parameters {{ key: "{name}" value {{ string_value: "maybe" }} }}'
    write_model(tmp_path, "m", IDENTITY, config)
    async with open_repository(tmp_path, exit_on_error=False) as server:
        (entry,) = server.repository_index()
        assert f"parameter '{name}' of model 'm' must be " in entry.reason
        assert entry.reason.endswith("but is 'maybe'")


async def test_one_file_serves_all_models_of_a_python_based_backend(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        import helper_of_backend

        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
            config.add_output({"name": "OUTPUT0", "data_type": "TYPE_STRING", "dims": [1]})
            config.set_max_batch_size(4)
            return config

        def execute(self, requests):
            with open(os.path.join(pb_utils.get_model_dir(), "weights.txt")) as file:
                return [text(file.read())]
"""
    )
    backend = write_model(tmp_path / "backends", "own", code)
    (backend / "1" / "model.py").rename(backend / "model.py")
    (backend / "helper_of_backend.py").write_text("")
    for name in ("a", "b"):
        directory = write_model(tmp_path / "models", name, "", 'backend: "own"')
        (directory / "1" / "model.py").unlink()
        (directory / "1" / "weights.txt").write_text(f"weights of {name}")
    options = {"backend_directory": tmp_path / "backends", "backend_config": {"own": {"stub-timeout-seconds": "60"}}}
    async with open_repository(tmp_path / "models", **options) as server:
        for name in ("a", "b"):
            assert await answer(server, name, 1) == f"weights of {name}"
            assert json.loads(config_json(server.describe(name).config))["runtime"] == "model.py"
        assert len(child_processes()) == 2


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            'backend: "empty" runtime: "model.py"',
            (
                "Invalid argument: unable to find Python backend based backend library 'model.py' for model 'm', "
                "searched: '{backends}/empty/model.py'"
            ),
        ),
        (
            'backend: "python" runtime: "model.py"',
            (
                "Invalid argument: unable to find Python backend based backend library 'model.py' for model 'm', "
                "searched: '{backends}/python/model.py'"
            ),
        ),
        (
            'backend: "empty"',
            (
                "Invalid argument: unable to find backend library for backend 'empty', try specifying runtime on the "
                "model configuration."
            ),
        ),
        (
            'backend: "own" runtime: "libfoo.so"',
            (
                "Invalid argument: unable to find backend library 'libfoo.so' for model 'm', searched: '{models}/m/1' "
                "'{models}/m' '{backends}/own' "
            ),
        ),
        (
            'backend: "own" runtime: "libbar.so"',
            "Unsupported: backend library 'libbar.so' of model 'm' cannot be used: backends are Python classes",
        ),
        (
            'backend: "empty" runtime: "../own/libbar.so"',
            (
                "Invalid argument: backend library name '../own/libbar.so' escapes backend directory "
                "'{backends}/empty', for model 'm', check model config runtime field"
            ),
        ),
    ],
)
async def test_a_runtime_that_is_not_there_fails_the_load(tmp_path: Path, config: str, expected: str) -> None:
    backends, models = tmp_path / "backends", tmp_path / "models"
    for name in ("empty", "own"):
        (backends / name).mkdir(parents=True)
    (backends / "own" / "model.py").touch()
    (backends / "own" / "libbar.so").touch()
    write_model(models, "m", IDENTITY, config)
    async with open_repository(models, exit_on_error=False, backend_directory=backends) as server:
        (entry,) = server.repository_index()
        assert entry.reason == expected.format(backends=backends, models=models)


async def test_a_backend_that_is_nowhere_is_an_error(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "m", IDENTITY, CONFIG.replace('"python"', '"../own"'))
    async with open_repository(tmp_path / "models", exit_on_error=False, backend_directory=tmp_path) as server:
        (entry,) = server.repository_index()
        assert "unable to find backend library for backend '../own'" in entry.reason


async def test_a_model_may_run_in_the_servers_process(tmp_path: Path) -> None:
    """Several of them, each with its own code, calling each other; nothing is left of them."""
    code = (
        HEAD
        + """
        def execute(self, requests):
            return [response(os.getpid())]
"""
    )
    write_model(tmp_path, "pid", code, IN_PROCESS)
    write_model(tmp_path, "t", ADD_ONE, IN_PROCESS + "instance_group [{ kind: KIND_CPU count: 2 }]")
    write_model(tmp_path, "m", chain("t"), IN_PROCESS)
    repeat = (
        HEAD
        + """
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            for number in range(100):
                sender.send(response(number))
            sender.send(flags=FINAL)
"""
    )
    write_model(tmp_path, "many", repeat, DECOUPLED + IN_PROCESS.removeprefix(CONFIG))
    before = child_processes(), open_descriptors(), threading.active_count()
    async with open_repository(tmp_path) as server:
        assert await answer(server, "pid", 1) == pytest.approx(os.getpid())
        assert child_processes() <= before[0]
        for value in range(20):
            assert await answer(server, "m", value) == value + 1
        reply = await server.admit(ask("many", 1))
        assert [part.outputs[0].array[0, 0] async for part in reply.responses()] == list(range(100))
    await until(lambda: threading.active_count() <= before[2] + 4)  # trio keeps some for later
    await until(lambda: open_descriptors() <= before[1])


async def test_what_fails_in_the_servers_process_fails_alone(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        def execute(self, requests):
            if value_of(requests[0]) == 1:
                raise ValueError("no")
            if value_of(requests[0]) == 2:
                import sys
                sys.exit(3)
            return [response(0)]
"""
    )
    write_model(tmp_path, "m", code, IN_PROCESS)
    write_model(tmp_path, "bad", "import nothing_of_that_name", IN_PROCESS)
    async with open_repository(tmp_path, exit_on_error=False, auto_complete=False) as server:
        with pytest.raises(InternalError, match="ValueError: no"):
            await server.infer(ask("m", 1))
        with pytest.raises(InternalError, match="SystemExit: 3"):
            await server.infer(ask("m", 2))
        assert await answer(server, "m", 0) == 0
        reasons = {entry.name: entry.reason for entry in server.repository_index()}
        assert reasons["bad"].startswith("Internal: ModuleNotFoundError: No module named 'nothing_of_that_name'")


async def test_a_thread_that_hangs_is_abandoned(tmp_path: Path, leaping_clock: MockClock) -> None:
    code = (
        HEAD
        + """
        def execute(self, requests):
            while value_of(requests[0]) and not os.path.exists(os.path.join(pb_utils.get_model_dir(), "enough")):
                time.sleep(0.01)
            return [response(0)]
"""
    )
    directory = write_model(tmp_path, "m", code, IN_PROCESS)
    async with open_repository(tmp_path, hang_limit_s=20) as server:

        async def pass_time() -> None:
            await leap(leaping_clock, 20)  # the hang limit
            await leap(leaping_clock, 15)  # so long a thread that cannot be killed is waited for

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_time)
            with trio.fail_after(60), pytest.raises(TriremeError, match="was given up"):
                await server.infer(ask("m", 1))
        assert await answer(server, "m", 0) == 0
        (directory / "1" / "enough").touch()
