"""A request that is nothing but bytes means the model's only input
(docs/reference/http-inference.md#raw-binary-requests)."""

from __future__ import annotations

import pytest

from trireme.engine.config.model import ModelConfig, ModelInput
from trireme.engine.datatypes import BYTES, FP32, INT32, DataType
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor
from trireme.engine.validation import RequestValidator

UNDEDUCIBLE = (
    "The shape of the raw input 'A' can not be deduced because there are more than one variable-sized dimension"
)
R = "[request id: <id_unknown>] "


def _check(
    data: bytes, max_batch_size: int, *dims: tuple[int, ...], datatype: DataType = FP32, **more: object
) -> Tensor:
    inputs = tuple(ModelInput(name, datatype, each, **more) for name, each in zip("AB", dims, strict=False))  # pyright: ignore[reportArgumentType]
    config = ModelConfig("m", max_batch_size=max_batch_size, input=inputs)
    checked, rows = RequestValidator(config).check(InferenceRequest("m", raw_input=data))
    assert rows == 1
    [(name, tensor)] = checked.items()
    assert name == tensor.name == "A"
    return tensor


@pytest.mark.parametrize(
    ("max_batch_size", "dims", "size", "shape"),
    [
        (0, (4,), 16, (4,)),
        (8, (4,), 16, (1, 4)),
        (0, (2, -1), 24, (2, 3)),
        (8, (-1,), 8, (1, 2)),
        (8, (-1,), 0, (1, 0)),
    ],
)
def test_the_shape_comes_from_the_configuration(
    max_batch_size: int, dims: tuple[int, ...], size: int, shape: tuple[int, ...]
) -> None:
    tensor = _check(bytes(size), max_batch_size, dims)
    assert tensor.shape == shape
    assert bytes(tensor.buffer) == bytes(size)


def test_reshape_applies() -> None:
    assert _check(bytes(4), 8, (1,), reshape=()).shape == (1,)


def test_a_string_gets_its_length() -> None:
    assert _check(b"hello", 8, (1,), datatype=BYTES).array.tolist() == [[b"hello"]]
    assert _check(b"", 0, (1, 1), datatype=BYTES).array.tolist() == [[b""]]


@pytest.mark.parametrize(
    ("max_batch_size", "dims", "datatype", "size", "text"),
    [
        (
            8,
            [(-1, -1), (4,)],
            FP32,
            16,
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' model configuration",
        ),
        (
            0,
            [],
            FP32,
            1,
            "Raw request must only have 1 input (found 1) to be deduced but got 0 inputs in 'm' model configuration",
        ),
        (
            0,
            [(-1, -1)],
            FP32,
            16,
            UNDEDUCIBLE,
        ),
        (0, [(2,)], BYTES, 5, "For BYTE datatype raw input 'A', the model must have input shape [1]"),
        (0, [(-1,)], BYTES, 5, "For BYTE datatype raw input 'A', the model must have input shape [1]"),
        (0, [(4,)], FP32, 0, "input byte size mismatch for input 'raw_input' for model 'm'. Expected 16, got 0"),
        (8, [(4,)], INT32, 15, "input byte size mismatch for input 'raw_input' for model 'm'. Expected 16, got 15"),
        (0, [(2, -1)], FP32, 23, "input byte size mismatch for input 'raw_input' for model 'm'. Expected 16, got 23"),
        (0, [(2, -1)], FP32, 7, "input byte size mismatch for input 'raw_input' for model 'm'. Expected 0, got 7"),
    ],
)
def test_what_cannot_be_deduced_is_refused(
    max_batch_size: int, dims: list[tuple[int, ...]], datatype: DataType, size: int, text: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        _check(bytes(size), max_batch_size, *dims, datatype=datatype)
    assert caught.value.message == f"{R}{text}"
