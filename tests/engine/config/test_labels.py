"""Label files (docs/reference/model-configuration.md#labels)."""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.engine.config import ModelConfig, read_labels
from trireme.engine.config.model import ModelOutput
from trireme.engine.datatypes import FP32
from trireme.engine.errors import InternalError, UnsupportedError


def _config(filename: str) -> ModelConfig:
    return ModelConfig(
        "m", output=(ModelOutput("A", FP32, (3,)), ModelOutput("B", FP32, (3,), label_filename=filename))
    )


def test_one_line_is_one_label(tmp_path: Path) -> None:
    for text, labels in (("a\nb c\n\nd", ("a", "b c", "", "d")), ("a\n", ("a",)), ("a\n\n", ("a", "")), ("", ())):
        (tmp_path / "labels.txt").write_text(text)
        assert read_labels(tmp_path, _config("labels.txt")) == {"B": labels}


def test_outputs_without_a_file_have_no_labels(tmp_path: Path) -> None:
    assert read_labels(tmp_path, _config("")) == {}


def test_missing_file_fails_the_load(tmp_path: Path) -> None:
    with pytest.raises(InternalError) as caught:
        read_labels(tmp_path, _config("labels.txt"))
    assert str(caught.value) == f"failed to open text file for read {tmp_path}/labels.txt: No such file or directory"


@pytest.mark.parametrize(("filename", "shown"), [("../x.txt", "x.txt"), ("sub/../../x.txt", "x.txt")])
def test_file_outside_the_model_is_refused(tmp_path: Path, filename: str, shown: str) -> None:
    (tmp_path / shown).write_text("secret")
    with pytest.raises(UnsupportedError) as caught:
        read_labels(tmp_path / "m", _config(filename))
    assert str(caught.value) == (
        f"label file path '{tmp_path / shown}' for output 'B' in model 'm' is outside model directory"
    )


def test_absolute_path_is_outside(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"label file path '/etc/hostname' .* is outside model directory"):
        read_labels(tmp_path, _config("/etc/hostname"))


def test_sub_directories_and_links_within_are_fine(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.txt").write_text("a\n")
    (tmp_path / "m" / "labels").mkdir(parents=True)
    (tmp_path / "m" / "labels" / "b.txt").symlink_to(tmp_path / "elsewhere.txt")
    assert read_labels(tmp_path / "m", _config("labels/b.txt")) == {"B": ("a",)}
