"""Tensors come out of JSON as Triton reads them, and what it refuses is refused in its words
(docs/reference/http-inference.md#tensors-in-json)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.http.json.tensor import tensor_from_json
from trireme.engine import datatypes
from trireme.engine.datatypes import BOOL, BYTES, FP32, FP64, INT8, INT16, INT64, UINT8, UINT64, DataType
from trireme.engine.errors import InternalError, InvalidArgumentError, TriremeError
from trireme.engine.tensor import iter_bytes

MANY = "Unable to parse 'data': Shape does not match true shape of 'data' field"
FEW = "Failed to parse 'data' field: shape does not match true shape"
NOT_DOUBLE = "Unable to parse 'data': attempt to access JSON non-number as double"
NOT_UNSIGNED = "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer"
NOT_SIGNED = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
NOT_BOOL = "Unable to parse 'data': attempt to access JSON non-boolean as boolean"
NOT_STRING = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
NOT_ARRAY = "Unable to parse 'data': attempt to access JSON non-array as array"


def _nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "text"),
    [
        (FP32, (2,), 5, NOT_ARRAY),
        (datatypes.FP16, (2,), 5, NOT_ARRAY),
        (datatypes.INVALID, (2,), None, NOT_ARRAY),
        (BYTES, (2,), "ab", NOT_ARRAY),
        (FP32, (2,), [1, 2, "x"], MANY),
        (FP32, (2,), [1, "x", 3], NOT_DOUBLE),
        (FP32, (1,), [[1], ["x"]], MANY),
        (FP32, (2,), [1, [], [3, [4]]], MANY),
        (FP32, (2,), [1], FEW),
        (FP32, (2,), [[], []], FEW),
        (FP32, (2,), [1, None], NOT_DOUBLE),
        (FP32, (2,), [1, {}], NOT_DOUBLE),
        (FP64, (2,), [1.5, True], NOT_DOUBLE),
        (BOOL, (1,), [0], NOT_BOOL),
        (UINT8, (1,), [-1], NOT_UNSIGNED),
        (UINT64, (2,), [2**64 - 1, -1], NOT_UNSIGNED),
        (UINT8, (1,), [1e20], NOT_UNSIGNED),
        (UINT8, (1,), [1.0], NOT_UNSIGNED),
        (UINT8, (1,), [True], NOT_UNSIGNED),
        (INT8, (1,), [2**64 - 1], NOT_SIGNED),
        (INT64, (1,), [2**63], NOT_SIGNED),
        (INT8, (1,), ["1"], NOT_SIGNED),
        (BYTES, (1,), [5], NOT_STRING),
        (BYTES, (2,), ["a", [None]], NOT_STRING),
    ],
)
def test_wrong_data_is_an_internal_error(datatype: DataType, shape: tuple[int, ...], data: Any, text: str) -> None:
    with pytest.raises(InternalError) as caught:
        tensor_from_json("IN", datatype, shape, data)
    assert caught.value.message == text


TOO_MANY = (
    "invalid shape for input 'IN': shape [4294967296,2147483648] causes total element count to exceed maximum size of "
    "9223372036854775807"
)
TOO_LARGE = (
    "byte size overflow for input 'IN': element count (1152921504606846976) * data type size (8) exceeds maximum "
    "allowed size (9223372036854775807)"
)
TOO_DEEP = "JSON nesting depth exceeds maximum allowed limit (100)"


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "text"),
    [
        (
            datatypes.FP16,
            (1,),
            [1],
            "receiving FP16 data via JSON is not supported. Please use the binary data format for input IN",
        ),
        (
            datatypes.BF16,
            (1,),
            [1],
            "receiving BF16 data via JSON is not supported. Please use the binary data format for input IN",
        ),
        (datatypes.INVALID, (1,), [1], "invalid datatype for input IN"),
        (FP32, (1,), _nested(1, 100), f"Unable to parse 'data': {TOO_DEEP}"),
        (FP32, (2,), [1, _nested(1, 99)], f"Unable to parse 'data': {TOO_DEEP}"),
        (BYTES, (1,), _nested("a", 100), TOO_DEEP),
        (
            FP32,
            (1, 2**64 - 1),
            [1],
            "invalid shape for input 'IN': shape [1,-1] contains one or more invalid dimensions",
        ),
        (INT8, (2**32, 2**31), [1], TOO_MANY),
        (FP64, (2**60,), None, TOO_LARGE),
    ],
)
def test_what_json_cannot_carry_is_an_invalid_argument(
    datatype: DataType, shape: tuple[int, ...], data: Any, text: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        tensor_from_json("IN", datatype, shape, data)
    assert caught.value.message == text


def test_99_levels_are_read() -> None:
    assert tensor_from_json("IN", FP32, (1,), _nested(7, 99)).array.tolist() == [7.0]
    assert tensor_from_json("IN", BYTES, (1,), _nested("a", 99)).array.tolist() == [b"a"]
    with pytest.raises(InternalError, match=r"^Failed to parse"):  # nothing stands at level 100
        tensor_from_json("IN", FP32, (1,), _nested([], 99))


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), ()])
@pytest.mark.parametrize("datatype", [FP32, BYTES, datatypes.FP16, datatypes.INVALID])
def test_data_of_an_empty_tensor_is_not_looked_at(shape: tuple[int, ...], datatype: DataType) -> None:
    tensor = tensor_from_json("IN", datatype, shape, "nonsense")
    assert (tensor.shape, tensor.nbytes) == (shape, 0)


@pytest.mark.parametrize(
    ("datatype", "data", "values"),
    [
        (UINT8, [256, 2**64 - 1], [0, 255]),
        (INT8, [200, -129], [-56, 127]),
        (INT16, [40000, 1 << 40], [-25536, 0]),
        (INT64, [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
        (UINT64, [2**64 - 1, 0], [2**64 - 1, 0]),
        (FP32, [1e300, -1e-300], [math.inf, -0.0]),
        (FP64, [2**64 - 1, -(2**63)], [1.8446744073709552e19, -9.223372036854775808e18]),
        (FP32, [[1], [0.5, []]], [1.0, 0.5]),
        (BOOL, [[True], [False]], [True, False]),
    ],
)
def test_numbers_wrap_or_widen_as_in_c(datatype: DataType, data: Any, values: list[Any]) -> None:
    tensor = tensor_from_json("IN", datatype, (2,), data)
    assert tensor.array.tolist() == values
    assert tensor.array.dtype == datatype.storage


def test_a_wrong_number_of_strings_is_left_to_validation() -> None:
    tensor = tensor_from_json("IN", BYTES, (1,), [["a", ["b"]]])
    assert list(iter_bytes(tensor.buffer)) == [b"a", b"b"]
    assert tensor.shape == (1,)


def test_strings_keep_their_bytes() -> None:
    tensor = tensor_from_json("IN", BYTES, (2, 1), [["é\0"], ["\udcff"]])
    assert tensor.array.tolist() == [["é\0".encode()], [b"\xff"]]


def test_a_shape_of_very_many_dimensions_is_refused_at_once() -> None:
    with pytest.raises(InvalidArgumentError, match="causes total element count"):
        tensor_from_json("IN", FP32, (2**62,) * 400_000, [1])


_NUMERIC = [datatype for datatype in datatypes.DATATYPES if datatype.name[:3] in ("UIN", "INT", "FP3", "FP6", "BOO")]


def _elements(datatype: DataType) -> st.SearchStrategy[Any]:
    if datatype is BOOL:
        return st.booleans()
    if datatype.storage.kind == "u":
        return st.integers(0, 2**64 - 1)
    if datatype.storage.kind == "i":
        return st.integers(-(2**63), 2**63 - 1)
    return st.floats(width=64) | st.integers(-(2**63), 2**64 - 1)


@settings(deadline=None)
@given(st.data())
def test_any_nesting_gives_what_numpy_makes_of_the_flat_list(data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(_NUMERIC))
    shape = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    count = math.prod(shape)
    flat = data.draw(st.lists(_elements(datatype), min_size=count, max_size=count))
    nested: Any = list(flat)
    for _ in range(data.draw(st.integers(0, 3))):
        if nested:
            start = data.draw(st.integers(0, len(nested) - 1))
            stop = data.draw(st.integers(start, len(nested)))
            nested[start:stop] = [nested[start:stop]]
    if data.draw(st.booleans()):
        nested = np.array(flat, dtype=object).reshape(shape).tolist()
    bits = 8 * datatype.size
    if datatype.storage.kind == "f":
        with np.errstate(over="ignore"):
            expected = np.array([float(value) for value in flat]).astype(datatype.storage)
    elif datatype is BOOL:
        expected = np.array(flat)
    else:
        wrapped = [value % 2**bits for value in flat]
        expected = np.array(wrapped, dtype=f"u{datatype.size}").view(datatype.storage)
    tensor = tensor_from_json("IN", datatype, shape, nested)
    np.testing.assert_array_equal(tensor.array, expected.reshape(shape))


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=2)
    | st.dictionaries(st.text(), st.none()),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.sampled_from([*datatypes.DATATYPES, datatypes.INVALID]), st.lists(st.integers(0, 2**64 - 1)), _JSON)
def test_any_value_is_a_tensor_or_a_clear_error(datatype: DataType, shape: list[int], data: Any) -> None:
    for dims in (tuple(shape), (1,), (2,)):
        try:
            tensor = tensor_from_json("IN", datatype, dims, data)
        except TriremeError:
            continue
        assert tensor.shape == dims
