"""The command `trireme` itself."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import trio

from trireme.api.cli.main import ENTRY_POINT_GROUP, main
from trireme.api.cli.parser import CommandError


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("trireme ")


def test_help_names_the_sub_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "serve" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["nosuch"], ["--model-repository=x"]])
def test_anything_else_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("trireme: ")
    assert said.endswith("\nsee: trireme --help\n")
    assert said.count("\n") == 2


def test_an_unknown_command_is_told_with_those_that_are_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rout"])
    assert capsys.readouterr().err.startswith("trireme: there is no command 'rout'; nearest: 'route'")


def test_an_unknown_option_of_a_sub_command_is_its_own_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["route", "list", "--jsn"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == (
        "trireme route list: unrecognized arguments: --jsn; nearest: '--json'\nsee: trireme route list --help\n"
    )


def _add_greeting(commands: Any) -> None:
    commands.add_parser("greet", help="say hello").set_defaults(run=_greet)


def _adding(name: str, run: Callable[[Any], int]) -> Callable[[Any], None]:
    """What adds a sub-command."""
    return lambda commands: commands.add_parser(name).set_defaults(run=run)


def _greet(_given: Any) -> int:
    raise CommandError("nobody is here", "come back later", code=7)


def test_installed_packages_add_sub_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the entry-point group; and what a sub-command raises is told with its remedy."""
    point = EntryPoint("greet", f"{__name__}:_add_greeting", ENTRY_POINT_GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == point.group else [])
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert main(["greet"]) == 7
    assert capsys.readouterr().err == "trireme greet: nobody is here\n  come back later\n"


def test_a_package_that_cannot_be_imported_takes_no_other_commands_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [EntryPoint("broken", "no_such_module:add", ENTRY_POINT_GROUP)]
    points.append(EntryPoint("greet", f"{__name__}:_add_greeting", ENTRY_POINT_GROUP))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == ENTRY_POINT_GROUP else [])
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert main(["greet"]) == 7
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("trireme: the command 'broken' cannot be loaded (no_such_module:add): No module named")


MADE_LOG = ["request-log", "generate", "--arrivals", "poisson,rate=100000", "--model", "m", "--seconds", "1"]


@pytest.mark.parametrize("nested", [False, True])
def test_an_interrupt_amid_a_server_of_the_command_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    """Nurseries put it into groups. What else they raise is shown, as ever."""

    def run(error: BaseException) -> int:
        async def interrupted() -> None:
            async with trio.open_nursery():
                raise error

        trio.run(interrupted)
        return 0

    kinds = [ExceptionGroup("", [ValueError("x")]), KeyboardInterrupt()]
    error = BaseExceptionGroup("", kinds) if nested else KeyboardInterrupt()
    monkeypatch.setattr("trireme.api.cli.main._installed", lambda: [_adding("it", lambda _given: run(error))])
    assert main(["it"]) == 130
    monkeypatch.setattr("trireme.api.cli.main._installed", lambda: [_adding("it", lambda _given: run(kinds[0]))])
    with pytest.raises(ExceptionGroup):
        main(["it"])


@pytest.mark.parametrize("words", [["openapi"], MADE_LOG])
def test_a_reader_that_has_seen_enough_is_no_error(words: list[str]) -> None:
    command = [sys.executable, "-m", "trireme", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_a_terminal_that_lacks_characters_gets_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and charts have some that are not ASCII."""

    add = _adding("chart", lambda _given: sys.stdout.write("1×2 │ •\n") and 0)
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="ascii"))
    monkeypatch.setattr("trireme.api.cli.main._installed", lambda: [add])
    assert main(["chart"]) == 0
    assert shown.getvalue() == b"1?2 ? ?\n"


def test_serve_reads_its_own_options(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests' servers have threads, too; for those the command would end the process.
    monkeypatch.setattr("trireme.api.cli.main._threads_given_up", lambda: False)
    assert main(["serve", "--nosuch"]) == 1
    assert capsys.readouterr().err.startswith("trireme serve: unrecognized option '--nosuch'")


INTERRUPTED = """
import sys
from trireme.api.cli.main import main

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "trireme.api.cli.serve":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.exit(main())
"""


def test_an_interrupt_while_the_server_is_imported_ends_it_without_a_traceback(tmp_path: Path) -> None:
    """Importing takes most of the start; nothing of it happens before `main` can end it."""
    command = [sys.executable, "-c", INTERRUPTED, "serve", f"--model-repository={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Signal (2) received.\n", "")


def test_the_command_imports_nothing_of_the_server_by_itself() -> None:
    """But for its version, which ``import trireme`` tells."""
    code = (
        "import sys, trireme.api.cli.main\n"
        "print(*(name for name in sys.modules if name in {'trio', 'numpy'} or name.startswith('trireme.engine.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "trireme.engine.version\n"


COLLECTIONS = """
import gc
from trireme.api.cli import main
before = sum(each["collections"] for each in gc.get_stats())
main._import_command("serve")
few = sum(each["collections"] for each in gc.get_stats()) - before < 5  # before and after the imports
print(few, gc.isenabled(), gc.get_freeze_count() > 10_000)
"""


def test_the_server_is_imported_without_garbage_collections() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTIONS], capture_output=True, text=True, check=True)
    assert done.stdout == "True True True\n"


def test_without_a_word_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: trireme ")


@pytest.mark.parametrize(("exit_code", "cleans_up"), [(0, True), (130, False)])
def test_after_an_interrupt_the_process_ends_without_cleaning_up(exit_code: int, cleans_up: bool) -> None:
    """A thread may be inside of a framework that takes the process down when the interpreter ends under it."""
    code = f"""
import atexit, sys
from trireme.api.cli import main
atexit.register(print, "cleaned up")
main._main = lambda words: print("said") or {exit_code}
sys.exit(main.main())
"""
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == exit_code
    assert ended.stdout == ("said\ncleaned up\n" if cleans_up else "said\n")


def test_output_that_cannot_be_written_is_told_in_two_lines() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trireme", "openapi"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "trireme openapi: cannot write: No space left on device\n  make room, or write elsewhere\n"


def test_an_output_that_is_closed_is_none() -> None:
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m trireme openapi >&-"], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
