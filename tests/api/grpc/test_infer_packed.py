"""Packed numbers are what protobuf packs, at every width, however many there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from infer_wire_strategies import uint64s, varint

from trireme.api.grpc.infer_messages import unpack_varints
from trireme.api.grpc.wire import UnreadableError


@settings(deadline=None)
@given(st.lists(st.tuples(uint64s | st.integers(0, 300), st.integers(1, 10))), st.sampled_from(["<u4", "<u8"]))
def test_numbers_come_back(numbers: list[tuple[int, int]], dtype: str) -> None:
    """Also spelt in more bytes than needed; of too wide a number the low bits are kept."""
    data = b"".join(varint(number, octets) for number, octets in numbers)
    bits = 8 * np.dtype(dtype).itemsize
    unpacked = unpack_varints(data, np.dtype(dtype))
    assert unpacked.dtype == dtype
    assert unpacked.tolist() == [number % 2**bits for number, _ in numbers]


def test_bits_beyond_64_are_dropped() -> None:
    assert unpack_varints(b"\xff" * 9 + b"\x7f", np.dtype("<u8")).tolist() == [2**64 - 1]


@pytest.mark.parametrize("data", [b"\x80", b"\x01\x80", b"\xff" * 3, b"\xff" * 10 + b"\x01", b"\x01" + b"\x80" * 11])
def test_what_is_cut_off_or_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableError):
        unpack_varints(data, np.dtype("<u8"))


def test_many_numbers_of_all_lengths() -> None:
    """Numbers of all lengths, mixed."""
    shifts = np.arange(20_000, dtype=np.uint64) % 64
    expected = np.random.default_rng(3).integers(0, 2**64, len(shifts), dtype=np.uint64) >> shifts
    data = b"".join(map(varint, expected.tolist()))
    assert np.array_equal(unpack_varints(data, np.dtype("<u8")), expected)
