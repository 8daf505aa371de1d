"""Whether a profile still speaks of what is there."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from some_profiles import ORIGIN

from trireme.engine.config.model import ModelConfig
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.options import ServerOptions
from trireme.engine.profiles import ProfileOrigin, present_origin
from trireme.engine.repository.agents import AgentRegistry
from trireme.engine.repository.local import LocalModel

REPOSITORY = Path(__file__).parents[3] / "model_repository"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The directory of a copy of a model."""
    return Path(shutil.copytree(REPOSITORY / "simple_identity", tmp_path / "simple_identity"))


def now(directory: Path) -> ProfileOrigin:
    config: ModelConfig = LocalModel(directory).open(ServerOptions(), None, AgentRegistry())[1]
    return present_origin(directory, config, "today")


def test_nothing_has_changed(model: Path) -> None:
    assert now(model).changes(now(model)) == ()


def test_a_changed_file_is_noticed(model: Path) -> None:
    before = now(model)
    file = next(path for path in model.rglob("*") if path.is_file() and path.suffix != ".pbtxt")
    file.write_bytes(file.read_bytes() + b"\n")
    assert before.changes(now(model)) == ("the model's files have changed",)


def test_settings_of_the_backend_count_and_those_of_the_scheduler_do_not(model: Path) -> None:
    """Profiles are made to try other numbers of instances and other batching."""
    before, path = now(model), model / "config.pbtxt"
    path.write_text(path.read_text() + "dynamic_batching { max_queue_delay_microseconds: 100 }\n")
    assert before.changes(now(model)) == ()
    path.write_text(path.read_text() + 'parameters { key: "threads" value { string_value: "7" } }\n')
    assert before.changes(now(model)) == ("the model's configuration has changed",)


def test_versions_and_the_machine_count() -> None:
    other = replace(ORIGIN, versions={"trireme": "2", "onnxruntime": "1.20"}, machine="another", cores=8)
    assert ORIGIN.changes(other) == (
        "onnxruntime was none and is 1.20",
        "trireme was 1 and is 2",
        "the machine was 'a machine' and is 'another'",
        "there were 2 cores and are 8",
    )


def test_its_form_in_json_is_checked() -> None:
    good = {"date": "d", "machine": "m", "cores": 2, "versions": {}, "files": "f", "settings": "s"}
    assert ProfileOrigin.from_json(good, "x").cores == 2
    for wrong in ({**good, "cores": 0}, {**good, "versions": {"a": 1}}, {**good, "date": 3}, {"date": "d"}, 7):
        with pytest.raises(InvalidArgumentError, match=r"^x"):
            ProfileOrigin.from_json(wrong, "x")
