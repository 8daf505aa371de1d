"""Typed contents of a tensor, as they stand in a message, and what they become.

A client chooses how many elements there are, and an element may take two bytes of the message. So there is no object
for an element: numbers stay where they are in the message, or are put one behind the other; strings are put one behind
the other in the form in which they would have been sent raw. Packed numbers are read by numpy in pieces, so that what
is needed besides the result is small however many there are, and so that a thread that reads many lets others in
between.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from ...engine.datatypes import BOOL, DataType
from ...engine.tensor import Buffer
from .wire import FIXED32, FIXED64, VARINT, UnreadableError

_MAX_VARINT_BYTES = 10
_PIECE_BYTES = 1 << 16


def unpack_varints(data: Buffer, dtype: np.dtype) -> np.ndarray:
    """Numbers of 1 to 10 bytes each, 7 bits a byte, low bits first.

    Args:
        data: whole numbers, one behind the other.
        dtype: unsigned, of which higher bits are dropped; or bool, where any bit counts.

    Returns:
        A one-dimensional array of this dtype.

    Raises:
        UnreadableError: the last number is cut off, or one is too long.
    """
    octets = np.frombuffer(data, np.uint8)
    wide = np.dtype(np.uint64) if dtype.kind == "b" else dtype
    if len(octets) <= _PIECE_BYTES:
        return _unpack(octets, wide).astype(dtype, copy=False)
    values = np.empty(count_varints(data), dtype)
    at = done = 0
    while at < len(octets):
        end = _end_of_piece(octets, at)
        piece = _unpack(octets[at:end], wide)
        values[done : done + len(piece)] = piece
        at = end
        done += len(piece)
    return values


def count_varints(data: Buffer) -> int:
    """How many numbers there are in `data`, by their ends."""
    octets = np.frombuffer(data, np.uint8)
    count = 0
    for at in range(0, len(octets), _PIECE_BYTES):
        count += int(np.count_nonzero(octets[at : at + _PIECE_BYTES] < 0x80))
    return count


def _end_of_piece(octets: np.ndarray, at: int) -> int:
    """Where a piece that begins at `at` ends: behind a number."""
    end = min(at + _PIECE_BYTES, len(octets))
    if end == len(octets):
        return end
    ends = np.flatnonzero(octets[end - _MAX_VARINT_BYTES : end] < 0x80)
    if not len(ends):
        raise UnreadableError("a packed number is too long")
    return end - _MAX_VARINT_BYTES + int(ends[-1]) + 1


def _unpack(octets: np.ndarray, dtype: np.dtype) -> np.ndarray:
    last = np.flatnonzero(octets < 0x80)  # where numbers end: the high bit says that more follows
    if (last[-1] + 1 if len(last) else 0) != len(octets):
        raise UnreadableError("packed numbers are cut off")
    if len(last) == len(octets):
        return octets.astype(dtype)
    first = np.empty_like(last)
    first[0] = 0
    first[1:] = last[:-1] + 1
    extra = last - first
    longest = int(extra.max())
    if longest >= _MAX_VARINT_BYTES:
        raise UnreadableError("a packed number is too long")
    bits = octets & 0x7F
    values = bits[first].astype(dtype)
    for count in range(1, min(longest, (dtype.itemsize * 8 - 1) // 7) + 1):
        longer = np.flatnonzero(extra >= count)
        values[longer] |= bits[first[longer] + count].astype(dtype) << dtype.type(7 * count)
    return values


NUMBERS: Mapping[int, tuple[int, np.dtype]] = {
    1: (VARINT, np.dtype("<u8")),
    2: (VARINT, np.dtype("<u4")),
    3: (VARINT, np.dtype("<u8")),
    4: (VARINT, np.dtype("<u4")),
    5: (VARINT, np.dtype("<u8")),
    6: (FIXED32, np.dtype("<u4")),
    7: (FIXED64, np.dtype("<u8")),
}
"""The numeric fields of ``InferTensorContents``: how an element is delimited, and how wide it is. (Any of 64 bits makes
a bool true.)"""

BYTES_FIELD = 8
FIELDS: tuple[tuple[int, str, tuple[str, ...]], ...] = (
    (1, "BOOL", ("BOOL",)),
    (2, "INT32", ("INT8", "INT16", "INT32")),
    (3, "INT64", ("INT64",)),
    (4, "UINT32", ("UINT8", "UINT16", "UINT32")),
    (5, "UINT64", ("UINT64",)),
    (6, "FP32", ("FP32",)),
    (7, "FP64", ("FP64",)),
    (BYTES_FIELD, "BYTES", ("BYTES",)),
)
"""The fields of typed contents in the order in which Triton looks at them: number, its name for the field's type, and
the datatypes that the field may hold."""

_KINDS = {number: datatypes for number, _, datatypes in FIELDS}
_NARROW = np.dtype("u1")
_LENGTH = struct.Struct("<I")


class WireContents:
    """The contents of one tensor.

    Attributes:
        packed: what the message holds of each numeric field that has elements, by field number: a view on the message,
            or, if that holds it in several parts, the parts put together.
        elements: ``bytes_contents``, each with its length in front.
        element_count: how many those are.
    """

    __slots__ = ("element_count", "elements", "packed")

    def __init__(self) -> None:
        self.packed: dict[int, memoryview | bytearray] = {}
        self.elements = bytearray()
        self.element_count = 0

    def add_numbers(self, number: int, data: memoryview) -> None:
        known = self.packed.get(number)
        if known is None:
            self.packed[number] = data
        elif isinstance(known, bytearray):
            known += data
        else:
            self.packed[number] = bytearray(known) + data

    def add_element(self, data: memoryview) -> None:
        self.element_count += 1
        self.elements += _LENGTH.pack(len(data))
        self.elements += data

    def unpacked_bytes(self, datatype: DataType) -> int:
        """What unpacking will take that is not in the message. Takes time: looks at all numbers."""
        return sum(
            count_varints(data) * _dtype(number, datatype).itemsize
            for number, data in self.packed.items()
            if NUMBERS[number][0] == VARINT
        )

    def unpack(self, number: int, datatype: DataType) -> Buffer | None:
        """What a field holds, as it would be sent raw: views on the message where that has it so; None for nothing.
        Numbers that the datatype does not allow are unpacked in order to be checked, and not worth having.

        Raises:
            UnreadableError: a number is too long.
        """
        if number == BYTES_FIELD:
            return self.elements if self.element_count else None
        data = self.packed.get(number)
        if data is None or NUMBERS[number][0] != VARINT:
            return data
        return unpack_varints(data, _dtype(number, datatype)).view(np.uint8).data


def _dtype(number: int, datatype: DataType) -> np.dtype:
    """What the numbers of a field become: as few bytes as the datatype has, so that they need not be cut later."""
    if datatype.name not in _KINDS[number]:
        return _NARROW
    return np.dtype(bool) if datatype is BOOL else np.dtype(f"<u{datatype.size}")
