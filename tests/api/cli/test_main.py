"""The command `trireme` itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trireme.api.cli.main import main


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


@pytest.mark.parametrize("words", [[], ["nosuch"], ["--model-repository=x"]])
def test_anything_else_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: trireme" in capsys.readouterr().err


def test_serve_reads_its_own_options(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests' servers have threads, too; for those the command would end the process.
    monkeypatch.setattr("trireme.api.cli.main._threads_given_up", lambda: False)
    assert main(["serve", "--nosuch"]) == 1
    assert capsys.readouterr().err.startswith("trireme serve: unrecognized option '--nosuch'\nUsage: trireme serve")


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
