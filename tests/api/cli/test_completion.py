"""`trireme completion`: what a shell offers."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from trireme.api.cli.completion import SHELLS, all_commands
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.main import command_parser, main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def offered(script: str, *words: str) -> set[str]:
    """What bash offers for the last word."""
    given = " ".join(f"'{word}'" for word in words)
    ask = f'COMP_WORDS=({given}); COMP_CWORD={len(words) - 1}; _trireme; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    text = script("bash", capsys)
    assert offered(text, "trireme", "se") == {"serve"}
    assert offered(text, "trireme", "serve", "--http-p") == {"--http-port"}
    assert offered(text, "trireme", "serve", "--model-control-mode", "p") == {"poll"}
    assert offered(text, "trireme", "serve", "--model-control-mode", "=", "p") == {"poll"}
    assert offered(text, "trireme", "serve", "--exit-on-error", "") == {"true", "false"}
    assert "set" in offered(text, "trireme", "route", "se")  # files are, too
    assert "--target" in offered(text, "trireme", "route", "set", "--")
    assert "zsh" in offered(text, "trireme", "completion", "z")


def test_every_flag_of_the_table_is_offered() -> None:
    names = {option.name for option in all_commands(command_parser(None))["serve"][1]}
    assert names == {f"--{name}" for name in (*FLAGS, "help-all")}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_can_read_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert "model-repository" in text
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([path, "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
