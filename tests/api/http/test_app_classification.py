"""The classification extension (docs/reference/http-inference.md#classification)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from http_fakes import HttpClient
from hypothesis import given
from hypothesis import strategies as st

from trireme.api.classification import classify
from trireme.engine.datatypes import BF16, BOOL, BY_NAME, BYTES, FP16, FP32, FP64, INT8, INT64, UINT64, DataType
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.tensor import Tensor

LABELS = ("zero", "one", "", "three")


def top(
    values: Any, count: int, datatype: DataType = FP32, *, batched: bool = False
) -> tuple[tuple[int, ...], list[str]]:
    """Shape and strings of the classes of a tensor with these values."""
    array = np.array(values, dtype=datatype.storage)
    classes = classify(Tensor("OUT", datatype, array.shape, array=array), count, LABELS, batched)
    assert (classes.name, classes.datatype) == ("OUT", BYTES)
    assert classes.array.shape == classes.shape
    return classes.shape, [text.decode() for text in classes.array.ravel()]


def test_values_fall_and_labels_follow_where_there_are_any() -> None:
    assert top([1, 3, 2, 0, 4], 4) == ((4,), ["4.000000:4", "3.000000:1:one", "2.000000:2", "1.000000:0:zero"])


def test_more_classes_than_values() -> None:
    assert top([1, 2], 5) == ((2,), ["2.000000:1:one", "1.000000:0:zero"])


def test_batched_rows_are_ranked_each_on_its_own() -> None:
    """The batch dimension stays; all others are flattened."""
    values = [[[1, 2], [3, 0]], [[6, 5], [4, 7]]]
    shape, texts = top(values, 2, batched=True)
    assert (shape, texts) == ((2, 2), ["3.000000:2", "2.000000:1:one", "7.000000:3:three", "6.000000:0:zero"])
    assert top(values, 1) == ((1,), ["7.000000:7"])


def test_equal_values_keep_their_order() -> None:
    assert [text.split(":")[1] for text in top([1, 1, 1, 2, 1, 1], 6)[1]] == ["3", "0", "1", "2", "4", "5"]


@pytest.mark.parametrize(
    ("datatype", "values", "expected"),
    [
        (FP64, [3.5, 1e20, -0.0], ["100000000000000000000.000000:1:one", "3.500000:0:zero", "-0.000000:2"]),
        (FP32, [1e30, 1e-9, 0.1], ["1000000015047466219876688855040.000000:0:zero", "0.100000:2", "0.000000:1:one"]),
        (INT8, [1, -1, 3], ["3:2", "1:0:zero", "-1:1:one"]),
        (INT64, [1, 2**62, -(2**63)], ["4611686018427387904:1:one", "1:0:zero", "-9223372036854775808:2"]),
        (UINT64, [1, 2**64 - 1, 0], ["18446744073709551615:1:one", "1:0:zero", "0:2"]),
        (FP32, [-np.inf, np.inf, 0], ["inf:1:one", "0.000000:2", "-inf:0:zero"]),
    ],
)
def test_values_are_printed_as_c_does(datatype: DataType, values: list[Any], expected: list[str]) -> None:
    assert top(values, 3, datatype)[1] == expected


@pytest.mark.parametrize("datatype", [BOOL, FP16, BF16, BYTES])
def test_types_without_an_order(datatype: DataType) -> None:
    tensor = Tensor("OUT", datatype, (1,), array=np.zeros(1, dtype=datatype.storage))
    with pytest.raises(InvalidArgumentError) as caught:
        classify(tensor, 1, (), batched=False)
    assert caught.value.message == (f"class result not available for output due to unsupported type '{datatype.name}'")


def test_rows_are_bounded() -> None:
    tensor = Tensor("OUT", INT8, (1_000_001,), array=np.zeros(1_000_001, dtype=np.int8))
    with pytest.raises(InvalidArgumentError, match="classification output tensor too large"):
        classify(tensor, 1, (), batched=False)
    tensor = Tensor("OUT", INT8, (3, 400_000), array=np.zeros((3, 400_000), dtype=np.int8))
    assert classify(tensor, 1, (), batched=True).shape == (3, 1)


@pytest.mark.parametrize(
    ("shape", "batched", "expected"), [((0,), False, (0,)), ((2, 0), True, (2, 0)), ((0, 3), True, (0, 2))]
)
def test_nothing_to_rank(shape: tuple[int, ...], batched: bool, expected: tuple[int, ...]) -> None:
    tensor = Tensor("OUT", FP32, shape, array=np.zeros(shape, dtype=np.float32))
    classes = classify(tensor, 2, LABELS, batched)
    assert (classes.shape, classes.nbytes) == (expected, 0)


@given(
    st.sampled_from(["UINT8", "INT16", "INT32", "UINT64", "FP32"]),
    st.lists(st.integers(0, 255), min_size=1, max_size=30),
    st.integers(1, 40),
)
def test_classes_are_the_greatest_values(name: str, values: list[int], count: int) -> None:
    values = [value % 128 for value in values]
    shape, texts = top(values, count, BY_NAME[name])
    expected = sorted(values, reverse=True)[:count]
    assert shape == (len(expected),)
    assert [float(text.split(":")[0]) for text in texts] == expected
    assert all(values[int(text.split(":")[1])] == float(text.split(":")[0]) for text in texts)


async def test_classes_in_an_answer(client: HttpClient) -> None:
    inputs = [{"name": "IN", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 6, 5, 4]}]
    outputs = [{"name": "OUT", "parameters": {"classification": 2}}]
    reply = await client.infer({"inputs": inputs, "outputs": outputs}, model="batching")
    assert reply.json["outputs"] == [
        {
            "name": "OUT",
            "datatype": "BYTES",
            "shape": [2, 2],
            "data": ["3.000000:2", "2.000000:1:one", "6.000000:0:zero", "5.000000:1:one"],
        }
    ]
    reply = await client.infer({"inputs": inputs, "outputs": outputs})
    assert (reply.json["outputs"][0]["shape"], reply.json["outputs"][0]["data"][0]) == ([2], "6.000000:3:three")


async def test_classes_in_binary_form(client: HttpClient) -> None:
    inputs = [{"name": "IN", "shape": [2], "datatype": "FP32", "data": [1, 2]}]
    outputs = [{"name": "OUT", "parameters": {"classification": 1, "binary_data": True}}]
    reply = await client.infer({"inputs": inputs, "outputs": outputs})
    assert reply.head["outputs"][0]["parameters"] == {"binary_data_size": 18}
    assert reply.blobs == b"\x0e\0\0\0002.000000:1:one"


@pytest.mark.parametrize("count", [0, 2**32, 2**63])
async def test_no_classes_asked_for(client: HttpClient, count: int) -> None:
    """Triton keeps 32 bits of the count."""
    inputs = [{"name": "IN", "shape": [2], "datatype": "FP32", "data": [1, 2]}]
    outputs = [{"name": "OUT", "parameters": {"classification": count}}]
    reply = await client.infer({"inputs": inputs, "outputs": outputs})
    assert reply.json["outputs"][0]["datatype"] == "FP32"


async def test_failure_is_plain_text(client: HttpClient) -> None:
    inputs = [{"name": "IN", "shape": [1], "datatype": "BYTES", "data": ["a"]}]
    outputs = [{"name": "OUT", "parameters": {"classification": 1}}]
    reply = await client.infer({"inputs": inputs, "outputs": outputs}, model="strings")
    assert (reply.status, reply.media) == (400, "text/plain")
    assert reply.error == "class result not available for output due to unsupported type 'BYTES'"
