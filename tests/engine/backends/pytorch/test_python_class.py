"""Modules as Python source, ``runtime: "model.py"`` (docs/reference/backends.md#modules-in-python), with the real
PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trireme.engine.datatypes import FP32
from trireme.engine.errors import InternalError, InvalidArgumentError, UnavailableError

RUNTIME = 'runtime: "model.py"'

SCALE = """
import torch

class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor([2.0]))

    def forward(self, x):
        return x * self.factor
"""


def write(models: Any, source: str, name: str = "model.py") -> Any:
    path = models.files.version_directory / name
    path.write_text(source)
    return path


def test_the_class_in_the_file_is_the_model(models: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    write(models, SCALE)
    (answer,) = begin(pytorch_config(RUNTIME)).run({"X": tensor("X", FP32, [4])})
    assert answer["Y"].tolist() == [8.0]


def test_the_state_beside_it_is_loaded(models: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    torch.save({"factor": torch.tensor([5.0])}, write(models, SCALE).with_suffix(".pt"))
    (answer,) = begin(pytorch_config(RUNTIME)).run({"X": tensor("X", FP32, [4])})
    assert answer["Y"].tolist() == [20.0]


def test_inputs_and_outputs_are_in_the_order_of_the_configuration(
    models: Any, begin: Any, pytorch_config: Any, tensor: Any
) -> None:
    write(
        models,
        """
        import torch
        class Both(torch.nn.Module):
            def forward(self, a, b):
                return [a - b, a]
        """.replace("\n        ", "\n"),
    )
    text = "".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: [ -1 ] }} ' for name in ("P", "Q"))
    text += "".join(f'output {{ name: "{name}" data_type: TYPE_FP32 dims: [ -1 ] }} ' for name in ("MINUS", "SAME"))
    (answer,) = begin(pytorch_config(RUNTIME, text)).run({"Q": tensor("Q", FP32, [1]), "P": tensor("P", FP32, [3])})
    assert (answer["MINUS"].tolist(), answer["SAME"].tolist()) == ([2.0], [3.0])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("x = 1", "failed to load model 'm': model.py defines no subclass of torch.nn.Module"),
        ("raise ValueError('not today')", "failed to load model 'm': not today"),
        ("import nothing_like_this", "failed to load model 'm': No module named 'nothing_like_this'"),
        ("class", "failed to load model 'm': invalid syntax (model.py, line 1)"),
    ],
)
def test_what_is_wrong_with_the_source_is_said(
    models: Any, begin: Any, pytorch_config: Any, source: str, text: str
) -> None:
    write(models, source)
    with pytest.raises(InternalError) as caught:
        begin(pytorch_config(RUNTIME))
    assert str(caught.value) == text


def test_a_state_that_does_not_fit_is_refused(models: Any, begin: Any, pytorch_config: Any) -> None:
    torch.save({"other": torch.tensor([5.0])}, write(models, SCALE).with_suffix(".pt"))
    with pytest.raises(InternalError, match=r"(?s)^failed to load model 'm': .*factor"):
        begin(pytorch_config(RUNTIME))


def test_no_file_at_all_is_named(models: Any, begin: Any, pytorch_config: Any) -> None:
    with pytest.raises(UnavailableError) as caught:
        begin(pytorch_config(RUNTIME))
    assert str(caught.value) == f"No model found in {models.files.version_directory}/[model.py, model.pt]"


def test_options_of_torch_compile_are_checked(models: Any, begin: Any, pytorch_config: Any) -> None:
    write(models, SCALE)
    options = 'parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: "{\\"model\\": 1}" } }'
    with pytest.raises(InvalidArgumentError) as caught:
        begin(pytorch_config(f"{RUNTIME} {options}"))
    assert str(caught.value) == "'model' is not an optional parameter for 'torch.compile'"


def test_a_compiled_model_answers_alike(models: Any, begin: Any, pytorch_config: Any, tensor: Any) -> None:
    """The eager backend of torch.compile goes through its machinery, and needs no compiler."""
    write(models, SCALE)
    options = (
        'parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: "{\\"backend\\": \\"eager\\"}" } }'
    )
    (answer,) = begin(pytorch_config(f"{RUNTIME} {options}")).run({"X": tensor("X", FP32, [4])})
    assert answer["Y"].tolist() == [8.0]
