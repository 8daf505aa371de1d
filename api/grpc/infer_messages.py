"""`ModelInferRequest` as protobuf would read it, without protobuf: tensors stay where they were received.

Of a field that is not repeated the last one counts; repeated ones line up; a message that comes in several parts is the
parts merged; of two map entries with one key, and of the choices of a oneof, the last one counts.

Two bytes of a message can ask for an object of some hundred. So there are limits of how many parts a request may have,
and of what a text may be; `engine.tensor_limits` has those of tensors.

There is no object for an element of typed contents: numbers stay where they are in the message, or are put one behind
the other; strings are put one behind the other in the form in which they would have been sent raw. Packed numbers are
read by numpy in pieces, so that what is needed besides the result is small however many there are, and so that a thread
that reads many lets others in between.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from ...engine.datatypes import BOOL, BY_NAME, INVALID, DataType
from ...engine.errors import InvalidArgumentError
from ...engine.tensor import Buffer
from ...engine.tensor_limits import TensorLimits
from ..request_parameters import MAX_PARTS
from .wire import (
    FIXED32,
    FIXED64,
    LENGTH,
    MAX_SIZE_BYTES,
    VARINT,
    UnreadableError,
    fields,
    read_text,
    read_varint,
    tag,
)

_DOUBLE = struct.Struct("<d")
_LENGTH = struct.Struct("<I")
_INT64_SIGN = 2**63
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
        UnreadableError: the last number is cut off, or one is too long.
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
        raise UnreadableError("a packed number is too long")
    return end - _MAX_VARINT_BYTES + int(ends[-1]) + 1


def _unpack(octets: np.ndarray, dtype: np.dtype) -> np.ndarray:
    last = np.flatnonzero(octets < 0x80)  # where numbers end: the high bit says that more follows
    if (last[-1] + 1 if len(last) else 0) != len(octets):
        raise UnreadableError("packed numbers are cut off")
    if len(last) == len(octets):
        return octets.astype(dtype)
    first = np.empty_like(last)
    first[0] = 0
    first[1:] = last[:-1] + 1
    extra = last - first
    longest = int(extra.max())
    if longest >= _MAX_VARINT_BYTES:
        raise UnreadableError("a packed number is too long")
    bits = octets & 0x7F
    values = bits[first].astype(dtype)
    for count in range(1, min(longest, (dtype.itemsize * 8 - 1) // 7) + 1):
        longer = np.flatnonzero(extra >= count)
        values[longer] |= bits[first[longer] + count].astype(dtype) << dtype.type(7 * count)
    return values


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

BYTES_FIELD = 8
FIELDS: tuple[tuple[int, str, tuple[str, ...]], ...] = (
    (1, "BOOL", ("BOOL",)),
    (2, "INT32", ("INT8", "INT16", "INT32")),
    (3, "INT64", ("INT64",)),
    (4, "UINT32", ("UINT8", "UINT16", "UINT32")),
    (5, "UINT64", ("UINT64",)),
    (6, "FP32", ("FP32",)),
    (7, "FP64", ("FP64",)),
    (BYTES_FIELD, "BYTES", ("BYTES",)),
)
"""The fields of typed contents in the order in which Triton looks at them: number, its name for the field's type, and
the datatypes that the field may hold."""

_KINDS = {number: datatypes for number, _, datatypes in FIELDS}
_NARROW = np.dtype("u1")


class WireContents:
    """The contents of one tensor.

    Attributes:
        packed: what the message holds of each numeric field that has elements, by field number: a view on the message,
            or, if that holds it in several parts, the parts put together.
        elements: ``bytes_contents``, each with its length in front.
        element_count: how many those are.
    """

    __slots__ = ("element_count", "elements", "packed")

    def __init__(self) -> None:
        self.packed: dict[int, memoryview | bytearray] = {}
        self.elements = bytearray()
        self.element_count = 0

    def add_numbers(self, number: int, data: memoryview) -> None:
        known = self.packed.get(number)
        if known is None:
            self.packed[number] = data
        elif isinstance(known, bytearray):
            known += data
        else:
            self.packed[number] = bytearray(known) + data

    def add_element(self, data: memoryview) -> None:
        self.element_count += 1
        self.elements += _LENGTH.pack(len(data))
        self.elements += data

    def unpacked_bytes(self, datatype: DataType) -> int:
        """What unpacking will take that is not in the message. Takes time: looks at all numbers."""
        return sum(
            count_varints(data) * _dtype(number, datatype).itemsize
            for number, data in self.packed.items()
            if NUMBERS[number][0] == VARINT
        )

    def unpack(self, number: int, datatype: DataType) -> Buffer | None:
        """What a field holds, as it would be sent raw: views on the message where that has it so; None for nothing.
        Numbers that the datatype does not allow are unpacked in order to be checked, and not worth having.

        Raises:
            UnreadableError: a number is too long.
        """
        if number == BYTES_FIELD:
            return self.elements if self.element_count else None
        data = self.packed.get(number)
        if data is None or NUMBERS[number][0] != VARINT:
            return data
        return unpack_varints(data, _dtype(number, datatype)).view(np.uint8).data


def _dtype(number: int, datatype: DataType) -> np.dtype:
    """What the numbers of a field become: as few bytes as the datatype has, so that they need not be cut later."""
    if datatype.name not in _KINDS[number]:
        return _NARROW
    return np.dtype(bool) if datatype is BOOL else np.dtype(f"<u{datatype.size}")


class UnsignedInt(int):
    """The value of a ``uint64_param``, which is another choice than an ``int64_param``."""


ParameterChoice = bool | int | UnsignedInt | str | float | None
"""An ``InferParameter``: the type says which choice was made, None that none was."""

Parameters = dict[str, ParameterChoice]


@dataclass(slots=True)
class WireInput:
    """An input.

    Attributes:
        prepared: what `contents` are when sent raw, or why they cannot be; None as long as they are not unpacked.
    """

    name: str = ""
    datatype: str = ""
    shape: list[int] = field(default_factory=list)
    parameters: Parameters = field(default_factory=dict)
    contents: WireContents | None = None
    prepared: Buffer | InvalidArgumentError | None = None


def datatype_of(given: WireInput) -> DataType:
    return BY_NAME.get(given.datatype, INVALID)


@dataclass(slots=True)
class WireOutput:
    name: str = ""
    parameters: Parameters = field(default_factory=dict)


@dataclass(slots=True)
class WireRequest:
    """The fields of a ``ModelInferRequest``.

    Attributes:
        raw: ``raw_input_contents``, views on the message.
        parts: see `MAX_PARTS`.
    """

    model_name: str = ""
    model_version: str = ""
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    inputs: list[WireInput] = field(default_factory=list)
    outputs: list[WireOutput] = field(default_factory=list)
    raw: list[memoryview] = field(default_factory=list)
    parts: int = 0

    def count_part(self) -> None:
        """One more of what `MAX_PARTS` counts; raises InvalidArgumentError: one too many."""
        self.parts += 1
        if self.parts > MAX_PARTS:
            raise InvalidArgumentError(
                f"request has more than {MAX_PARTS} inputs, outputs, raw contents and parameters, which is the most"
            )

    def unpacked_bytes(self) -> int:
        """What unpacking it will take that is not in the message."""
        return sum(each.contents.unpacked_bytes(datatype_of(each)) for each in self.inputs if each.contents is not None)


_MODEL_NAME, _MODEL_VERSION, _ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = (tag(n, LENGTH) for n in range(1, 8))
_NAME, _DATATYPE, _SHAPE, _INPUT_PARAMETERS, _CONTENTS = (tag(n, LENGTH) for n in range(1, 6))
_SHAPE_DIM = tag(3, VARINT)
_OUTPUT_PARAMETERS = tag(2, LENGTH)
_KEY, _VALUE = tag(1, LENGTH), tag(2, LENGTH)
_BOOL_PARAM, _INT64_PARAM, _STRING_PARAM = tag(1, VARINT), tag(2, VARINT), tag(3, LENGTH)
_DOUBLE_PARAM, _UINT64_PARAM = tag(4, FIXED64), tag(5, VARINT)

_BYTES_CONTENTS = tag(8, LENGTH)
_RAW_OUTPUT = tag(6, LENGTH)


def scan_infer_request(message: Buffer, limits: TensorLimits) -> WireRequest:
    """The request that `message` holds. The numbers of typed contents are not unpacked yet.

    Raises:
        UnreadableError: it holds none.
        InvalidArgumentError: it has more of something than there may be.
    """
    data = memoryview(message)
    request = WireRequest()
    for key, start, stop in fields(data, 0, len(data)):
        if key == _RAW:
            request.count_part()
            request.raw.append(data[start:stop])
        elif key == _INPUTS:
            request.count_part()
            request.inputs.append(_read_input(data, start, stop, request, limits))
        elif key == _OUTPUTS:
            request.count_part()
            request.outputs.append(_read_output(data, start, stop, request))
        elif key == _PARAMETERS:
            request.count_part()
            _read_parameter(data, start, stop, request.parameters)
        elif key == _MODEL_NAME:
            request.model_name = read_text(data, start, stop)
        elif key == _MODEL_VERSION:
            request.model_version = read_text(data, start, stop)
        elif key == _ID:
            request.id = read_text(data, start, stop)
    return request


def scan_infer_response(message: Buffer, limits: TensorLimits) -> WireRequest:
    """The ``ModelInferResponse`` that `message` holds, whose fields mean the same as a request's: outputs are its
    `inputs`. Raises as `scan_infer_request`."""
    data = memoryview(message)
    response = WireRequest()
    for key, start, stop in fields(data, 0, len(data)):
        if key == _RAW_OUTPUT:
            response.count_part()
            response.raw.append(data[start:stop])
        elif key == _INPUTS:
            response.count_part()
            response.inputs.append(_read_input(data, start, stop, response, limits))
        elif key == _PARAMETERS:
            response.count_part()
            _read_parameter(data, start, stop, response.parameters)
        elif key == _MODEL_NAME:
            response.model_name = read_text(data, start, stop)
        elif key == _MODEL_VERSION:
            response.model_version = read_text(data, start, stop)
        elif key == _ID:
            response.id = read_text(data, start, stop)
    return response


def begun_names(beginning: bytes) -> tuple[str, str]:
    """The name and the version of its model that the first bytes of a request say, as text; empty what they do not. To
    be said there, both stand in front of all else."""
    data, names = memoryview(beginning), {_MODEL_NAME: "", _MODEL_VERSION: ""}
    with suppress(UnreadableError, InvalidArgumentError):  # it is cut off, or is no request: that is noticed later
        for key, start, stop in fields(data, 0, len(data)):
            if key not in names:
                break
            names[key] = read_text(data, start, stop)
    return names[_MODEL_NAME], names[_MODEL_VERSION]


def _read_input(data: memoryview, at: int, end: int, request: WireRequest, limits: TensorLimits) -> WireInput:
    tensor = WireInput()
    for key, start, stop in fields(data, at, end):
        if key == _NAME:
            tensor.name = read_text(data, start, stop)
        elif key == _DATATYPE:
            tensor.datatype = read_text(data, start, stop)
        elif key in (_SHAPE, _SHAPE_DIM):
            _read_dims(data, start, stop, tensor, limits)
        elif key == _INPUT_PARAMETERS:
            request.count_part()
            _read_parameter(data, start, stop, tensor.parameters)
        elif key == _CONTENTS:
            if tensor.contents is None:
                tensor.contents = WireContents()
            _read_contents(data, start, stop, tensor, tensor.contents, limits)
    return tensor


def _read_output(data: memoryview, at: int, end: int, request: WireRequest) -> WireOutput:
    tensor = WireOutput()
    for key, start, stop in fields(data, at, end):
        if key == _NAME:
            tensor.name = read_text(data, start, stop)
        elif key == _OUTPUT_PARAMETERS:
            request.count_part()
            _read_parameter(data, start, stop, tensor.parameters)
    return tensor


def _read_dims(data: memoryview, at: int, end: int, tensor: WireInput, limits: TensorLimits) -> None:
    """Packed dimensions, or one that is not packed, whose payload looks the same."""
    shape = tensor.shape
    while at < end:
        dim = data[at]
        if dim < 0x80:
            at += 1
            shape.append(dim)
        else:
            dim, at = _number(data, at)
            shape.append(dim if dim < _INT64_SIGN else dim - 2 * _INT64_SIGN)
        if len(shape) > limits.max_rank:
            limits.check_rank(tensor.name, len(shape))
    if at > end:
        raise UnreadableError("packed numbers are cut off")


def _read_parameter(data: memoryview, at: int, end: int, parameters: Parameters) -> None:
    name = ""
    value: ParameterChoice = None
    for key, start, stop in fields(data, at, end):
        if key == _KEY:
            name = read_text(data, start, stop)
        elif key == _VALUE:
            value = _read_choice(data, start, stop, value)
    parameters[name] = value


def _read_choice(data: memoryview, at: int, end: int, value: ParameterChoice) -> ParameterChoice:
    """The choice made between `at` and `end`; `value` if none is."""
    for key, start, stop in fields(data, at, end):
        if key == _BOOL_PARAM:
            value = _number(data, start)[0] != 0
        elif key == _INT64_PARAM:
            number = _number(data, start)[0]
            value = number if number < _INT64_SIGN else number - 2 * _INT64_SIGN
        elif key == _STRING_PARAM:
            value = read_text(data, start, stop)
        elif key == _DOUBLE_PARAM:
            (value,) = _DOUBLE.unpack_from(data, start)
        elif key == _UINT64_PARAM:
            value = UnsignedInt(_number(data, start)[0])
    return value


def _read_contents(
    data: memoryview, at: int, end: int, tensor: WireInput, contents: WireContents, limits: TensorLimits
) -> None:
    """Numbers come packed, many in one field, or each in a field of its own; put together they look the same."""
    at = _read_strings(data, at, end, tensor, contents, limits)
    for key, start, stop in fields(data, at, end):
        number, wire_type = key >> 3, key & 7
        if key == _BYTES_CONTENTS:
            contents.add_element(data[start:stop])
            if contents.element_count > limits.max_elements:
                limits.check_elements(tensor.name, contents.element_count)
        elif number in NUMBERS and start < stop:
            element_type, dtype = NUMBERS[number]
            if wire_type not in (LENGTH, element_type):
                continue
            cut = data[stop - 1] >= 0x80 if element_type == VARINT else (stop - start) % dtype.itemsize
            if cut:
                raise UnreadableError("packed numbers are cut off")
            contents.add_numbers(number, data[start:stop])


def _read_strings(
    data: memoryview, at: int, end: int, tensor: WireInput, contents: WireContents, limits: TensorLimits
) -> int:
    """As many ``bytes_contents`` as come first, without the price of `fields`; where they end."""
    elements, count, most = contents.elements, contents.element_count, limits.max_elements
    try:
        while at < end and data[at] == _BYTES_CONTENTS:
            size = data[at + 1]
            start = at + 2
            if size >= 0x80:
                size, start = read_varint(data, at + 1, MAX_SIZE_BYTES)
            at = start + size
            if at > end:
                raise UnreadableError("a message is cut off")
            elements += _LENGTH.pack(size)
            elements += data[start:at]
            count += 1
            if count > most:
                limits.check_elements(tensor.name, count)
    except IndexError:
        raise UnreadableError("a message is cut off") from None
    contents.element_count = count
    return at


def _number(data: memoryview, at: int) -> tuple[int, int]:
    try:
        return read_varint(data, at)
    except IndexError:
        raise UnreadableError("packed numbers are cut off") from None
