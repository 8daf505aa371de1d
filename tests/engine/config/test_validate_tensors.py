"""Every refusal of docs/reference/model-configuration.md#tensors, in its words: in the load phase, or in the poll phase
of a strict server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from model_configs import read_config

from trireme.engine.config import ModelConfig
from trireme.engine.errors import InvalidArgumentError

WILDCARD = "must be integer >= 1, or -1 to indicate a variable-size dimension"
MAX = 2**63 - 1

TENSOR: list[tuple[str, str]] = [
    ("", "must specify 'name'"),
    ('name: "T"', "'T' must specify 'data_type'"),
    ('name: "T" data_type: 99 dims: 1', "'T' must specify 'data_type'"),
    ('name: "T" data_type: TYPE_FP32', "'T' must specify 'dims'"),
    ('name: "T" data_type: TYPE_FP32 dims: 0', f"'T' dimension {WILDCARD}"),
    (f'name: "T" data_type: TYPE_FP32 dims: {[1] * 65}', "'T' dims has 65 dimensions, expected at most 64"),
    ('name: "T" data_type: TYPE_FP32 dims: [ 1, -2 ]', f"'T' dimension {WILDCARD}"),
    ('name: "T" data_type: TYPE_FP32 dims: 1 reshape { shape: 0 }', f"'T' reshape dimensions {WILDCARD}"),
    (
        'name: "T" data_type: TYPE_FP32 dims: 1 reshape { }',
        "'T' cannot have empty reshape for non-batching model as scalar tensors are not supported",
    ),
    (
        'name: "T" data_type: TYPE_FP32 dims: 2 reshape { shape: 3 }',
        "'T' has different size for dims and reshape",
    ),
    (
        'name: "T" data_type: TYPE_FP32 dims: [ -1, 2 ] reshape { shape: 2 }',
        "'T' has different size for dims and reshape",
    ),
    (
        'name: "T" data_type: TYPE_FP32 dims: [ -1, 2 ] reshape { shape: [ 2, -1 ] }',
        "'T' has different size for dims and reshape",
    ),
    (
        'name: "T" data_type: TYPE_FP32 dims: [ -1, -1 ] reshape { shape: [ -1, 2 ] }',
        "'T' has different number of variable-size dimensions for dims and reshape",
    ),
    (
        f'name: "T" data_type: TYPE_INT8 dims: [ {2**62}, 2 ]',
        f"element count for tensor 'T dims' exceeds maximum size of {MAX}",
    ),
    (f'name: "T" data_type: TYPE_FP32 dims: {2**62}', f"byte size for tensor 'T' exceeds maximum size of {MAX}"),
    (f'name: "T" data_type: TYPE_STRING dims: {2**62}', f"byte size for tensor 'T' exceeds maximum size of {MAX}"),
]


@pytest.mark.parametrize("role", ["input", "output"])
@pytest.mark.parametrize(("tensor", "reason"), TENSOR)
def test_tensors_are_refused_when_loading(
    load: Callable[[str], ModelConfig], role: str, tensor: str, reason: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        load(f'backend: "python" {role} {{ {tensor} }}')
    assert str(caught.value) == f"model {role} {reason} for m"


@pytest.mark.parametrize(("tensor", "reason"), TENSOR)
def test_a_strict_server_refuses_them_when_polling(make_model: Callable[..., Path], tensor: str, reason: str) -> None:
    directory = make_model(f'backend: "python" input {{ {tensor} }}')
    assert read_config(directory).name == "m"
    with pytest.raises(InvalidArgumentError) as caught:
        read_config(directory, auto_complete=False)
    assert str(caught.value) == f"model input {reason} for m"


IO = """
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
PYTHON = f'backend: "python" {IO}'
TENSORRT = f'backend: "tensorrt" {IO}'
SHAPE_ONLY = "shape tensors are only supported for TensorRT platform"
LINEAR_ONLY = "Non-linear IO format is only supported for the TensorRT platform"
TWO_DIMS = 'name: "T" data_type: TYPE_FP32 dims: [ 1, 2 ]'
BATCH_INPUT = 'target_name: "N" data_type: TYPE_FP32'

OTHERS: list[tuple[str, str]] = [
    (f"{PYTHON} input {{ {TWO_DIMS} format: FORMAT_NHWC }}", "model input NHWC/NCHW require 3 dims"),
    (f"{PYTHON} input {{ {TWO_DIMS} format: FORMAT_NCHW }}", "model input NHWC/NCHW require 3 dims"),
    (f"{PYTHON} input {{ {TWO_DIMS} is_shape_tensor: true }}", SHAPE_ONLY),
    (f"{PYTHON} output {{ {TWO_DIMS} is_shape_tensor: true }}", SHAPE_ONLY),
    (f"{PYTHON} input {{ {TWO_DIMS} is_non_linear_format_io: true }}", LINEAR_ONLY),
    (f"{PYTHON} output {{ {TWO_DIMS} is_non_linear_format_io: true }}", LINEAR_ONLY),
    (f"{TENSORRT} input {{ {TWO_DIMS} is_non_linear_format_io: true }}", "Non-linear IO format input requires 3 dims"),
    (
        f"{TENSORRT} output {{ {TWO_DIMS} is_non_linear_format_io: true }}",
        "Non-linear IO format output requires 3 dims",
    ),
    *(
        (
            f"{PYTHON} batch_input {{ kind: {kind} {BATCH_INPUT} source_input: {sources} }}",
            f"batch input kind '{kind}' expects 1 source input, got {count}",
        )
        for kind in ("BATCH_ELEMENT_COUNT", "BATCH_ITEM_SHAPE_FLATTEN")
        for sources, count in (("[ ]", 0), ('[ "IN", "IN" ]', 2))
    ),
    (
        f'{PYTHON} batch_input {{ target_name: "N" data_type: TYPE_FP16 source_input: "IN" }}',
        "batch input data type must be TYPE_INT32 or TYPE_FP32",
    ),
    (f'{PYTHON} batch_input {{ {BATCH_INPUT} source_input: "X" }}', "unknown source input name 'X'"),
    (f'{PYTHON} batch_input {{ kind: 77 {BATCH_INPUT} source_input: "IN" }}', "unknown batch input kind '77'"),
    (f'{PYTHON} batch_output {{ kind: 9 target_name: "OUT" source_input: "IN" }}', "unknown batch output kind '9'"),
    (
        f'{PYTHON} batch_output {{ target_name: "OUT" }}',
        "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0",
    ),
    (f'{PYTHON} batch_output {{ target_name: "X" source_input: "IN" }}', "unknown target output name 'X'"),
    (
        f'{PYTHON} batch_output {{ target_name: [ "OUT", "OUT" ] source_input: "IN" }}',
        "target output name 'OUT' can only be specified once",
    ),
    (f'{PYTHON} batch_output {{ target_name: "OUT" source_input: "X" }}', "unknown source input name 'X'"),
]


@pytest.mark.parametrize(("text", "reason"), OTHERS)
def test_other_tensor_settings_are_refused(load: Callable[[str], ModelConfig], text: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        load(text)
    assert str(caught.value) == f"{reason} for m"


@pytest.mark.parametrize(
    "tensor",
    [
        "dims: 1 reshape { }",
        "dims: [ 1, 1 ] reshape { }",
        "dims: [ 2, -1, 6 ] reshape { shape: [ 1, 2, -1, 3, 2 ] }",
        "dims: [ -1, -1 ] reshape { shape: [ -1, 1, -1 ] }",
        "dims: 9007199254740993",
    ],
)
def test_what_triton_accepts_is_accepted(load: Callable[[str], ModelConfig], tensor: str) -> None:
    config = load(f'backend: "python" max_batch_size: 4 input {{ name: "T" data_type: TYPE_UINT8 {tensor} }}')
    assert config.find_input("T") is not None


def test_duplicate_names_are_accepted_and_the_first_wins(load: Callable[[str], ModelConfig]) -> None:
    config = load(
        'backend: "python" input [ { name: "T" data_type: TYPE_FP32 dims: 1 }, { name: "T" dims: 2 data_type: 6 } ]'
    )
    found = config.find_input("T")
    assert found is not None
    assert found.dims == (1,)
