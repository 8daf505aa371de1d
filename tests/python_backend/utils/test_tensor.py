"""`Tensor` keeps arrays as they are, and says what it cannot take in Triton's words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trireme.python_backend.child.utils.errors import TritonModelException
from trireme.python_backend.child.utils.tensor import Tensor


def test_array_is_kept_and_not_copied() -> None:
    array = np.zeros((2, 3), np.float32)
    tensor = Tensor("a", array)
    assert tensor.as_numpy() is array
    assert (tensor.name(), tensor.shape(), tensor.is_cpu()) == ("a", [2, 3], True)


def test_other_orders_are_copied_to_c_order() -> None:
    array = np.arange(6.0).reshape(2, 3)
    tensor = Tensor("a", array.T)
    assert tensor.shape() == [3, 2]
    assert tensor.as_numpy().flags.c_contiguous
    np.testing.assert_array_equal(tensor.as_numpy(), array.T)


def test_scalar_keeps_its_empty_shape() -> None:
    assert Tensor("a", np.array(7, np.int8)).shape() == []


@pytest.mark.parametrize("elements", [["abc", b"x"], [b"\xff", b""]])
def test_bytes_and_text_stay_what_they_are(elements: list[Any]) -> None:
    assert Tensor("a", np.array(elements, object)).as_numpy().tolist() == elements


def test_fixed_width_bytes_are_taken() -> None:
    assert Tensor("a", np.array([b"ab", b"c"])).as_numpy().tolist() == [b"ab", b"c"]


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(1, np.complex64),
        np.array(["text"]),
        np.zeros(1, ">i4"),
        np.zeros(1, "datetime64[s]"),
        np.zeros(1, np.longdouble),
    ],
    ids=lambda array: array.dtype.str,
)
def test_types_that_triton_lacks_are_refused(array: np.ndarray) -> None:
    with pytest.raises(TritonModelException, match=r"^NumPy dtype is not supported\.$"):
        Tensor("a", array)


def test_name_must_not_be_empty() -> None:
    with pytest.raises(TritonModelException, match=r"^Tensor name cannot be an empty string\.$"):
        Tensor("", np.zeros(1))


@pytest.mark.parametrize(("name", "array"), [(5, np.zeros(1)), ("a", [1, 2])])
def test_other_objects_are_a_type_error(name: Any, array: Any) -> None:
    with pytest.raises(TypeError, match="must be a"):
        Tensor(name, array)


def test_element_type_is_not_told_to_python() -> None:
    with pytest.raises(TypeError):
        Tensor("a", np.zeros(1)).triton_dtype()


def test_bf16_has_no_numpy_form() -> None:
    tensor = Tensor._view("a", np.zeros(2, np.uint16), bf16=True)
    assert tensor._bf16
    with pytest.raises(TritonModelException, match="Tensor dtype is BF16 and cannot be converted to NumPy"):
        tensor.as_numpy()
