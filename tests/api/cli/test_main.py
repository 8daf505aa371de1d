"""The command `trireme` itself."""

from __future__ import annotations

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
