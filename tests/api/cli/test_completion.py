"""`trireme completion`: what a shell offers."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
from pathlib import Path

import pytest
from serve_process import PATIENCE_S

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


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers_words_and_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.fish").write_text(script("fish", capsys))

    def fish_offers(line: str) -> set[str]:
        command = ["fish", "-N", "-c", f"source t.fish; complete -C '{line}'"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return {each.partition("\t")[0] for each in done.stdout.splitlines()}

    assert fish_offers("trireme ben") == {"bench"}
    assert fish_offers("trireme cluster ") >= {"up", "status", "down"}
    assert fish_offers("trireme serve --model-control-mode p") == {"poll"}
    assert fish_offers("trireme init --with sk") == {"sklearn"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_offers_words_at_a_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.zsh").write_text(f"autoload -U compinit; compinit -D\n{script('zsh', capsys)}")
    ours, theirs = os.openpty()
    shell = subprocess.Popen(["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path)
    os.close(theirs)

    def said(typed: str, until: str) -> str:
        """What the shell writes up to a text; only then it reads what is typed next as a person types it."""
        os.write(ours, typed.encode())
        text = ""
        while re.search(until, text) is None:
            assert select.select([ours], [], [], PATIENCE_S)[0], text
            text += os.read(ours, 65536).decode(errors="replace")
        return text

    try:
        said("PS1='at''> '; source ./t.zsh; echo rea''dy\n", "ready\r(?s:.*)at> ")
        said("trireme cluster \t", "status")
        assert "bad option" not in said("\t", "down|bad option")
        said("\x15echo do''ne\n", "done\r(?s:.*)at> ")
        said("trireme init --with \t", "pytorch")
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
