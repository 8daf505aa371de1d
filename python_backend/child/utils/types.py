"""The element types: numpy's, the configuration's names and the numbers of Triton's enum; and BYTES in one piece
(docs/reference/python-backend.md#module-members)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

BOOL, UINT8, UINT16, UINT32, UINT64 = 1, 2, 3, 4, 5
INT8, INT16, INT32, INT64 = 6, 7, 8, 9
FP16, FP32, FP64, BYTES, BF16 = 10, 11, 12, 13, 14

_NUMPY: tuple[Any, ...] = (
    *(np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64),
    *(np.float16, np.float32, np.float64, np.object_),
)
"""In the order of the numbers, from 1. BF16 is missing, because numpy has no such type."""
_WHOLE = [f"{kind}{bits}" for kind in ("UINT", "INT") for bits in (8, 16, 32, 64)]
_NAMES = ["BOOL", *_WHOLE, "FP16", "FP32", "FP64", "STRING"]

TRITON_STRING_TO_NUMPY: dict[str, Any] = {f"TYPE_{name}": kind for name, kind in zip(_NAMES, _NUMPY)}
TRITON_STRING_TO_NUMPY["TYPE_BOOL"] = bool
"""Configuration name to numpy type."""

_NUMPY_BY_NUMBER: dict[int, Any] = dict(enumerate(_NUMPY, start=1))
_NUMBER_BY_NUMPY = {numpy_type: number for number, numpy_type in _NUMPY_BY_NUMBER.items()}
_NUMBER_BY_NUMPY[np.bytes_] = BYTES


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of an element type's number; None if there is none."""
    return _NUMPY_BY_NUMBER.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The number of a numpy type (or dtype); None if Triton has no such type."""
    return _NUMBER_BY_NUMPY.get(data_type.type if isinstance(data_type, np.dtype) else data_type)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of ``TYPE_FP32`` and the like.

    Raises:
        KeyError: no such name, or BF16.
    """
    return TRITON_STRING_TO_NUMPY[triton_type_string]


# BYTES elements in one piece: each a little-endian uint32 length and that many bytes
# (docs/reference/python-backend.md#module-members).


_LENGTH = struct.Struct("<I")


def serialize_byte_tensor(input_tensor: np.ndarray) -> bytes | tuple[()] | None:
    """The elements in C order; ``()`` if there are none, and None for an array of other things than bytes or objects.

    An element that is no bytes is written as its text, in UTF-8.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.type not in (np.object_, np.bytes_):
        return None
    parts: list[bytes] = []
    for element in input_tensor.ravel().tolist():
        data = element if isinstance(element, bytes) else str(element).encode()
        parts.append(_LENGTH.pack(len(data)))
        parts.append(data)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray:
    """The elements as a one-dimensional array of bytes objects.

    Raises:
        struct.error: the data ends within an element.
    """
    elements: list[bytes] = []
    view = memoryview(encoded_tensor)
    at = 0
    while at < len(view):
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size + length
        if at > len(view):
            raise struct.error(f"an element of {length} bytes ends {at - len(view)} bytes behind the end of the data")
        elements.append(bytes(view[at - length : at]))
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array
