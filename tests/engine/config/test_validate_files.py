"""File names in a configuration stay in the model's directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.engine.backends.interface import InstanceSpec, ModelFiles
from trireme.engine.config.files import path_within
from trireme.engine.config.model import ModelConfig
from trireme.engine.errors import InvalidArgumentError

TENSOR = "data_type: TYPE_FP32 dims: [ 1 ]"
SETTINGS = {
    "default_model_filename": 'default_model_filename: "{}"',
    "cc_model_filenames[8.0]": 'cc_model_filenames {{ key: "8.0" value: "{}" }}',
    "model_warmup input_data_file of input 'IN'": (
        f'model_warmup {{{{ batch_size: 1 inputs {{{{ key: "IN" value {{{{ {TENSOR} input_data_file: "{{}}" '
        "}} }} }}"
    ),
    "initial_state data_file of state 'S'": (
        f'sequence_batching {{{{ state {{{{ input_name: "S" output_name: "T" {TENSOR} '
        f'initial_state {{{{ name: "I" {TENSOR} data_file: "{{}}" }}}} }}}} }}}}'
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["/etc/passwd", "../../other/secret", "x/../../../secret", "../../m2/secret"])
def test_names_that_leave_the_model_fail_the_load(load, setting: str, name: str) -> None:
    """Before any backend is asked, so that the reason is the model's in the index."""
    io = 'backend: "python" input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } '
    io += 'output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } '
    with pytest.raises(InvalidArgumentError) as refused:
        load(io + SETTINGS[setting].format(name))
    assert refused.value.message == (
        f"'{setting}' of model 'm' must name a file in the model's directory, but is '{name}'"
    )


@pytest.mark.parametrize("name", ["../../other/model.onnx", "/model.onnx", "sub/../../../model.onnx", "a\0b"])
def test_no_instance_is_made_from_a_file_elsewhere(tmp_path: Path, name: str) -> None:
    config = ModelConfig("m", default_model_filename=name)
    with pytest.raises(InvalidArgumentError, match="is outside the model's directory"):
        ModelFiles(tmp_path / "m", 1).model_path(config, InstanceSpec("m_0"), "model.onnx")


def test_other_folders_of_the_model_may_be_named(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path / "m", 1)
    config = ModelConfig("m", default_model_filename="../shared/./model.onnx")
    assert files.model_path(config, InstanceSpec("m_0"), "model.onnx") == tmp_path / "m" / "shared" / "model.onnx"


def test_a_link_cannot_turn_an_inner_name_outwards(tmp_path: Path) -> None:
    """``link/../x`` is ``x``, wherever the link leads; the link by itself is the repository's business."""
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    assert path_within(tmp_path / "m", "", "link/../x") == tmp_path / "m" / "x"
    assert path_within(tmp_path / "m", "", "link/x") == tmp_path / "m" / "link" / "x"
