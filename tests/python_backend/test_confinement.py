"""What the process of a model may do, and what may be done to it."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from calling_models import HEAD, TEXT, answer
from python_models import ask, child_processes, open_descriptors, open_repository, until, write_model

from trireme.engine.backends.confinement import Account, Confinement, find_account
from trireme.engine.errors import InternalError, InvalidArgumentError, TriremeError
from trireme.python_backend import launching

TELLS = (
    HEAD
    + """
        def execute(self, requests):
            import json, resource
            status = dict(line.split(":", 1) for line in open("/proc/self/status"))
            return [text(json.dumps({
                "session": os.getsid(0), "group": os.getpgid(0), "pid": os.getpid(),
                "no_new_privs": int(status["NoNewPrivs"]),
                "oom_score": int(open("/proc/self/oom_score_adj").read()),
                "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
                "data": resource.getrlimit(resource.RLIMIT_DATA)[0],
                "user": [os.getuid(), os.getgid(), os.getgroups()], "home": os.environ.get("HOME"),
            }))]
"""
)


@pytest.fixture
def own_score() -> int:
    return int(Path("/proc/self/oom_score_adj").read_text())


@pytest.fixture
def core_files() -> Iterator[None]:
    """This process may leave a core file, of a byte, unless the system forbids them all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (1 if hard else 0, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


NOBODY = Account("nobody", 65534, 65534, (65534,), "/nonexistent")
MEMORY = 1 << 30


async def test_a_process_has_a_session_of_its_own_and_cannot_gain_privileges(
    tmp_path: Path, own_score: int, core_files: None
) -> None:
    write_model(tmp_path, "m", TELLS, TEXT)
    async with open_repository(tmp_path, confinement=Confinement(memory_bytes=MEMORY)) as server:
        told = json.loads(await answer(server, "m", 0))
    assert told["session"] == told["group"] == told["pid"]
    assert told["no_new_privs"] == 1
    assert told["oom_score"] == min(1000, own_score + 500)
    assert (told["core"], told["data"]) == (0, MEMORY)


async def test_more_memory_than_the_limit_is_an_error_of_the_request(tmp_path: Path) -> None:
    code = HEAD + "        def execute(self, requests):\n            return [response(len(bytearray(2 << 30)))]\n"
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path, confinement=Confinement(memory_bytes=MEMORY)) as server:
        with pytest.raises(InternalError, match="MemoryError"):
            await server.infer(ask("m", 1))
        assert server.model_statistics()[0].restarts == 0


def test_a_process_may_run_as_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only told: such a user need not be able to read the interpreter that runs the tests."""
    told: dict[str, Any] = {}
    monkeypatch.setattr(subprocess, "Popen", lambda _command, **options: told.update(options))
    launching.start(["true"], {"EMPTY": "", "GIVEN": "x"}, Confinement(NOBODY))
    assert (told["user"], told["group"], told["extra_groups"]) == (65534, 65534, (65534,))
    variables = told["env"]
    assert [variables.get(name) for name in ("HOME", "USER")] == ["/nonexistent", "nobody"]


def test_the_interpreter_that_confines_does_not_use_the_libraries_of_the_one_that_it_becomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment of a model may hold the same libraries as the server's interpreter, of other versions."""
    monkeypatch.setenv("GONE", "x")
    for version in (6, 7, 8):
        (tmp_path / f"libffi.so.{version}").write_text("no library")
    script = 'echo "$LD_LIBRARY_PATH" "${GONE-none}" "$@"'
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "GONE": ""}
    process = launching.start(["/bin/sh", "-c", script, "sh", "--", "A=b"], environment, Confinement())
    told, complaints = process.communicate(timeout=60)
    assert (told.decode(), process.returncode) == (f"{tmp_path} none -- A=b\n", 0), complaints


def test_a_process_that_cannot_be_started_is_an_error_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason: there may be no more threads, or no more processes."""

    def refuse(*_arguments: Any) -> None:
        raise RuntimeError("can't start new thread")

    for place, name in ((launching, "start"), (threading.Thread, "start")):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, refuse)
            before = open_descriptors()
            with pytest.raises(InternalError, match="cannot start the process of instance 'm_0': can't start new"):
                launching.Process("m_0", launching.Interpreter(("true",), {}))
            assert open_descriptors() == before


async def test_a_model_in_the_servers_process_is_refused_where_models_run_as_another_user(tmp_path: Path) -> None:
    config = 'backend: "python"\nparameters { key: "EXECUTION" value { string_value: "in_process" } }'
    write_model(tmp_path, "m", config=config)
    confinement = Confinement(NOBODY)
    async with open_repository(tmp_path, confinement=confinement, auto_complete=False, exit_on_error=False) as server:
        (entry,) = server.repository_index()
    assert "run as user 'nobody' (--python-user)" in entry.reason


@pytest.mark.parametrize(
    ("text", "said"), [("no-such-user", "there is no user"), ("0:no-such-group", "there is no group")]
)
def test_an_unknown_user_is_an_error(text: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        find_account(text)


def test_a_user_is_found_by_name_and_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_account("0") == find_account("root")
    assert find_account("root:0").groups == (0,)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(InvalidArgumentError, match="only a server that runs as root"):
        find_account("0")


def test_a_server_that_is_not_root_cannot_choose_its_own_user_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root may set a process's groups, so that no model could be started."""
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(InvalidArgumentError, match="only a server that runs as root"):
        find_account("65534")


async def test_what_a_model_has_started_ends_with_a_process_that_dies(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        def execute(self, requests):
            import signal, subprocess
            sleeper = subprocess.Popen(["sleep", "1000"])
            with open(os.path.join(pb_utils.get_model_dir(), "sleeper"), "w") as file:
                file.write(str(sleeper.pid))
            os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    directory = write_model(tmp_path, "m", code)
    async with open_repository(tmp_path) as server:
        with pytest.raises(TriremeError, match="is not healthy"):
            await server.infer(ask("m", 1))
        pid = int((directory / "1" / "sleeper").read_text())
        await until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


SERVER = """
import os, sys, time
from pathlib import Path
from trireme.python_backend.launching import Interpreter, Process

sleeper = Interpreter((sys.executable, "-c", "import time; print('up', flush=True); time.sleep(1000)"), {})
process = Process("m_0", sleeper)
assert os.read(process.stdout, 2) == b"up"
print(process.pid, flush=True)
time.sleep(1000)
"""


def test_a_process_that_never_looks_ends_with_its_server() -> None:
    """Here it does not even begin to watch the socket."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        child = psutil.Process(int(server.stdout.readline()))
        assert child.is_running()
        server.kill()
    try:
        child.wait(timeout=60)
    finally:
        with suppress(psutil.NoSuchProcess):
            child.kill()


async def test_a_terminals_interrupt_does_not_reach_a_process(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    async with open_repository(tmp_path):
        (pid,) = child_processes()
        assert os.getpgid(pid) != os.getpgid(0)
        assert os.getsid(pid) != os.getsid(0)
        os.kill(pid, signal.SIGINT)
        assert psutil.Process(pid).is_running()
