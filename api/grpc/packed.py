"""Packed repeated numbers, read by numpy: a tensor given as typed contents has thousands of them."""

from __future__ import annotations

import numpy as np

from ...engine.tensor import Buffer
from .wire import MalformedMessageError

_MAX_VARINT_BYTES = 10


def unpack_varints(data: Buffer, dtype: np.dtype) -> np.ndarray:
    """Numbers of 1 to 10 bytes each, 7 bits a byte, low bits first.

    Args:
        data: whole numbers, one behind the other.
        dtype: unsigned; higher bits are dropped.

    Returns:
        A one-dimensional array of this dtype.

    Raises:
        MalformedMessageError: the last number is cut off, or one is too long.
    """
    octets = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(octets < 0x80)  # where numbers end: the high bit says that more follows
    if (last[-1] + 1 if len(last) else 0) != len(octets):
        raise MalformedMessageError("packed numbers are cut off")
    if len(last) == len(octets):
        return octets.astype(dtype)
    first = np.empty_like(last)
    first[0] = 0
    first[1:] = last[:-1] + 1
    extra = last - first
    longest = int(extra.max())
    if longest >= _MAX_VARINT_BYTES:
        raise MalformedMessageError("a packed number is too long")
    bits = octets & 0x7F
    values = bits[first].astype(dtype)
    for count in range(1, min(longest, (dtype.itemsize * 8 - 1) // 7) + 1):
        longer = np.flatnonzero(extra >= count)
        values[longer] |= bits[first[longer] + count].astype(dtype) << dtype.type(7 * count)
    return values
