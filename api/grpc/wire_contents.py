"""Typed contents of a tensor, as they stand in a message, and what they become.

A client chooses how many elements there are, and an element may take two bytes of the message. So there is no object
for an element: numbers stay where they are in the message, or are put one behind the other; strings are put one behind
the other in the form in which they would have been sent raw.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from ...engine.datatypes import (
    BOOL,
    BYTES,
    FP32,
    FP64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DataType,
)
from .packed import count_varints, unpack_varints
from .wire import FIXED32, FIXED64, VARINT

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

FIELDS: tuple[tuple[int, str, tuple[DataType, ...]], ...] = (
    (1, "BOOL", (BOOL,)),
    (2, "INT32", (INT8, INT16, INT32)),
    (3, "INT64", (INT64,)),
    (4, "UINT32", (UINT8, UINT16, UINT32)),
    (5, "UINT64", (UINT64,)),
    (6, "FP32", (FP32,)),
    (7, "FP64", (FP64,)),
    (8, "BYTES", (BYTES,)),
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
        numbers: the same unpacked: one-dimensional, as wide as the tensor's datatype, unsigned or bools. What its
            datatype does not allow is unpacked in order to be checked, and not worth having.
        elements: ``bytes_contents``, each with its length in front.
        element_count: how many those are.
    """

    __slots__ = ("element_count", "elements", "numbers", "packed")

    def __init__(self) -> None:
        self.packed: dict[int, memoryview | bytearray] = {}
        self.numbers: dict[int, np.ndarray] = {}
        self.elements = bytearray()
        self.element_count = 0

    def __repr__(self) -> str:
        return f"<WireContents: fields {sorted(self.packed)}, {self.element_count} strings>"

    def add_numbers(self, number: int, data: memoryview) -> None:
        """More numbers of a field."""
        known = self.packed.get(number)
        if known is None:
            self.packed[number] = data
        elif isinstance(known, bytearray):
            known += data
        else:
            self.packed[number] = bytearray(known) + data

    def add_element(self, data: memoryview) -> None:
        """One more of ``bytes_contents``."""
        self.element_count += 1
        self.elements += _LENGTH.pack(len(data))
        self.elements += data

    def unpacked_bytes(self, datatype: DataType) -> int:
        """What `numbers` will take that is not in the message. Takes time: looks at all numbers.

        Args:
            datatype: of the tensor.
        """
        return sum(
            count_varints(data) * _dtype(number, datatype).itemsize
            for number, data in self.packed.items()
            if NUMBERS[number][0] == VARINT
        )

    def unpack(self, datatype: DataType) -> None:
        """Fill `numbers`.

        Args:
            datatype: of the tensor.

        Raises:
            MalformedMessageError: a number is too long.
        """
        for number, data in self.packed.items():
            wire_type, dtype = NUMBERS[number]
            if wire_type == VARINT:
                self.numbers[number] = unpack_varints(data, _dtype(number, datatype))
            else:
                self.numbers[number] = np.frombuffer(data, dtype)


def _dtype(number: int, datatype: DataType) -> np.dtype:
    """What the numbers of a field become: as few bytes as the datatype has, so that they need not be cut later."""
    if datatype not in _KINDS[number]:
        return _NARROW
    return np.dtype(bool) if datatype is BOOL else np.dtype(f"<u{datatype.size}")
