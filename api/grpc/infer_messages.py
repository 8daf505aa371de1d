"""`ModelInferRequest` as protobuf would read it, without protobuf: tensors stay where they were received.

Of a field that is not repeated the last one counts; repeated ones line up; a message that comes in several parts is the
parts merged; of two map entries with one key, and of the choices of a oneof, the last one counts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from ...engine.tensor import Buffer
from .packed import unpack_varints
from .wire import FIXED32, FIXED64, LENGTH, VARINT, MalformedMessageError, fields, read_varint, tag

_DOUBLE = struct.Struct("<d")
_INT64_SIGN = 2**63
_UINT64 = np.dtype("<u8")


class UnsignedInt(int):
    """The value of a ``uint64_param``, which is another choice than an ``int64_param``."""


ParameterChoice = bool | int | UnsignedInt | str | float | None
"""An ``InferParameter``: the type says which choice was made, None that none was."""

Parameters = dict[str, ParameterChoice]


@dataclass(slots=True)
class WireContents:
    """Typed contents of a tensor.

    Attributes:
        packed: what the message holds of each numeric field that has elements, by field number.
        numbers: the same unpacked: one-dimensional, unsigned, as wide as the field's type, eight bytes for a bool.
        elements: ``bytes_contents``.
    """

    packed: dict[int, list[memoryview]] = field(default_factory=dict)
    numbers: dict[int, np.ndarray] = field(default_factory=dict)
    elements: list[bytes] = field(default_factory=list)

    def unpack(self) -> None:
        """Fill `numbers`.

        Raises:
            MalformedMessageError: a number is too long.
        """
        for number, chunks in self.packed.items():
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            wire_type, dtype = _CONTENT_NUMBERS[number]
            varints = wire_type == VARINT
            self.numbers[number] = unpack_varints(data, dtype) if varints else np.frombuffer(data, dtype)


@dataclass(slots=True)
class WireInput:
    name: str = ""
    datatype: str = ""
    shape: list[int] = field(default_factory=list)
    parameters: Parameters = field(default_factory=dict)
    contents: WireContents | None = None


@dataclass(slots=True)
class WireOutput:
    name: str = ""
    parameters: Parameters = field(default_factory=dict)


@dataclass(slots=True)
class WireRequest:
    """The fields of a ``ModelInferRequest``; `raw` is ``raw_input_contents``, views on the message."""

    model_name: str = ""
    model_version: str = ""
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    inputs: list[WireInput] = field(default_factory=list)
    outputs: list[WireOutput] = field(default_factory=list)
    raw: list[memoryview] = field(default_factory=list)


_MODEL_NAME, _MODEL_VERSION, _ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = (tag(n, LENGTH) for n in range(1, 8))
_NAME, _DATATYPE, _SHAPE, _INPUT_PARAMETERS, _CONTENTS = (tag(n, LENGTH) for n in range(1, 6))
_SHAPE_DIM = tag(3, VARINT)
_OUTPUT_PARAMETERS = tag(2, LENGTH)
_KEY, _VALUE = tag(1, LENGTH), tag(2, LENGTH)
_BOOL_PARAM, _INT64_PARAM, _STRING_PARAM = tag(1, VARINT), tag(2, VARINT), tag(3, LENGTH)
_DOUBLE_PARAM, _UINT64_PARAM = tag(4, FIXED64), tag(5, VARINT)

_CONTENT_NUMBERS = {
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

_BYTES_CONTENTS = tag(8, LENGTH)


def read_infer_message(message: Buffer) -> WireRequest:
    """The request that `message` holds.

    Raises:
        MalformedMessageError: it holds none.
    """
    data = memoryview(message)
    request = WireRequest()
    for key, start, stop in fields(data, 0, len(data)):
        if key == _RAW:
            request.raw.append(data[start:stop])
        elif key == _INPUTS:
            request.inputs.append(_read_input(data, start, stop))
        elif key == _OUTPUTS:
            request.outputs.append(_read_output(data, start, stop))
        elif key == _PARAMETERS:
            _read_parameter(data, start, stop, request.parameters)
        elif key == _MODEL_NAME:
            request.model_name = _text(data, start, stop)
        elif key == _MODEL_VERSION:
            request.model_version = _text(data, start, stop)
        elif key == _ID:
            request.id = _text(data, start, stop)
    for tensor in request.inputs:
        if tensor.contents is not None:
            tensor.contents.unpack()
    return request


def _read_input(data: memoryview, at: int, end: int) -> WireInput:
    tensor = WireInput()
    for key, start, stop in fields(data, at, end):
        if key == _NAME:
            tensor.name = _text(data, start, stop)
        elif key == _DATATYPE:
            tensor.datatype = _text(data, start, stop)
        elif key in (_SHAPE, _SHAPE_DIM):
            _read_dims(data, start, stop, tensor.shape)
        elif key == _INPUT_PARAMETERS:
            _read_parameter(data, start, stop, tensor.parameters)
        elif key == _CONTENTS:
            if tensor.contents is None:
                tensor.contents = WireContents()
            _read_contents(data, start, stop, tensor.contents)
    return tensor


def _read_output(data: memoryview, at: int, end: int) -> WireOutput:
    tensor = WireOutput()
    for key, start, stop in fields(data, at, end):
        if key == _NAME:
            tensor.name = _text(data, start, stop)
        elif key == _OUTPUT_PARAMETERS:
            _read_parameter(data, start, stop, tensor.parameters)
    return tensor


def _read_dims(data: memoryview, at: int, end: int, shape: list[int]) -> None:
    """Packed dimensions, or one that is not packed, whose payload looks the same."""
    if end - at > 64:
        shape += unpack_varints(data[at:end], _UINT64).view("<i8").tolist()
        return
    while at < end:
        dim = data[at]
        if dim < 0x80:
            at += 1
            shape.append(dim)
        else:
            dim, at = _number(data, at)
            shape.append(dim if dim < _INT64_SIGN else dim - 2 * _INT64_SIGN)
    if at > end:
        raise MalformedMessageError("packed numbers are cut off")


def _read_parameter(data: memoryview, at: int, end: int, parameters: Parameters) -> None:
    """One entry of a map of parameters."""
    name = ""
    value: ParameterChoice = None
    for key, start, stop in fields(data, at, end):
        if key == _KEY:
            name = _text(data, start, stop)
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
            value = _text(data, start, stop)
        elif key == _DOUBLE_PARAM:
            (value,) = _DOUBLE.unpack_from(data, start)
        elif key == _UINT64_PARAM:
            value = UnsignedInt(_number(data, start)[0])
    return value


def _read_contents(data: memoryview, at: int, end: int, contents: WireContents) -> None:
    """Numbers come packed, many in one field, or each in a field of its own; put together they look the same."""
    for key, start, stop in fields(data, at, end):
        number, wire_type = key >> 3, key & 7
        if key == _BYTES_CONTENTS:
            contents.elements.append(bytes(data[start:stop]))
        elif number in _CONTENT_NUMBERS and start < stop:
            element_type, dtype = _CONTENT_NUMBERS[number]
            if wire_type not in (LENGTH, element_type):
                continue
            cut = data[stop - 1] >= 0x80 if element_type == VARINT else (stop - start) % dtype.itemsize
            if cut:
                raise MalformedMessageError("packed numbers are cut off")
            contents.packed.setdefault(number, []).append(data[start:stop])


def _number(data: memoryview, at: int) -> tuple[int, int]:
    try:
        return read_varint(data, at)
    except IndexError:
        raise MalformedMessageError("packed numbers are cut off") from None


def _text(data: memoryview, start: int, stop: int) -> str:
    try:
        return str(data[start:stop], "utf-8")
    except UnicodeDecodeError:
        raise MalformedMessageError("a text is not UTF-8") from None
