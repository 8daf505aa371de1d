"""Writes protobuf's wire format: fields, one after the other (`wire` reads them)."""

from __future__ import annotations

import struct
from functools import lru_cache

from ...engine.errors import UnsupportedError
from ...engine.request import ParameterValue
from .wire import FIXED64, LENGTH, VARINT, tag

_INT64 = range(-(2**63), 2**63)
_UINT64_MASK = 2**64 - 1


def varint(number: int) -> bytes:
    """An unsigned number: 7 bits a byte, low bits first."""
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)


@lru_cache(maxsize=1024)
def opening(number: int, size: int) -> bytes:
    """What stands before a field of `size` bytes."""
    return varint(tag(number, LENGTH)) + varint(size)


def delimited(number: int, payload: bytes) -> bytes:
    """A field of bytes, or a message."""
    return opening(number, len(payload)) + payload


def text_field(number: int, text: str) -> bytes:
    """A string field; nothing if it is empty. What is no Unicode cannot be sent and becomes question marks."""
    return delimited(number, text.encode("utf-8", "replace")) if text else b""


def parameter(name: str, value: ParameterValue) -> bytes:
    """An entry of a map of ``InferParameter``, whose field has number 4 in requests, in responses, and in tensors.

    Raises:
        UnsupportedError: there is no such parameter.
    """
    if isinstance(value, bool):
        choice = varint(tag(1, VARINT)) + varint(value)
    elif isinstance(value, int) and value in _INT64:
        choice = varint(tag(2, VARINT)) + varint(value & _UINT64_MASK)
    elif isinstance(value, str):
        choice = delimited(3, value.encode("utf-8", "replace"))
    elif isinstance(value, float):
        choice = varint(tag(4, FIXED64)) + struct.pack("<d", value)
    else:
        raise UnsupportedError(f"parameter '{name}' must be a bool, a 64-bit int, a string or a double")
    return delimited(4, delimited(1, name.encode("utf-8", "replace")) + delimited(2, choice))
