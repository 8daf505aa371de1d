"""What can go wrong when a Python model is loaded, and what its author reads then
(docs/reference/python-backend.md#files-and-imports, docs/reference/python-backend.md#life-cycle)."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import trio
from python_models import CONFIG, IDENTITY, ask, child_processes, open_descriptors, open_repository, until, write_model

from trireme.engine.description import ModelState
from trireme.engine.errors import InvalidArgumentError
from trireme.python_backend import PythonBackend
from trireme.python_backend.launching import Environments, Interpreter

CLASS = """
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
"""


async def reason(repository: Path, **options: object) -> str:
    """Why the model of a repository is not there, and that nothing of it is."""
    before = child_processes(), open_descriptors()
    async with open_repository(repository, exit_on_error=False, **options) as server:
        (entry,) = server.repository_index()
        assert child_processes() <= before[0]
    await until(lambda: open_descriptors() <= before[1])
    assert entry.state is ModelState.UNAVAILABLE
    return entry.reason


def in_class(body: str) -> str:
    return CLASS + body


FAILURES = {
    "a syntax error": (
        "def broken(:\n    pass\n",
        "Internal: SyntaxError: invalid syntax (model.py, line 1)",
    ),
    "an import error": (
        "import no_such_module\n",
        "Internal: ModuleNotFoundError: No module named 'no_such_module'\n\nAt:\n  {path}(1): <module>\n",
    ),
    "no class": (
        "x = 1\n",
        "Internal: AttributeError: module '1.model' has no attribute 'TritonPythonModel'",
    ),
    "initialize raises": (
        in_class("        def initialize(self, args):\n            raise ValueError('bad weights')\n"),
        "Internal: ValueError: bad weights\n\nAt:\n  {path}(7): initialize\n",
    ),
    "initialize raises the utilities' own exception": (
        in_class("        def initialize(self, args):\n            raise pb_utils.TritonModelException('no')\n"),
        "Internal: TritonModelException: no\n\nAt:\n  {path}(7): initialize\n",
    ),
    "the constructor raises": (
        in_class("        def __init__(self):\n            raise KeyError('x')\n"),
        "Internal: KeyError: 'x'\n\nAt:\n  {path}(7): __init__\n",
    ),
    "the process ends in initialize": (
        in_class("        def initialize(self, args):\n            import os\n            os._exit(3)\n"),
        "Internal: Stub process 'm_0' is not healthy.",
    ),
    "the process is killed in initialize": (
        in_class("        def initialize(self, args):\n            import os\n            os.kill(os.getpid(), 11)\n"),
        "Internal: Stub process 'm_0' is not healthy.",
    ),
    "the process ends in auto_complete_config": (
        in_class(
            "        @staticmethod\n        def auto_complete_config(c):\n"
            "            import os\n            os._exit(3)\n"
        ),
        "Internal: Stub process 'm' is not healthy.",
    ),
    "auto_complete_config raises": (
        in_class("        @staticmethod\n        def auto_complete_config(c):\n            raise OSError('gone')\n"),
        "Internal: OSError: gone\n\nAt:\n  {path}(8): auto_complete_config\n",
    ),
    "auto_complete_config returns something else": (
        in_class("        @staticmethod\n        def auto_complete_config(c):\n            return 7\n"),
        "Internal: auto_complete_config function in model 'm' must return a valid pb.ModelConfig object.",
    ),
}


@pytest.mark.parametrize(("code", "expected"), FAILURES.values(), ids=FAILURES)
async def test_the_load_fails_with_the_authors_own_lines(tmp_path: Path, code: str, expected: str) -> None:
    directory = write_model(tmp_path, "m", code)
    path = directory / "1" / "model.py"
    found = await reason(tmp_path)
    assert found.startswith(expected.format(path=path))


async def test_a_missing_file_fails_the_load(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "m")
    (directory / "1" / "model.py").unlink()
    assert await reason(tmp_path) == f"Internal: Python model file not found in '{directory / '1' / 'model.py'}'"


async def test_the_file_may_have_another_name(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "m", config=CONFIG + '\ndefault_model_filename: "other.py"')
    (directory / "1" / "model.py").rename(directory / "1" / "other.py")
    async with open_repository(tmp_path) as server:
        assert (await server.infer(ask("m", 1))).outputs[0].array.tolist() == [[1]]


async def test_one_bad_instance_takes_the_others_with_it(tmp_path: Path) -> None:
    code = in_class(
        "        def initialize(self, args):\n            if args['model_instance_name'].endswith('2'):\n"
        "                raise RuntimeError('third')\n"
    )
    write_model(tmp_path, "m", code, CONFIG + "instance_group [{ kind: KIND_CPU count: 4 }]")
    assert (await reason(tmp_path)).startswith("Internal: RuntimeError: third")


async def test_instances_start_side_by_side(tmp_path: Path) -> None:
    """Each waits in `initialize` until all others are there."""
    code = in_class("""
        def initialize(self, args):
            import os, time
            open(os.path.join(pb_utils.get_model_dir(), args["model_instance_name"]), "w").close()
            while len([n for n in os.listdir(pb_utils.get_model_dir()) if n.startswith("m_")]) < 4:
                time.sleep(0.01)
    """)
    write_model(tmp_path, "m", code, CONFIG + "instance_group [{ kind: KIND_CPU count: 4 }]")
    async with open_repository(tmp_path) as server:
        assert server.ready()
        (actor,) = server.model_statistics()
        assert actor.instances_alive == 4
        assert len(child_processes()) == 4
    assert child_processes() == set()


async def test_a_model_completes_its_configuration(tmp_path: Path) -> None:
    code = (
        IDENTITY
        + """
        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
            config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]})
            config.set_max_batch_size(4)
            config.set_dynamic_batching()
            return config
"""
    )
    write_model(tmp_path, "m", code, 'backend: "python"')
    async with open_repository(tmp_path) as server:
        config = server.describe("m").config
        assert config.max_batch_size == 4
        assert [tensor.name for tensor in (*config.input, *config.output)] == ["INPUT0", "OUTPUT0"]
        assert config.dynamic_batching is not None
        assert (await server.infer(ask("m", 1))).outputs[0].array.tolist() == [[1]]


async def test_what_a_model_says_while_it_completes_is_logged_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits until the test has read its first lines, and is heard to the last one."""
    code = (
        IDENTITY
        + f"""
        @staticmethod
        def auto_complete_config(config):
            import os, sys, time
            print("reading weights")
            print("no GPU", file=sys.stderr)
            pb_utils.Logger.log_warn("half way")
            while not os.path.exists({str(tmp_path / "heard")!r}):
                time.sleep(0.01)
            os.write(1, b"done, without an end")
            return config
"""
    )
    write_model(tmp_path / "models", "m", code)
    caplog.set_level("INFO", "trireme.python")

    async def hear() -> None:
        await until(lambda: {"reading weights", "no GPU", "half way"} <= set(caplog.messages))
        (tmp_path / "heard").touch()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            async with open_repository(tmp_path / "models"):
                assert "done, without an end" in caplog.messages
    (record,) = [record for record in caplog.records if record.message == "half way"]
    assert record.pathname.endswith("/m/1/model.py")


async def test_a_model_that_does_not_come_to_an_end_with_its_configuration_is_given_up(tmp_path: Path) -> None:
    code = in_class(
        "        @staticmethod\n        def auto_complete_config(config):\n            while True: print('still')\n"
    )
    write_model(tmp_path, "m", code)
    found = await reason(tmp_path, backend_config={"python": {"auto-complete-timeout-seconds": "1"}})
    assert found == "Internal: auto_complete_config of model 'm' has not returned within 1 s"


async def test_how_a_process_ended_that_completes_a_configuration_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Too little memory, for one, is seen by nothing else; the reason that clients see is Triton's."""
    code = in_class(
        "        @staticmethod\n        def auto_complete_config(config):\n"
        "            import os, signal\n            os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    write_model(tmp_path, "m", code)
    assert await reason(tmp_path) == "Internal: Stub process 'm' is not healthy."
    said = "the process that was asked about the configuration of model 'm' is gone: killed by SIGSEGV"
    assert said in caplog.messages


async def test_a_model_fills_in_what_its_configuration_leaves_open(tmp_path: Path) -> None:
    """Also inputs besides those that are there, and the transaction policy."""
    code = (
        IDENTITY
        + """
        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "INPUT1", "data_type": "TYPE_INT32", "dims": [1], "optional": True})
            config.set_model_transaction_policy({"decoupled": True})
            return config
"""
    )
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path) as server:
        config = server.describe("m").config
        assert [(tensor.name, tensor.optional) for tensor in config.input] == [("INPUT0", False), ("INPUT1", True)]
        assert config.decoupled
        assert config.max_batch_size == 8


async def test_a_model_must_not_contradict_its_configuration(tmp_path: Path) -> None:
    code = in_class(
        "        @staticmethod\n        def auto_complete_config(config):\n"
        "            config.set_max_batch_size(4)\n            return config\n"
    )
    write_model(tmp_path, "m", code)
    assert (await reason(tmp_path)).startswith(
        "Internal: ValueError: configuration specified max_batch_size 8, but in auto-complete-config function for "
        "model 'm' specified max_batch_size 4"
    )


async def test_the_instance_sees_the_completed_configuration(tmp_path: Path) -> None:
    code = (
        IDENTITY
        + """
        @staticmethod
        def auto_complete_config(config):
            config.set_max_batch_size(16)
            return config

        def initialize(self, args):
            import json, os
            with open(os.path.join(pb_utils.get_model_dir(), "seen"), "w") as file:
                file.write(args["model_config"])
"""
    )
    directory = write_model(tmp_path, "m", code)
    async with open_repository(tmp_path):
        assert json.loads((directory / "1" / "seen").read_text())["max_batch_size"] == 16


async def test_modules_beside_the_model_can_be_imported(tmp_path: Path) -> None:
    code = "import helper\nfrom .sibling import NAME\n" + "\n".join(
        line.removeprefix("    ") for line in IDENTITY.replace('"OUTPUT0"', "NAME").splitlines()
    )
    directory = write_model(tmp_path, "m", code)
    (directory / "1" / "sibling.py").write_text('NAME = "OUTPUT0"\n')
    (directory / "helper.py").write_text("")
    async with open_repository(tmp_path) as server:
        assert (await server.infer(ask("m", 1))).outputs[0].name == "OUTPUT0"


async def test_nothing_of_ours_is_in_the_way_of_the_models_imports(tmp_path: Path) -> None:
    code = (
        IDENTITY
        + """
        def initialize(self, args):
            import sys
            ours = [name for name in sys.modules if name.startswith("trireme")]
            assert not ours, ours
            for name in ("codec", "channel", "utils", "process", "wire"):
                try:
                    __import__(name)
                except ImportError:
                    continue
                raise AssertionError(name)
"""
    )
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path) as server:
        assert server.ready()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shm-default-byte-size": "1048576", "shm-growth-byte-size": "1", "shm-region-prefix-name": "x"},
        {"stub-timeout-seconds": "1", "shm_message_queue_size": "1000", "thread-pool-size": "1"},
        {"execution-environment": "ignored like any unknown option"},
    ],
)
def test_options_of_triton_are_accepted(options: dict[str, str]) -> None:
    PythonBackend(options)


@pytest.mark.parametrize(
    "options",
    [
        {"shm-default-byte-size": "1024"},
        {"shm-growth-byte-size": "0"},
        {"stub-timeout-seconds": "0"},
        {"stub-timeout-seconds": "soon"},
        {"thread-pool-size": "0"},
    ],
)
def test_options_of_no_sense_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError):
        PythonBackend(options)


async def test_a_process_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path, "m", IDENTITY)
    silent = Interpreter(("sh", "-c", "exec cat /dev/zero"), {})
    monkeypatch.setattr(Environments, "interpreter", lambda *_, **__: silent)
    found = await reason(tmp_path, auto_complete=False, backend_config={"python": {"stub-timeout-seconds": "1"}})
    assert found == "Internal: the process of instance 'm_0' is not up after 1 s"


async def test_a_load_that_takes_long_can_be_given_up(tmp_path: Path) -> None:
    """Closing the server does not wait for a model that initialises for ever."""
    code = in_class("""
        def initialize(self, args):
            open(pb_utils.get_model_dir() + "/began", "w").close()
            while True:
                pass
    """)
    directory = write_model(tmp_path, "m", code)
    before = child_processes()
    with trio.CancelScope() as given_up:

        async def give_up() -> None:
            await until((directory / "1" / "began").exists)
            given_up.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_up)
            async with open_repository(tmp_path, exit_timeout_s=0.1):
                raise AssertionError("it never gets ready")
    assert given_up.cancelled_caught
    assert child_processes() <= before


async def test_a_model_that_completes_its_configuration_may_log_many_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The process does not read while it logs, and a socket holds few messages: each line must not be acknowledged."""
    code = (
        CLASS
        + """
        @staticmethod
        def auto_complete_config(config):
            for number in range(5000):
                pb_utils.Logger.log_info("a line")
            return config

        def execute(self, requests):
            return []
"""
    )
    write_model(tmp_path, "m", code)
    settings = {"python": {"auto-complete-timeout-seconds": "60"}}
    with caplog.at_level(logging.INFO, "trireme.python"):
        async with open_repository(tmp_path, backend_config=settings):
            pass
    assert [record.getMessage() for record in caplog.records].count("a line") == 5000
