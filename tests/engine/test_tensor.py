"""A tensor shows the same elements as bytes and as an array, and copies only where it must."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.engine.datatypes import BF16, BYTES, DATATYPES, FP32, INT16, DataType
from trireme.engine.tensor import (
    Buffer,
    IncompleteLengthError,
    PackedElements,
    Tensor,
    iter_bytes,
    iter_spans,
    joined,
    memory_for,
    pack_bytes,
)

_SIZED = [datatype for datatype in DATATYPES if datatype.size]
_SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@settings(deadline=None)
@given(st.sampled_from(_SIZED), _SHAPES, st.randoms(use_true_random=False))
def test_bytes_become_an_array_and_back(datatype: DataType, shape: tuple[int, ...], random) -> None:
    raw = random.randbytes(math.prod(shape) * datatype.size)
    tensor = Tensor("T", datatype, shape, raw)
    array = tensor.array
    assert (array.shape, array.dtype) == (shape, datatype.storage)
    again = Tensor("T", datatype, shape, array=array)
    assert bytes(again.buffer) == raw
    assert again.nbytes == tensor.nbytes == len(raw)
    assert tensor.element_count == math.prod(shape)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=6), max_size=6))
def test_strings_become_an_array_and_back(elements: list[bytes]) -> None:
    packed = pack_bytes(elements)
    assert packed == b"".join(struct.pack("<I", len(element)) + element for element in elements)
    assert list(iter_bytes(packed)) == elements
    assert [packed[start:end] for start, end in iter_spans(packed)] == elements
    tensor = Tensor("T", BYTES, (len(elements), 1), packed)
    assert tensor.array.tolist() == [[element] for element in elements]
    again = Tensor("T", BYTES, tensor.shape, array=tensor.array)
    assert again.nbytes == len(packed)
    assert bytes(again.buffer) == packed


def test_a_received_buffer_is_viewed_not_copied() -> None:
    received = bytearray(struct.pack("<4f", 1, 2, 3, 4))
    tensor = Tensor("T", FP32, (2, 2), memoryview(received))
    assert tensor.array.tolist() == [[1, 2], [3, 4]]
    received[:4] = struct.pack("<f", 9)
    assert tensor.array[0, 0] == 9
    assert not Tensor("T", FP32, (1,), bytes(4)).array.flags.writeable


def test_a_contiguous_array_is_viewed_not_copied() -> None:
    array = np.zeros((2, 2), dtype=np.float32)
    buffer = Tensor("T", FP32, (2, 2), array=array).buffer
    array[0, 0] = 1
    assert bytes(buffer[:4]) == struct.pack("<f", 1)


def test_an_array_in_any_memory_order_becomes_row_major() -> None:
    array = np.arange(12, dtype=np.int16).reshape(3, 4).T[::2]
    tensor = Tensor("T", INT16, (2, 3), array=array)
    assert np.frombuffer(tensor.buffer, "<i2").tolist() == array.ravel().tolist()
    assert len(tensor.buffer) == tensor.nbytes == 12
    assert bytes(Tensor("T", INT16, (2,), array=np.arange(4, dtype=np.int16)[::2]).buffer) == b"\0\0\2\0"


def test_a_conversion_is_done_once() -> None:
    tensor = Tensor("T", BYTES, (1,), pack_bytes([b"a"]))
    assert not tensor.has_array
    assert tensor.array is tensor.array
    assert tensor.has_array
    other = Tensor("T", BYTES, (1,), array=tensor.array)
    assert other.buffer is other.buffer


def test_bf16_is_carried_as_16_bit_patterns() -> None:
    assert Tensor("T", BF16, (1,), b"\x80\x3f").array.tolist() == [0x3F80]


@pytest.mark.parametrize("datatype", [FP32, BYTES])
def test_reshaped_shares_the_data(datatype: DataType) -> None:
    array = np.array([b"a"] * 6, dtype=object) if datatype is BYTES else np.arange(6, dtype=np.float32)
    tensor = Tensor("T", datatype, (6,), array=array)
    other = tensor.reshaped((2, 3))
    assert (other.name, other.shape, other.array.shape) == ("T", (2, 3), (2, 3))
    assert np.shares_memory(other.array, array)
    assert tensor.shape == (6,)
    received = Tensor("T", datatype, (6,), tensor.buffer)
    assert received.reshaped((3, 2)).buffer is received.buffer
    assert received.reshaped((3, 2)).array.shape == (3, 2)


@pytest.mark.parametrize(
    ("buffer", "available", "needed"),
    [
        (b"\1", 1, None),
        (b"\1\0\0\0a\0\0\0", 3, None),
        (b"\5\0\0\0ab", 2, 5),
        (b"\xff\xff\xff\xff", 0, 0xFFFFFFFF),
    ],
)
def test_a_buffer_that_ends_within_a_string_says_what_is_missing(
    buffer: bytes, available: int, needed: int | None
) -> None:
    with pytest.raises(IncompleteLengthError) as caught:
        list(iter_bytes(buffer))
    assert (caught.value.available, caught.value.needed) == (available, needed)
    with pytest.raises(IncompleteLengthError):
        _ = Tensor("T", BYTES, (1,), buffer).array


def test_a_buffer_that_does_not_fit_the_shape_has_no_array() -> None:
    with pytest.raises(ValueError, match="reshape"):
        _ = Tensor("T", FP32, (3,), bytes(16)).array
    with pytest.raises(ValueError, match="buffer size"):
        _ = Tensor("T", FP32, (1,), bytes(3)).array
    with pytest.raises(ValueError, match="reshape"):
        _ = Tensor("T", BYTES, (3,), pack_bytes([b"a"])).array


def test_repr_names_type_and_shape() -> None:
    assert repr(Tensor("T", FP32, (1, 16), b"")) == "<Tensor T FP32[1, 16]>"


@given(st.lists(st.lists(st.binary(max_size=9), max_size=5), max_size=5))
def test_elements_packed_bit_by_bit_are_packed_elements(elements: list[list[bytes]]) -> None:
    """Those of an inner list together; and the inner lists as elements in pieces."""
    flat = [each for inner in elements for each in inner]
    packed = PackedElements(len(pack_bytes(flat)))
    for inner in elements:
        packed.add(inner)
    assert bytes(packed.view) == pack_bytes(flat)
    whole = [b"".join(inner) for inner in elements]
    packed = PackedElements(len(pack_bytes(whole)) + 10)
    for inner in elements:
        packed.add_in_pieces(inner)
    assert bytes(packed.view) == pack_bytes(whole)


def test_there_is_no_room_for_more_than_was_said() -> None:
    packed = PackedElements(8)
    with pytest.raises(ValueError, match="broadcast"):
        packed.add([b"five5"])


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_pieces_of_any_kind_are_joined(given_pieces: list[bytes]) -> None:
    pieces: list[Buffer] = [memoryview(each) if number % 2 else each for number, each in enumerate(given_pieces)]
    pieces.append(np.arange(3, dtype=np.int32).data)
    assert bytes(joined(pieces)) == b"".join(given_pieces) + np.arange(3, dtype=np.int32).tobytes()
    assert pieces == []


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 4_194_381])
def test_memory_for_a_message_ends_where_tensors_may(nbytes: int) -> None:
    """So the tensor at its end is used where it is, whatever stands before it."""
    memory = memory_for(nbytes)
    assert len(memory) == nbytes
    assert not memory.readonly
    if nbytes:
        assert not (np.frombuffer(memory, np.uint8).ctypes.data + nbytes) % 64
    if nbytes > 64:
        tensor = Tensor("X", FP32, (8,), memory[-32:])
        assert tensor.array.flags.aligned
