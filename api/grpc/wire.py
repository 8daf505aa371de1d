"""Protobuf's wire format: fields of a message, one after the other, without a schema.

A field is a tag (its number, and how its payload is delimited) and the payload. Readers compare tags: a known number
under another wire type is an unknown field, as it is for protobuf. What is refused, and what is not (excess bits,
lengths spelt in more bytes than needed), follows protobuf's C reader.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...engine.errors import InternalError, InvalidArgumentError
from ...engine.tensor import Buffer
from ..request_parameters import MAX_TEXT_BYTES

VARINT, FIXED64, LENGTH, START_GROUP, END_GROUP, FIXED32 = range(6)
"""Wire types."""

MAX_SIZE_BYTES = 5
"""How many bytes a tag may take, or the size of a payload."""

UNPARSABLE = "Unable to parse request"
"""What gRPC's server says of a call without a readable message."""

_MAX_VARINT_BYTES = 10
_MAX_TAG = 2**32 - 1
_MAX_DEPTH = 100
_UINT64_MASK = 2**64 - 1


class UnreadableError(InternalError):
    """A request that is no valid protobuf message, or not one of the type expected. Clients are told no more than that.

    Args:
        reason: for people.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(UNPARSABLE)
        self.reason = reason


def tag(number: int, wire_type: int) -> int:
    return number << 3 | wire_type


def read_varint(data: Buffer, at: int, limit: int = _MAX_VARINT_BYTES) -> tuple[int, int]:
    """The unsigned number that starts at `at`, and where it ends. Bits beyond 64 are dropped.

    Args:
        limit: how many bytes it may take.

    Raises:
        UnreadableError: it takes more bytes than that.
        IndexError: the data ends before it does.
    """
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for count in range(1, limit):
        octet = data[at + count]
        value |= (octet & 0x7F) << 7 * count
        if octet < 0x80:
            return value & _UINT64_MASK, at + count + 1
    raise UnreadableError("a number is too long")


def fields(data: Buffer, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields between `at` and `end`: (tag, start of the payload, end of the payload). Groups are left out.

    Raises:
        UnreadableError: the bytes are not a sequence of whole fields.
    """
    try:
        while at < end:
            key = data[at]
            if key < 0x80:
                start = at + 1
            else:
                key, start = read_varint(data, at, MAX_SIZE_BYTES)
            wire_type = key & 7
            if key < 8 or key > _MAX_TAG:
                raise UnreadableError("no field has this number")
            if wire_type == LENGTH:
                at = data[start]
                if at < 0x80:
                    start += 1
                else:
                    at, start = read_varint(data, start, MAX_SIZE_BYTES)
                at += start
                if at > end:
                    break
                yield key, start, at
            elif wire_type == START_GROUP:
                at = _skip_group(data, start, end, key >> 3)
            else:
                at = _skip_scalar(data, start, wire_type)
                if at > end:
                    break
                yield key, start, at
    except IndexError:
        raise UnreadableError("a message is cut off") from None
    if at != end:
        raise UnreadableError("a message is cut off")


def read_text(data: memoryview, start: int, stop: int) -> str:
    """A field that is a text.

    Raises:
        InvalidArgumentError: it is longer than a text may be.
        UnreadableError: it is not UTF-8.
    """
    if stop - start > MAX_TEXT_BYTES:
        raise InvalidArgumentError(
            f"a name, id or string of the request has {stop - start} bytes, expected at most {MAX_TEXT_BYTES}"
        )
    try:
        return str(data[start:stop], "utf-8")
    except UnicodeDecodeError:
        raise UnreadableError("a text is not UTF-8") from None


def _skip_scalar(data: Buffer, start: int, wire_type: int) -> int:
    """Where the payload of a number ends."""
    if wire_type == VARINT:
        return read_varint(data, start)[1]
    if wire_type == FIXED32:
        return start + 4
    if wire_type == FIXED64:
        return start + 8
    raise UnreadableError("a field has no known wire type, or ends a group that was not begun")


def _skip_group(data: Buffer, at: int, end: int, number: int) -> int:
    """Where a group ends, the groups inside it included. An old way to nest messages, whose end is a tag."""
    open_groups = [number]
    while open_groups:
        if at >= end or len(open_groups) > _MAX_DEPTH:
            raise UnreadableError("a group is cut off, or nested too deeply")
        key, at = read_varint(data, at, MAX_SIZE_BYTES)
        if key < 8 or key > _MAX_TAG:
            raise UnreadableError("no field has this number")
        wire_type = key & 7
        if wire_type == START_GROUP:
            open_groups.append(key >> 3)
        elif wire_type == END_GROUP:
            if open_groups.pop() != key >> 3:
                raise UnreadableError("a group ends that was not begun")
        elif wire_type == LENGTH:
            length, at = read_varint(data, at, MAX_SIZE_BYTES)
            at += length
        else:
            at = _skip_scalar(data, at, wire_type)
    return at
