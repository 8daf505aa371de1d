"""What writing a large answer takes: with its tensors, at most four times the text, or the tensors."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.api.http.infer.request import AS_JSON, DecodedInfer
from trireme.api.http.infer.response import encode_infer
from trireme.api.http.json import writer as json_writer
from trireme.engine.datatypes import BOOL, BYTES, FP32, INT8, INT64, DataType
from trireme.engine.errors import InternalError
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.tensor import Tensor, pack_bytes

MIB = 1 << 20


def packed(element: bytes, count: int) -> Tensor:
    return Tensor("OUT", BYTES, (count,), pack_bytes([element]) * count)


def numbers(datatype: DataType, count: int) -> Tensor:
    return Tensor("OUT", datatype, (count,), np.arange(count).astype(datatype.storage).tobytes())


OUTPUTS = {
    "empty strings": packed(b"", 300_000),
    "letters": packed(b"a", 300_000),
    "words": packed(b"abcdefgh", 200_000),
    "strings to be escaped": packed(b"\0\n", 200_000),
    "long strings": packed(b"x" * 100_000, 40),
    "one string": packed(b"x" * (4 * MIB), 1),
    "floats": numbers(FP32, 500_000),
    "bools": numbers(BOOL, MIB),
    "bytes": numbers(INT8, MIB),
    "longs": numbers(INT64, 500_000),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_writing_takes_no_more_than_four_times_what_is_written(kind: str) -> None:
    output = OUTPUTS[kind]
    response = InferenceResponse("m", 1, "", [output])
    decoded = DecodedInfer(InferenceRequest("m"), {}, AS_JSON)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        answer = encode_infer(response, decoded)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    text = len(answer.body) + len(answer.tail or b"")
    assert peak + output.nbytes <= 4 * max(text, output.nbytes)


@given(st.lists(st.binary(max_size=9), max_size=12), st.integers(1, 8), st.integers(1, 4))
def test_packed_strings_are_written_as_others_are(elements: list[bytes], nbytes: int, count: int) -> None:
    array = np.empty(len(elements), object)
    array[:] = elements
    expected = json_writer.tensor_data(Tensor("OUT", BYTES, (len(elements),), array=array))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_writer, "_PIECE_BYTES", nbytes)
        patch.setattr(json_writer, "_PIECE_ELEMENTS", count)
        given = Tensor("OUT", BYTES, (len(elements),), pack_bytes(elements))
        assert json_writer.tensor_data(given) == expected


@pytest.mark.parametrize("buffer", [b"", pack_bytes([b"a"]), pack_bytes([b"a", b"b", b"c"]), b"\5\0\0\0abc"])
def test_packed_strings_must_be_as_many_as_the_shape_says(buffer: bytes) -> None:
    with pytest.raises(InternalError, match="output tensor shape does not match size of output for 'OUT'"):
        json_writer.tensor_data(Tensor("OUT", BYTES, (2,), buffer))


def test_packing_many_strings_takes_few_objects() -> None:
    elements = [b"ab"] * 300_000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        result = pack_bytes(elements)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert result == b"\2\0\0\0ab" * 300_000
    assert peak <= 3 * len(result)
