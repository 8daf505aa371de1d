"""Responses as bytes, and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.cache import pack_outputs, unpack_outputs
from trireme.engine.datatypes import BYTES, DATATYPES, FP32
from trireme.engine.tensor import Tensor, pack_bytes

TENSORS = st.tuples(st.text(), st.sampled_from(DATATYPES), st.lists(st.integers(0, 4), max_size=4)).map(
    lambda drawn: Tensor(drawn[0], drawn[1], tuple(drawn[2]), bytes(math.prod(drawn[2]) * (drawn[1].size or 4)))
)


@given(st.lists(TENSORS))
def test_what_was_put_in_comes_out(tensors: list[Tensor]) -> None:
    found = unpack_outputs(pack_outputs(tensors))
    assert [(each.name, each.datatype, each.shape, bytes(each.buffer)) for each in found] == [
        (each.name, each.datatype, each.shape, bytes(each.buffer)) for each in tensors
    ]


def test_arrays_and_strings_come_out_as_they_were() -> None:
    texts = np.array([[b"one", b""], [b"three", b"\x00\xff"]], object)
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2]
    found = unpack_outputs(
        pack_outputs([Tensor("T", BYTES, (2, 2), array=texts), Tensor("F", FP32, (2, 2), array=numbers)])
    )
    assert found[0].array.tolist() == texts.tolist()
    assert found[1].array.tolist() == numbers.tolist()


@given(st.binary(max_size=60), st.integers(0, 200))
def test_anything_else_is_refused_with_a_value_error(data: bytes, cut: int) -> None:
    """Whatever another program has put there, and whatever is left of an entry."""
    entry = pack_outputs([Tensor("T", BYTES, (1,), pack_bytes([b"abc"])), Tensor("F", FP32, (1,), b"1234")])
    for broken in (data, b"TRC1" + data, b"TRC1\x02\x00\x00\x00[]" + data + b"!", entry[: min(cut, len(entry) - 1)]):
        with pytest.raises(ValueError, match=r".+"):
            unpack_outputs(broken)


@pytest.mark.parametrize("shape", [(3,), (-1,), (2, -1, -1), (2**40,)])
def test_a_shape_that_its_bytes_cannot_have_is_refused(shape: tuple[int, ...]) -> None:
    """A later reader could not decode it."""
    entry = pack_outputs([Tensor("F", FP32, shape, b"12345678")])
    with pytest.raises(ValueError, match="8 bytes are no"):
        unpack_outputs(entry)
