"""BYTES elements in one piece: each a little-endian uint32 length and that many bytes
(docs/reference/python-backend.md#module-members)."""

from __future__ import annotations

import struct

import numpy as np

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
