"""Tensors from the ``data`` of a JSON input (docs/reference/http-inference.md#tensors-in-json).

A regular list of plain elements is converted by numpy as a whole. Whatever is unusual (ragged nesting, a wrong type, a
wrong count, a number out of range) is walked element by element in the order in which Triton does, so that the first
thing wrong is the one reported.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ....engine.datatypes import (
    BF16,
    BOOL,
    BYTES,
    FP16,
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
from ....engine.errors import InternalError, InvalidArgumentError, shown
from ....engine.tensor import Buffer, PackedElements, Tensor, pack_bytes
from ....engine.tensor_limits import DEFAULT_LIMITS, TensorLimits, bounded_product
from .pieces import LargeArray, LargeString
from .reader import INT64_MAX, as_bool, as_double, as_signed, as_string, as_unsigned
from .strict import MAX_NESTING, NESTING_ERROR


class _Element(NamedTuple):
    """How the elements of some datatypes stand in JSON: how a value is checked and converted, what Python types it may
    have, and the dtype of the values before they are cut to the width of the datatype, by a character that numpy and
    `struct` have in common."""

    access: Callable[[Any], Any]
    kinds: frozenset[type]
    wide: str


_BOOLEAN = _Element(as_bool, frozenset({bool}), "?")
_UNSIGNED = _Element(as_unsigned, frozenset({int}), "Q")
_SIGNED = _Element(as_signed, frozenset({int}), "q")
_DOUBLE = _Element(as_double, frozenset({float, int}), "d")
_STRING = frozenset({str})
_FEW_STRINGS = 64
"""More are packed: as an array, each would take forty bytes and more, for as long as the request is in flight."""

_ELEMENTS = {
    BOOL: _BOOLEAN,
    **dict.fromkeys((UINT8, UINT16, UINT32, UINT64), _UNSIGNED),
    **dict.fromkeys((INT8, INT16, INT32, INT64), _SIGNED),
    **dict.fromkeys((FP32, FP64), _DOUBLE),
}


def tensor_from_json(
    name: str, datatype: DataType, shape: tuple[int, ...], data: Any, limits: TensorLimits = DEFAULT_LIMITS
) -> Tensor:
    """A tensor from the parsed ``data`` member of a JSON input, of any type.

    Nesting is ignored, ragged or not. Integers wrap to the width of their type. With a zero in the shape, or no
    dimension at all, `data` is not looked at. A wrong number of BYTES elements is left to validation, which has a text
    of its own for it. `INVALID` is refused when there is data to read.

    Raises:
        InternalError: not an array, an element of the wrong type, too few or too many elements.
        InvalidArgumentError: a type that JSON cannot carry, an impossible shape, nesting that is too deep, too many
            strings.
        OddTextError: large data is not plain JSON.
    """
    count = _count(name, datatype, shape)
    if not count:
        return Tensor(name, datatype, shape, b"")
    if type(data) is not list and type(data) is not LargeArray:
        raise InternalError("Unable to parse 'data': attempt to access JSON non-array as array")
    if datatype is BYTES:
        return _strings(name, shape, count, data, limits)
    element = _ELEMENTS.get(datatype)
    if element is None:
        refuse_half(name, datatype)
        raise InvalidArgumentError(f"invalid datatype for input {name}")
    with np.errstate(over="ignore"):  # beyond FP32 is infinite
        if isinstance(data, LargeArray):
            array = _large_numbers(data, count, element, datatype.storage)
        else:
            array = _numbers(data, count, element).astype(datatype.storage, copy=False)
    return Tensor(name, datatype, shape, array=array.reshape(shape))


def refuse_half(name: str, datatype: DataType) -> None:
    """JSON has no notation for two datatypes of 16 bits.

    Raises:
        InvalidArgumentError: the input `name` is of one of them.
    """
    if datatype is FP16 or datatype is BF16:
        raise InvalidArgumentError(
            f"receiving {datatype.name} data via JSON is not supported. Please use the binary data format for "
            f"input {name}"
        )


def _count(name: str, datatype: DataType, shape: tuple[int, ...]) -> int:
    """Elements to be read: none without dimensions."""
    if max(shape, default=0) > INT64_MAX:
        raise InvalidArgumentError(
            f"invalid shape for input '{name}': shape {_print_shape(shape)} contains one or more invalid dimensions"
        )
    if not shape or 0 in shape:
        return 0
    count = bounded_product(shape)
    if count > INT64_MAX:
        raise InvalidArgumentError(
            f"invalid shape for input '{name}': shape {_print_shape(shape)} causes total element count to exceed "
            f"maximum size of {INT64_MAX}"
        )
    if count * datatype.size > INT64_MAX:
        raise InvalidArgumentError(
            f"byte size overflow for input '{name}': element count ({count}) * data type size ({datatype.size}) "
            f"exceeds maximum allowed size ({INT64_MAX})"
        )
    return count


def _print_shape(shape: tuple[int, ...]) -> str:
    """``[1,2]``, as signed 64-bit numbers."""
    return shown(f"[{','.join(str(dim if dim <= INT64_MAX else dim - 2**64) for dim in shape)}]")


def _numbers(data: list[Any], count: int, element: _Element) -> np.ndarray:
    array = _plain_numbers(data, element)
    if array is None or array.size != count:
        array = _walked_numbers(data, count, element)
        _refuse_fewer(array.size, count)
    return array


def _large_numbers(data: LargeArray, count: int, element: _Element, storage: np.dtype) -> np.ndarray:
    """The same for data that is read in pieces; cut to the width of the datatype."""
    array = np.empty(min(count, data.values), storage)
    filled = 0
    for piece, are_numbers in data.judged_pieces():
        plain = [""] if isinstance(piece, LargeString) else piece  # of a string, only that it is one matters
        numbers = _packed_numbers(plain, element) if are_numbers else _plain_numbers(plain, element)
        if numbers is None or filled + numbers.size > count:
            numbers = _walked_numbers(plain, count - filled, element)
        array[filled : filled + numbers.size] = numbers
        filled += numbers.size
    _refuse_fewer(filled, count)
    return array


def _plain_numbers(data: list[Any], element: _Element) -> np.ndarray | None:
    """The elements of evenly nested lists, if all are of the right type."""
    flat, kinds = _flatten(data)
    if not kinds <= element.kinds:
        return None
    if element is _UNSIGNED and flat and min(flat) < 0:  # which older numpy would wrap
        return None
    try:
        return np.array(flat, dtype=element.wide)
    except OverflowError:  # beyond 64 bits, signed or not: refused by walking
        return None


def _packed_numbers(data: list[Any], element: _Element) -> np.ndarray | None:
    """The same for what can have nothing but numbers and lists in it, in less than half the time."""
    if element is _BOOLEAN:  # as which `struct` takes anything
        return None
    try:
        for _ in range(MAX_NESTING - 2):
            if not data or type(data[0]) is not list:
                break
            data = list(chain.from_iterable(data))
        return np.frombuffer(struct.pack(f"{len(data)}{element.wide}", *data), element.wide)
    except (struct.error, OverflowError, TypeError):  # a fraction among integers, beyond 64 bits; uneven nesting
        return None


def _walked_numbers(data: list[Any], count: int, element: _Element) -> np.ndarray:
    flat: list[Any] = []
    try:
        _walk(data, element.access, count, 0, flat)
    except (InternalError, InvalidArgumentError) as error:
        raise type(error)(f"Unable to parse 'data': {error.message}") from None
    return np.array(flat, dtype=element.wide)


def _refuse_fewer(found: int, count: int) -> None:
    if found < count:
        raise InternalError("Failed to parse 'data' field: shape does not match true shape")


def _strings(
    name: str, shape: tuple[int, ...], count: int, data: list[Any] | LargeArray, limits: TensorLimits
) -> Tensor:
    if isinstance(data, LargeArray):
        return Tensor(name, BYTES, shape, _large_strings(name, data, limits))
    elements = _encoded(data)
    limits.check_elements(name, len(elements))
    if len(elements) != count or count > _FEW_STRINGS:
        return Tensor(name, BYTES, shape, pack_bytes(elements))
    array = np.empty(count, dtype=object)
    array[:] = elements
    return Tensor(name, BYTES, shape, array=array.reshape(shape))


def _large_strings(name: str, data: LargeArray, limits: TensorLimits) -> Buffer:
    """Packed, however many they are."""
    limits.check_elements(name, len(data))  # without reading them, if they are not nested
    packed = PackedElements(data.packed_bytes)
    found = 0
    for piece in data.pieces():
        if isinstance(piece, LargeString):
            packed.add_in_pieces(piece.pieces())
            found += 1
        else:
            elements = _encoded(piece)
            packed.add(elements)
            found += len(elements)
        limits.check_elements(name, found)
    return packed.view


def _encoded(data: list[Any]) -> list[bytes]:
    flat, kinds = _flatten(data)
    if kinds != _STRING:
        flat = []
        try:
            _walk(data, as_string, None, 0, flat)
        except InternalError as error:
            raise InternalError(f"Unable to parse JSON bytes array: {error.message}") from None
    return [text.encode("utf-8", "surrogateescape") for text in flat]


def _flatten(data: list[Any]) -> tuple[list[Any], set[type]]:
    """The innermost elements of evenly nested lists and their types, among which is `list` if nesting is uneven."""
    flat = data
    kinds = set(map(type, flat))
    levels = 1
    while len(kinds) == 1 and list in kinds and levels < MAX_NESTING - 1:
        flat = list(chain.from_iterable(flat))
        kinds = set(map(type, flat))
        levels += 1
    return flat, kinds


def _walk(data: list[Any], access: Callable[[Any], Any], count: int | None, depth: int, flat: list[Any]) -> None:
    """Append the elements in `data`, depth first, to `flat`; at most `count` of them if that is given."""
    depth += 1
    for value in data:
        if depth >= MAX_NESTING:
            raise InvalidArgumentError(NESTING_ERROR)
        if type(value) is list:
            _walk(value, access, count, depth, flat)
        elif count is not None and len(flat) >= count:
            raise InternalError("Shape does not match true shape of 'data' field")
        else:
            flat.append(access(value))
