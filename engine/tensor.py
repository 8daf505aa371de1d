"""Tensors: a name, an element type, a shape, and a buffer that is copied as rarely as can be.

A tensor that came over the wire is a view on the bytes received; one that a backend produced is a view on the backend's
array. Each side sees the form that it wants (`Tensor.buffer`, `Tensor.array`), converted on first use. BYTES elements
are packed and unpacked here and nowhere else: on the wire an element is a little-endian uint32 length and that many
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from .datatypes import BYTES, DataType
from .tensor_limits import bounded_product

Buffer = bytes | bytearray | memoryview

_LENGTH = struct.Struct("<I")
_MOST_PARTS = 16_384
END_BYTES = 64
"""Of memory for bodies: it ends at a multiple of so many (`memory_for`)."""
_JOINED_AT_ONCE_BYTES = 1 << 20


class IncompleteLengthError(ValueError):
    """A BYTES buffer ends inside a length field, or before the bytes that a length announced.

    Attributes:
        available: bytes left where a 4-byte length should have been, or None if it was the content that fell short.
        needed: bytes that the element's length announced (only when its content fell short).
    """

    def __init__(self, available: int, needed: int | None = None) -> None:
        super().__init__(f"{available} bytes left, {4 if needed is None else needed} needed")
        self.available = available
        self.needed = needed


class Tensor:
    """A named n-dimensional array of one `DataType`.

    Args:
        name: tensor name.
        datatype: element type.
        shape: dimensions, the batch dimension included.
        buffer: wire form (little-endian, row-major, BYTES packed), a view is kept; or
        array: numpy form, dtype ``datatype.storage``; for BYTES an object array of ``bytes``. Exactly one of the two.
    """

    __slots__ = ("_array", "_buffer", "datatype", "name", "shape")

    def __init__(
        self,
        name: str,
        datatype: DataType,
        shape: tuple[int, ...],
        buffer: Buffer | None = None,
        array: np.ndarray | None = None,
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self._buffer = buffer
        self._array = array

    @property
    def buffer(self) -> Buffer:
        """The wire form, C-contiguous."""
        if self._buffer is None:
            array = self._array
            assert array is not None, "a tensor has a buffer or an array"
            if self.datatype is BYTES:
                self._buffer = pack_bytes(array.ravel())
            else:
                self._buffer = wire_bytes(array)
        return self._buffer

    @property
    def array(self) -> np.ndarray:
        """The numpy form with this shape; a read-only view when the bytes came from elsewhere.

        Raises:
            ValueError: the buffer does not hold what the shape says (`IncompleteLengthError` for BYTES).
        """
        if self._array is None:
            buffer = self._buffer
            assert buffer is not None, "a tensor has a buffer or an array"
            if self.datatype is BYTES:
                elements = list(iter_bytes(buffer))
                flat = np.empty(len(elements), dtype=object)
                flat[:] = elements
            else:
                flat = np.frombuffer(buffer, self.datatype.storage)
            self._array = flat.reshape(self.shape)
        return self._array

    @property
    def has_array(self) -> bool:
        """Whether the numpy form is at hand, whose elements then are as many as the shape says."""
        return self._array is not None

    @property
    def has_buffer(self) -> bool:
        """Whether the wire form is at hand."""
        return self._buffer is not None

    @property
    def nbytes(self) -> int:
        """Bytes of the wire form."""
        if self._buffer is not None:
            return len(self._buffer)
        if self.datatype is BYTES:
            return len(self.buffer)
        assert self._array is not None
        return self._array.nbytes

    @property
    def element_count(self) -> int:
        return bounded_product(self.shape)

    def reshaped(self, shape: tuple[int, ...]) -> Tensor:
        """The same data under another shape of as many elements; nothing is copied."""
        return self.renamed(self.name, shape)

    def renamed(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The same data under another name and a shape of as many elements; nothing is copied."""
        array = None if self._array is None else self._array.reshape(shape)
        return Tensor(name, self.datatype, shape, self._buffer, array)

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.datatype.name}{list(self.shape)}>"


def memory_for(nbytes: int) -> memoryview:
    """Memory for a body or message that is about to arrive, with anything in it. It ends at a multiple of 64 bytes, so
    that the tensors at its end, where clients put them, can be used where they are (`BatchLayout.gather`).

    Raises:
        MemoryError: there is not so much.
    """
    memory = np.empty(nbytes + END_BYTES, np.uint8)
    start = -(memory.ctypes.data + nbytes) % END_BYTES
    return memory[start : start + nbytes].data


def wire_bytes(array: np.ndarray) -> memoryview:
    """The wire form of an array of any type but BYTES: a view on it, or on a copy that is contiguous."""
    try:
        return array.data.cast("B")  # for a third of what another array costs
    except (TypeError, ValueError):  # not contiguous, or empty
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def pack_bytes(elements: Iterable[bytes]) -> bytes:
    """The wire form of BYTES elements."""
    packed = bytearray()
    parts: list[bytes] = []
    for element in elements:
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
        if len(parts) == _MOST_PARTS:  # each length is an object of its own
            packed += b"".join(parts)
            parts.clear()
    if not packed:
        return b"".join(parts)
    packed += b"".join(parts)
    return bytes(packed)


class LongBytes:
    """Bytes of an unknown number, put one behind the other.

    The memory is numpy's, which asks for huge pages: to give back as much in small ones takes the event loop 10 ms for
    each 64 MiB. It is copied into without the interpreter's lock.

    Args:
        most_bytes: that it may have; what is not used costs no memory.
    """

    def __init__(self, most_bytes: int) -> None:
        self._whole = np.empty(most_bytes, np.uint8)
        self._filled = 0

    def put(self, data: Buffer) -> None:
        """Put bytes behind those that are there.

        Raises:
            ValueError: there is no room.
        """
        if data:
            end = self._filled + len(data)
            self._whole[self._filled : end] = np.frombuffer(data, np.uint8)
            self._filled = end

    @property
    def view(self) -> memoryview:
        """What there is of it."""
        return self._whole[: self._filled].data


class PackedElements(LongBytes):
    """The wire form of many BYTES elements, made bit by bit."""

    def add(self, elements: Iterable[bytes]) -> None:
        """Put elements behind those that are there.

        Raises:
            ValueError: there is no room.
        """
        self.put(pack_bytes(elements))

    def add_in_pieces(self, pieces: Iterable[bytes]) -> None:
        """Put one more element behind them, given in pieces.

        Raises:
            ValueError: there is no room.
        """
        start = self._filled
        self.put(_LENGTH.pack(0))
        for piece in pieces:
            self.put(piece)
        _LENGTH.pack_into(self._whole.data, start, self._filled - start - _LENGTH.size)


def joined(pieces: list[Buffer], between: Callable[[], object] | None = None) -> memoryview:
    """One after the other, in memory as `LongBytes` has it. Takes them from the list, so that each is given back
    as soon as it is copied. Bytes of any format count as bytes.

    Args:
        between: called before each megabyte or so.
    """
    views = [memoryview(piece).cast("B") for piece in pieces]
    pieces.clear()
    whole = np.empty(sum(map(len, views)), np.uint8)
    views.reverse()
    filled = until = 0
    while views:
        if between is not None and filled >= until:
            between()
            until = filled + _JOINED_AT_ONCE_BYTES
        view = views.pop()
        if view:
            whole[filled : filled + len(view)] = np.frombuffer(view, np.uint8)
            filled += len(view)
    return whole.data


def iter_spans(buffer: Buffer) -> Iterator[tuple[int, int]]:
    """Where the contents of the elements in a packed BYTES buffer start and end.

    Raises:
        IncompleteLengthError: the buffer ends inside an element.
    """
    view = memoryview(buffer)
    end = len(view)
    at = 0
    while at < end:
        start = at + 4
        if end < start:
            raise IncompleteLengthError(end - at)
        (length,) = _LENGTH.unpack_from(view, at)
        at = start + length
        if end < at:
            raise IncompleteLengthError(end - start, length)
        yield start, at


def iter_bytes(buffer: Buffer) -> Iterator[bytes]:
    """The elements in a packed BYTES buffer.

    Raises:
        IncompleteLengthError: the buffer ends inside an element.
    """
    view = memoryview(buffer)
    for start, end in iter_spans(view):
        yield bytes(view[start:end])


def count_elements(buffer: Buffer, limit: int) -> tuple[int, IncompleteLengthError | None]:
    """The number of packed BYTES elements, at most `limit`, and what the buffer lacks at its end, if anything."""
    count = 0
    try:
        for _ in iter_spans(buffer):
            count += 1
            if count == limit:
                return count, None
    except IncompleteLengthError as error:
        return count + (error.needed is not None), error  # an element whose content is cut off counts
    return count, None
