"""`ModelInferRequest` as protobuf would read it, without protobuf: tensors stay where they were received.

Of a field that is not repeated the last one counts; repeated ones line up; a message that comes in several parts is the
parts merged; of two map entries with one key, and of the choices of a oneof, the last one counts.

Two bytes of a message can ask for an object of some hundred. So there are limits of how many parts a request may have,
and of what a text may be; `engine.tensor_limits` has those of tensors.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from ...engine.datatypes import BY_NAME, INVALID, DataType
from ...engine.errors import InvalidArgumentError
from ...engine.tensor import Buffer
from ...engine.tensor_limits import TensorLimits
from ..request_parameters import MAX_PARTS
from .wire import FIXED64, LENGTH, MAX_SIZE_BYTES, VARINT, UnreadableError, fields, read_text, read_varint, tag
from .wire_contents import NUMBERS, WireContents

_DOUBLE = struct.Struct("<d")
_LENGTH = struct.Struct("<I")
_INT64_SIGN = 2**63


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
        """One more of what `MAX_PARTS` counts.

        Raises:
            InvalidArgumentError: one too many.
        """
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
