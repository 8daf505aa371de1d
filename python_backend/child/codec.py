"""How messages between the two processes are written.

A message is a head and a payload. The head is a tuple of plain values (None, bool, int, float, str, bytes, tuple, list,
dict), written by `marshal`: the one format in the standard library that is as fast as small requests need (0.4 µs
instead of 3 for JSON). Nothing that it reads is ever executed, its version 2 is the same in every Python from 2.5 on,
and neither end is more trusted than the other: both run as the same user. The payload is the tensors' contents, each at
a multiple of `ALIGNMENT`; the head says where.

`marshal` trusts what it reads: a few wrong bytes make it ask for gigabytes. So a checksum goes before the head, and
what does not fit it is no message. Where a model runs as another user, so that the system keeps it from the server, the
server also looks at each head before (`check_plain`); that takes ten times as long as reading it.

Layout: ``<head bytes: uint32> <CRC-32 of the head: uint32> head, padding, payload``.
"""

from __future__ import annotations

import marshal
import struct
import zlib
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Union

import numpy as np

ALIGNMENT = 16
PREFIX = struct.Struct("<II")
_PADDING = [bytes(-size % ALIGNMENT) for size in range(ALIGNMENT)]
"""Behind so many bytes more than a multiple of `ALIGNMENT`."""

_PREFIX_BYTES = PREFIX.size

_MARSHAL_VERSION = 2

MOST_HEAD_BYTES = 512 << 10
"""Of what a model says: to read as much takes the server a few milliseconds."""

_new = tuple.__new__
"""Makes a named tuple, without the Python code of its class."""

Buffer = Union[bytes, bytearray, memoryview]
Head = tuple


class MessageError(Exception):
    """What came is no message: the other end is broken."""


class Source(ABC):
    """Contents that are read when the message is written, straight into its place; `len` is their size in bytes. Only
    for messages that are longer than `channel.INLINE_BYTES`."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read_into(self, target: np.ndarray) -> None:
        """Fill an array, uint8, of their size. What it raises, `Channel.prepare` raises."""


class Payload:
    """Collects the contents of a message's tensors, padding included."""

    __slots__ = ("nbytes", "parts")

    def __init__(self) -> None:
        self.parts: list[Buffer | Source] = []
        self.nbytes = 0

    def add(self, buffer: Buffer | Source) -> int:
        """Put a buffer behind the others; where it starts, counted from the start of the payload."""
        at = self.nbytes
        size = len(buffer)
        self.parts.append(buffer)
        if size % ALIGNMENT:
            padding = _PADDING[size % ALIGNMENT]
            self.parts.append(padding)
            size += len(padding)
        self.nbytes = at + size
        return at


class Message(NamedTuple):
    """A message that came: the head as it was given to `encode`, and the payload, which what is cut out of it keeps
    alive."""

    head: Head
    payload: memoryview


def encode(head: Head, payload: Payload, most_bytes: int = 1 << 31) -> list[Buffer | Source]:
    """The parts of a message, to be written one after the other. ValueError if the head holds something other than
    plain values, or has more than `most_bytes`."""
    try:
        packed = marshal.dumps(head, _MARSHAL_VERSION)
    except ValueError:
        packed = marshal.dumps(_plain(head), _MARSHAL_VERSION)
    size = len(packed)
    if size > most_bytes:
        raise ValueError(
            f"names, parameters and texts take {size} bytes, but no more than {most_bytes} can be sent at once"
        )
    text = PREFIX.pack(size, zlib.crc32(packed)) + packed + _PADDING[(_PREFIX_BYTES + size) % ALIGNMENT]
    return [text, *payload.parts]


def _plain(value: Any) -> Any:
    """A value of a head without subclasses: user code has enums and numpy's scalars where a number or a text is due.
    ValueError if it is neither plain nor a subclass of what is."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple([_plain(item) for item in value])
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes(value)
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    raise ValueError(f"a {type(value).__name__} cannot be sent")


def decode(message: memoryview, most_bytes: int = 1 << 31, *, checked: bool = False) -> Message:
    """Take a message apart, whose head may have `most_bytes`; if `checked`, look first whether `marshal` can read that
    without harm (`check_plain`). MessageError if it is none."""
    try:
        size, checksum = PREFIX.unpack_from(message)
        if size > most_bytes:
            raise MessageError(f"the head of a message has {size} bytes, and may have {most_bytes}")
        start = _PREFIX_BYTES + size
        packed: Buffer = message[_PREFIX_BYTES:start]
        if checked:
            packed = bytes(packed)  # the other end may still change what it shares
        if zlib.crc32(packed) != checksum:
            raise MessageError("not a message: its checksum is wrong")
        if checked:
            check_plain(packed)
        head = marshal.loads(packed)
    except (struct.error, ValueError, EOFError, TypeError) as error:
        raise MessageError(f"not a message: {error}") from None
    if head.__class__ is not tuple:
        raise MessageError(f"the head of a message is a {type(head).__name__}")
    return _new(Message, (head, message[start + -start % ALIGNMENT :]))


def check_plain(packed: Buffer) -> None:
    """Look whether a head consists of plain values that are within it: none asks for more memory than is there, none is
    code, and none refers to another. MessageError if it does not."""
    at, end = 0, len(packed)
    while at < end:
        kind = packed[at]
        at += 1
        if kind in _SIZED:
            if at + 4 > end:
                break
            count = abs(int.from_bytes(packed[at : at + 4], "little", signed=True))
            if count > end - at - 4:
                raise MessageError("a value in the head of a message is larger than that")
            at += 4 + count * _SIZED[kind]
        elif kind in _PLAIN:
            at += _PLAIN[kind]
        else:
            raise MessageError(f"a value of kind {chr(kind)!r} in the head of a message")
    if at != end:
        raise MessageError("a value is longer than the head of its message")


_PLAIN = {ord("N"): 0, ord("T"): 0, ord("F"): 0, ord("0"): 0, ord("i"): 4, ord("g"): 8, ord("{"): 0}
_SIZED = {ord("u"): 1, ord("t"): 1, ord("s"): 1, ord("l"): 2, ord("("): 0, ord("["): 0}
"""Kinds of values as `marshal` writes them: with their bytes, or with the bytes of each of the items that are counted
(items of tuples and lists are values by themselves)."""


WireTensor = tuple[str, int, tuple[int, ...], int, int]
"""A tensor in a head: name, element type's number, shape, and where its contents are in the payload: offset and bytes.
BYTES are packed as on the wire."""


def cut(payload: memoryview, tensor: WireTensor) -> memoryview:
    """The contents of a tensor as a view. MessageError if they are not within the payload."""
    offset, nbytes = tensor[3], tensor[4]
    if not 0 <= offset <= offset + nbytes <= len(payload):
        raise MessageError(f"tensor '{tensor[0]}' lies outside of its message")
    return payload[offset : offset + nbytes]
