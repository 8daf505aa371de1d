"""`trireme init`: what it makes loads and answers; nothing half made stays."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from serve_process import serve_process
from served_app import app_process

from trireme.api.cli.init import STARTERS
from trireme.api.cli.main import main

HERE = [each for each in STARTERS if all(find_spec(module) for module, _ in each.needs)]


def test_what_is_made_answers_by_the_lines_that_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = tmp_path / "models"
    kinds = ",".join(each.kind for each in HERE if each.kind != "huggingface")  # whose libraries take long
    assert main(["init", str(models), "--with", kinds]) == 0
    said = capsys.readouterr().out
    asked = [shlex.split(line)[1:] for line in said.splitlines() if line.startswith("  trireme infer ")]
    assert len(asked) == len(kinds.split(","))
    with serve_process(models) as server:
        for words in asked:
            assert main([*words, "--url", f"http://127.0.0.1:{server.http_port}"]) == 0, words
    answers = capsys.readouterr().out
    assert "hello Ada" in answers
    assert not asked or "sklearn" not in kinds or re.search(r"PROBABILITIES\[0\]: setosa 0\.9", answers)
    assert "pytorch" not in kinds or re.search(r"OUTPUT__0 +FP32 +1×1 +1\n", answers)


@pytest.mark.slow
def test_a_text_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "huggingface" not in [each.kind for each in HERE]:
        pytest.skip("transformers and torch are not installed")
    assert main(["init", str(tmp_path), "--with", "huggingface"]) == 0
    assert main(["check", str(tmp_path)]) == 0
    assert "ok: encoder, version 1" in capsys.readouterr().out


def test_what_is_not_installed_is_told_with_the_pip_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trireme.api.cli.init.find_spec", lambda _name: None)
    assert main(["init", str(tmp_path / "models"), "--with", "python,huggingface"]) == 1
    assert capsys.readouterr().err == (
        "trireme init: a model of kind huggingface needs what is not installed: torch, transformers\n"
        "  pip install torch transformers\n"
    )
    assert not (tmp_path / "models").exists()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path)]) == 0
    (tmp_path / "greeter" / "1" / "model.py").write_text("mine")
    assert main(["init", str(tmp_path)]) == 1
    assert f"'{tmp_path}/greeter' is there already" in capsys.readouterr().err
    assert (tmp_path / "greeter" / "1" / "model.py").read_text() == "mine"


def test_a_kind_that_there_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path), "--with", "skleran"]) == 2
    assert "did you mean: sklearn?" in capsys.readouterr().err


def test_a_file_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file")]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_what_is_half_made_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_version: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(__import__("trireme.api.cli.init", fromlist=["_MAKERS"])._MAKERS, "onnx", fail)
    assert main(["init", str(tmp_path), "--with", "onnx"]) == 130
    assert list(tmp_path.iterdir()) == []


def test_an_app_to_start_from_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = tmp_path / "new" / "app.py"
    assert main(["init", str(app)]) == 0
    asked = [shlex.split(line)[1:] for line in capsys.readouterr().out.splitlines() if line.startswith("  trireme inf")]
    with app_process(app) as server:
        for words in asked:
            assert main([*words, "--url", f"http://127.0.0.1:{server.http_port}"]) == 0, words
    answers = capsys.readouterr().out
    assert re.search(r"mean +FP32 +1×1 +3\n", answers)
    assert "hello Ada" in answers
    assert main(["init", str(app)]) == 1
    assert f"'{app}' is there already" in capsys.readouterr().err
    assert main(["init", str(tmp_path / "other.py"), "--with", "onnx"]) == 2
    assert not (tmp_path / "other.py").exists()
