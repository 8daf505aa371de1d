"""The repository that comes with Trireme: every folder is a model, and every model comes out of its script."""

from __future__ import annotations

import runpy
from pathlib import Path

import onnx
import pytest

REPOSITORY = Path(__file__).parents[2] / "model_repository"
MADE_BY = {
    "make_simple.py": ["identity_fp32", "simple", "simple_identity", "simple_int8", "simple_string"],
    "make_sequences.py": [
        "running_sum",
        "simple_dyna_sequence",
        "simple_sequence",
        "simple_string_dyna_sequence",
    ],
    "make_digits_label.py": ["digits_label"],
}
ENSEMBLES = {"digits_pipeline"}
PYTHON = {"digits_bls", "digits_decode", "repeat_int32", "square_int32", "storyteller"}


@pytest.mark.parametrize("script", MADE_BY)
def test_script_reproduces_committed_models(tmp_path: Path, script: str) -> None:
    """Every model but `digits`, which is trained, comes out of its script as it is committed."""
    names = runpy.run_path(str(REPOSITORY / script))  # run, not imported: that leaves no cache folder
    names["main"](tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == MADE_BY[script]
    for name in MADE_BY[script]:
        assert onnx.load(tmp_path / name / "1" / "model.onnx") == onnx.load(REPOSITORY / name / "1" / "model.onnx")


def test_every_folder_is_a_model() -> None:
    """Every folder in a repository is taken for a model, so nothing else may be one."""
    folders = {path.name for path in REPOSITORY.iterdir() if path.is_dir()}
    assert folders == {"digits", *ENSEMBLES, *PYTHON, *(name for names in MADE_BY.values() for name in names)}
    for name in folders:
        assert (REPOSITORY / name / "config.pbtxt").is_file()
        assert (REPOSITORY / name / "1").is_dir()
        assert (REPOSITORY / name / "1" / "model.py").is_file() == (name in PYTHON)
        assert (REPOSITORY / name / "1" / "model.onnx").is_file() == (name not in ENSEMBLES | PYTHON)
