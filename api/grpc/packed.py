"""Packed repeated numbers, read by numpy: a tensor given as typed contents has thousands of them.

They are read in pieces, so that what is needed besides the result is small however many there are, and so that a thread
that reads many lets others in between.
"""

from __future__ import annotations

import numpy as np

from ...engine.tensor import Buffer
from .wire import MalformedMessageError

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
        MalformedMessageError: the last number is cut off, or one is too long.
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
        raise MalformedMessageError("a packed number is too long")
    return end - _MAX_VARINT_BYTES + int(ends[-1]) + 1


def _unpack(octets: np.ndarray, dtype: np.dtype) -> np.ndarray:
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
