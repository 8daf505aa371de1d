"""`trireme check`: what would load, and all problems of what would not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from trireme.api.cli.main import main

ENSEMBLE = """\
platform: "ensemble"
ensemble_scheduling { step {
  model_name: "nosuch" model_version: -1
  input_map { key: "a" value: "A" } output_map { key: "b" value: "B" }
} }
input { name: "A" data_type: TYPE_FP32 dims: 1 }
output { name: "B" data_type: TYPE_FP32 dims: 1 }
"""


@pytest.fixture
def broken(repository: Path) -> Path:
    """A repository with ``simple``, which is good, and others that are not."""

    def model(name: str, config: str = "", **files: bytes) -> None:
        (repository / name / "1").mkdir(parents=True)
        if config:
            (repository / name / "config.pbtxt").write_text(config)
        for file, content in files.items():
            (repository / name / "1" / f"model.{file}").write_bytes(content)

    model("typos", 'backend: "onnxruntime"\nmax_batchsize: 4\ninput { name: "X" data_type: TYPE_FP31 dims: 4 }\n')
    model("garbage", onnx=b"no model")
    model("backends", 'backend: "onnxruntme"\n')
    model("tops", ENSEMBLE)
    shutil.copytree(repository / "simple", repository / "renamed")
    config = repository / "renamed" / "config.pbtxt"
    config.write_text(config.read_text().replace('"simple"', '"renamed"').replace("OUTPUT0", "OUTPT0"))
    return repository


def test_a_good_repository(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(repository)]) == 0
    assert capsys.readouterr().out == "ok: simple, version 1\n1 of 1 models would load\n"


def test_every_problem_of_every_model_at_once(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", str(broken)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["loads"], report["versions"]) == (False, ["simple"], {"simple": ["1"]})
    told = {}
    for each in report["problems"]:
        told.setdefault(each["model"], []).append(each)
        assert each["remedy"]
    assert set(told) == {"typos", "garbage", "backends", "tops", "renamed"}
    typos = told["typos"]
    assert [(each["file"], each["line"], each["nearest"][0]) for each in typos] == [
        (str(broken / "typos" / "config.pbtxt"), 2, "max_batch_size"),
        (str(broken / "typos" / "config.pbtxt"), 3, "TYPE_FP32"),
    ]
    assert told["renamed"][0]["line"] == 17
    assert told["renamed"][0]["nearest"] == ["OUTPUT0", "OUTPUT1"]
    assert told["backends"][0]["nearest"] == ["onnxruntime"]
    assert told["garbage"][0]["file"] == str(broken / "garbage")


def test_for_people_each_problem_has_place_reason_and_remedy(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(broken), "--config-only"]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = lines.index(f"{broken}/typos/config.pbtxt:2:1: there is no field 'max_batchsize' in ModelConfig")
    assert lines[at + 1 : at + 4] == [
        "    found: max_batchsize: 4",
        "    did you mean: max_batch_size?",
        "    to do: write a name that there is",
    ]
    assert lines[-1] == "5 of 6 models would load, 2 problems"


def test_a_directory_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "nowhere")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"trireme check: cannot read '{tmp_path}/nowhere': No such file or directory\n")
    assert "trireme init" in said


def test_flags_of_the_server(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are read as the server's; a wrong one is a usage error."""
    assert main(["check", str(repository), "--flag", "disable-auto-complete-config"]) == 0
    assert main(["check", str(repository), "--flag", "disable-auto-complet=1"]) == 2
    assert "'--disable-auto-complete-config' doesn't allow an argument" in capsys.readouterr().err


def test_an_empty_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("there are no models here")


APP = """\
from trireme import FP32, RequestContext, model


@model(max_batch_size=-1)
def first(x, y: str, context: list[RequestContext]) -> {"a": FP32}:
    return x


@model(max_batch_size=8)
def second(
    x: FP32[1],
    context: RequestContext,
) -> FP32[1]:
    return x


@model(config="response_cach { enable: true }")
def third(x: FP32[1]) -> FP32[1]:
    return x


@model
class Fourth:
    def __init__(self):
        open("nowhere.bin")

    def __call__(self, x: FP32[1]) -> FP32[1]:
        return x
"""


def problems_of(path: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, int, str]]:
    assert main(["check", "--json", str(path)]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert all(each["file"] == str(path) and each["remedy"] for each in problems)
    return [(each.get("model", ""), each.get("line", 0), each["text"].partition("\n")[0]) for each in problems]


def test_every_problem_of_an_app(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """First those of the declarations, all at once; then those of what is declared well, at its place."""
    app = tmp_path / "app.py"
    app.write_text(APP)
    assert problems_of(app, capsys) == [
        ("first", 5, "max_batch_size is -1, and must be a whole number of at least 0"),
        ("first", 5, "parameter 'x' has no annotation"),
        ("first", 5, "the annotation of parameter 'y' is str, which is no tensor"),
        ("first", 5, "output 'a' of its result is FP32, which is no tensor"),
        (
            "second",
            12,
            "parameter 'context' is RequestContext, and the function is called for several requests at a time",
        ),
    ]
    beginning, _, rest = APP.partition("@model(config")
    app.write_text(f"{beginning.splitlines()[0]}\n\n\n@model(config{rest}")
    assert problems_of(app, capsys) == [
        ("third", 5, "there is no field 'response_cach' in ModelConfig"),
        ("Fourth", 12, "FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.bin'"),
    ]
    app.write_text(f"import nothing_of_this_name\n{APP}")
    assert problems_of(app, capsys) == [("", 1, "ModuleNotFoundError: No module named 'nothing_of_this_name'")]
    assert main(["check", str(app)]) == 1
    assert capsys.readouterr().out.endswith("\nno model would load\n")
    assert main(["check", f"{tmp_path}/none.py"]) == 1
    assert f"{tmp_path}/none.py: there is no such file\n" in capsys.readouterr().out


def test_an_app_beside_a_repository(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = tmp_path / "app.py"
    app.write_text("from trireme import FP32, model\n@model\ndef good(x: FP32[1]) -> FP32[1]:\n    return x\n")
    assert main(["check", str(repository), str(app)]) == 0
    assert capsys.readouterr().out == "ok: good, version 1\nok: simple, version 1\n2 of 2 models would load\n"
