"""Decodes infer requests: from the body and its headers to an `InferenceRequest` (docs/reference/http-inference.md).
`decoder` remembers what is repeated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....engine.datatypes import BY_NAME, BYTES, INVALID, DataType
from ....engine.description import ModelDescription
from ....engine.errors import InternalError, InvalidArgumentError
from ....engine.memory.regions import Regions, RegionSlice
from ....engine.memory.tensors import RegionTensor
from ....engine.request import InferenceRequest, ParameterValue
from ....engine.tensor import Buffer, Tensor
from ....engine.tensor_limits import DEFAULT_LIMITS, MAX_ELEMENTS, TensorLimits, bounded_product
from ...request_parameters import RESERVED_PREFIX
from ..json import reader as json_reader
from ..json.reader import converted, members_of, read_member
from ..json.tensor import tensor_from_json


@dataclass(frozen=True, slots=True)
class InferTerms:
    """On which terms infer requests are read.

    Attributes:
        limit_bytes: bound on JSON text, on a tensor given as JSON, on a raw request.
        limits: what one tensor may be like.
    """

    limit_bytes: int
    regions: Regions
    limits: TensorLimits = DEFAULT_LIMITS


@dataclass(slots=True)
class DecodedInfer:
    """What the client asks for.

    Attributes:
        forms, default_form: of the outputs listed, by name, and of others; shared by requests that ask for the same.
        in_regions: whether an input or an output is in shared memory, so that the same text may mean something else
            when it comes again.
        model: what was found of its model, by who has the request decoded.
    """

    request: InferenceRequest
    forms: Mapping[str, OutputForm]
    default_form: OutputForm
    in_regions: bool = False
    model: ModelDescription | None = None


def decode_infer(body: Buffer, json_length: int, model_name: str, version: int, terms: InferTerms) -> DecodedInfer:
    """The request that `body` holds.

    Args:
        body: as sent, unpacked. Binary tensors become views on it.
        json_length: how much of it is JSON, from `header_length`.
        version: as asked for in the path.

    Raises:
        TriremeError: docs/reference/http-inference.md, docs/reference/shared-memory.md; the first failure wins.
    """
    if json_length == 0:
        # The data of the model's only input (docs/reference/http-inference.md#raw-binary-requests).
        return DecodedInfer(InferenceRequest(model_name, version, raw_input=body), {}, AS_BINARY)
    view = memoryview(body)
    document = json_reader.parse(view[:json_length])
    return decode_document(document, view[json_length:], model_name, version, terms)


def decode_document(document: Any, blobs: memoryview, model_name: str, version: int, terms: InferTerms) -> DecodedInfer:
    """The request that a JSON document describes, and the bytes that follow it; see `decode_infer`."""
    members = document if type(document) is dict else {}
    request = InferenceRequest(model_name, version)
    if "id" in members:
        request.id = converted(json_reader.as_string, members["id"], "id")
    default_form = AS_JSON
    if "parameters" in members and read_parameters(members["parameters"], request):
        default_form = AS_BINARY
    inputs = read_member(json_reader.as_array, members, "inputs")
    request.inputs = read_inputs(inputs, blobs, model_name, terms)
    forms: dict[str, OutputForm] = {}
    if "outputs" in members:
        forms = read_outputs(converted(json_reader.as_array, members["outputs"], "outputs"), terms.regions)
        request.requested_outputs = tuple(forms)
    request.in_regions = any(isinstance(tensor, RegionTensor) for tensor in request.inputs)
    places = {name: form.place for name, form in forms.items() if form.place is not None}
    if places:
        request.output_places = places or None
    return DecodedInfer(request, forms, default_form, request.in_regions or bool(places))


# ---- inputs ----


def read_inputs(inputs: list[Any], blobs: memoryview, model_name: str, terms: InferTerms) -> list[Tensor]:
    """The tensors of a request, in order: of the JSON member ``inputs``, and views on the bytes that follow the text.

    Raises:
        InternalError: a member is missing or has the wrong type.
        InvalidArgumentError: no or several sources of data, bytes missing or left over, a bad shape or datatype;
            or a region has no such part.
        NotFoundError: an input is in a region that is not registered.
    """
    tensors: list[Tensor] = []
    at = 0
    end = len(blobs)
    for value in inputs:
        members = members_of(value)
        parameters = members_of(members.get("parameters"))
        _check_source(members, parameters)
        name = read_member(json_reader.as_string, members, "name")
        datatype = BY_NAME.get(read_member(json_reader.as_string, members, "datatype"), INVALID)
        shape = _read_shape(name, members, terms.limits)
        if "binary_data_size" not in parameters:
            place = find_slice(parameters, terms.regions)
            if place is not None:
                tensors.append(RegionTensor(name, datatype, shape, place))
            else:
                tensors.append(_from_json(name, datatype, shape, members.get("data"), terms))
            continue
        size = converted(json_reader.as_unsigned, parameters["binary_data_size"], "binary_data_size")
        stop = at + size
        if stop > end:
            raise InvalidArgumentError(
                f"unexpected size for input '{name}', expecting {stop - end} additional bytes for model '{model_name}'"
            )
        tensors.append(Tensor(name, datatype, shape, blobs[at:stop]))
        at = stop
    if at != end:
        raise InvalidArgumentError(f"unexpected additional input data for model '{model_name}'")
    return tensors


def _check_source(members: dict[str, Any], parameters: dict[str, Any]) -> None:
    """Exactly one member must say where the data is."""
    has_data = "data" in members
    has_binary = "binary_data_size" in parameters
    has_region = "shared_memory_region" in parameters
    if has_data + has_binary + has_region == 1:
        return
    found = " no field is set"
    if has_data or has_binary or has_region:
        present = ((has_data, "data"), (has_binary, "binary_data_size"), (has_region, "shared_memory_region"))
        found = " set" + "".join(f" '{name}'" for has, name in present if has)
    raise InvalidArgumentError(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But{found}"
    )


def _read_shape(name: str, members: dict[str, Any], limits: TensorLimits) -> tuple[int, ...]:
    dims = read_member(json_reader.as_array, members, "shape")
    limits.check_rank(name, len(dims))
    for dim in dims:
        converted(json_reader.as_unsigned, dim, "shape")
    return tuple(dims)


def _from_json(name: str, datatype: DataType, shape: tuple[int, ...], data: Any, terms: InferTerms) -> Tensor:
    limit_bytes = terms.limit_bytes
    size = bounded_product(shape) * datatype.size
    # A size beyond 64 bits has a text of its own, which the reader knows.
    if limit_bytes < size <= MAX_ELEMENTS:
        raise _too_large(name, size, limit_bytes)
    tensor = tensor_from_json(name, datatype, shape, data, terms.limits)
    if datatype is BYTES and tensor.nbytes > limit_bytes:
        raise _too_large(name, tensor.nbytes, limit_bytes)
    return tensor


def _too_large(name: str, size: int, limit_bytes: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of {limit_bytes} "
        "bytes. Use --http-max-input-size to increase the limit."
    )


# ---- outputs ----


_UINT32_MASK = 2**32 - 1


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How an output is to be returned: as bytes behind the JSON text or as JSON, or its top classes if `class_count` is
    not 0; or at a place in shared memory, instead of in the answer.
    """

    binary: bool = False
    class_count: int = 0
    place: RegionSlice | None = None


AS_JSON = OutputForm()
AS_BINARY = OutputForm(binary=True)


def read_outputs(outputs: list[Any], regions: Regions) -> dict[str, OutputForm]:
    """The forms of the outputs asked for (the JSON member ``outputs``), by name; of an output listed twice, the first.

    Raises:
        InternalError: a member is missing or has the wrong type.
        InvalidArgumentError: shared memory together with another form, or a region has no such part.
        NotFoundError: an output is to go to a region that is not registered.
    """
    forms: dict[str, OutputForm] = {}
    for value in outputs:
        name = read_member(json_reader.as_string, value, "name")
        form = _read_form(members_of(value.get("parameters")), regions)
        forms.setdefault(name, form)
    return forms


def _read_form(parameters: dict[str, Any], regions: Regions) -> OutputForm:
    if not parameters:
        return AS_JSON
    if "shared_memory_region" in parameters:
        _refuse_other_forms(parameters)
    class_count = 0
    if "classification" in parameters:
        # Triton keeps 32 bits of the count.
        class_count = _UINT32_MASK & converted(
            json_reader.as_unsigned, parameters["classification"], "classification", "set"
        )
    place = find_slice(parameters, regions)
    if place is not None:
        return OutputForm(place=place)
    binary = False
    if "binary_data" in parameters:
        binary = converted(json_reader.as_bool, parameters["binary_data"], "binary_data")
    if class_count:
        return OutputForm(binary, class_count)
    return AS_BINARY if binary else AS_JSON


def _refuse_other_forms(parameters: dict[str, Any]) -> None:
    """An output in shared memory has no other form."""
    if "classification" in parameters:
        raise InvalidArgumentError("Output can't set both 'shared_memory_region' and 'classification'")
    if "binary_data" in parameters and converted(json_reader.as_bool, parameters["binary_data"], "binary_data", "set"):
        raise InvalidArgumentError("Output can't set both 'shared_memory_region' and 'binary_data'")


# ---- parameters ----


_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)


def read_parameters(value: Any, request: InferenceRequest) -> bool:
    """Put the parameters of a request (the JSON member ``parameters``) into `request`.

    Returns:
        ``binary_data_output``: whether outputs that the client does not list are to be binary.

    Raises:
        InternalError: not an object, or a value of the wrong type for a name that the server knows.
        InvalidArgumentError: a reserved name, or a value that cannot be handed to a model.
    """
    if type(value) is not dict:
        raise InternalError("failed to get request params.: attempt to get members for non-object")
    binary_output = False
    for name, given in value.items():
        if name == "binary_data_output":
            binary_output = converted(json_reader.as_bool, given, name)
        elif name == "sequence_id":
            request.correlation_id = _correlation_id(given)
        elif name == "sequence_start":
            request.sequence_start = converted(json_reader.as_bool, given, name)
        elif name == "sequence_end":
            request.sequence_end = converted(json_reader.as_bool, given, name)
        elif name == "priority":
            request.priority = converted(json_reader.as_unsigned, given, name)
        elif name == "timeout":
            request.timeout_us = converted(json_reader.as_unsigned, given, name)
        elif name.startswith(RESERVED_PREFIX):
            raise InvalidArgumentError(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        else:
            request.parameters[name] = custom_parameter(name, given)
    return binary_output


def _correlation_id(value: Any) -> int | str:
    if type(value) is int and value in _UINT64:
        return value
    return converted(json_reader.as_string, value, "sequence_id")


def custom_parameter(name: str, value: Any) -> ParameterValue:
    """The value of a parameter that is handed to the model; an integer beyond 64 bits becomes a double.

    Raises:
        InvalidArgumentError: parameters cannot have such a value.
    """
    kind = type(value)
    if kind is int:
        return value if value in _INT64 else float(value)
    if kind is str or kind is bool or kind is float:
        return value
    raise InvalidArgumentError(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def find_slice(parameters: dict[str, Any], regions: Regions) -> RegionSlice | None:
    """Where in shared memory a tensor is to be, by its parameters; None if they name no region
    (docs/reference/shared-memory.md#tensors-in-regions).

    Raises:
        InternalError: one of them has the wrong type, with or without a region.
        NotFoundError: there is no such region.
        InvalidArgumentError: the region has no such part.
    """
    region = None
    if "shared_memory_region" in parameters:
        region = read_member(json_reader.as_string, parameters, "shared_memory_region")
    place = {"shared_memory_offset": 0, "shared_memory_byte_size": 0}
    for name in place:
        if name in parameters:
            place[name] = read_member(json_reader.as_unsigned, parameters, name)
    return None if region is None else regions.slice(region, *place.values())


# ---- where a body's text ends ----


_INTEGER = re.compile(r"[ \t]*([+-]?[0-9]+)")
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1

LENGTH_HEADER = "Inference-Header-Content-Length"


def header_length(text: bytes | None, body_length: int, name: str = LENGTH_HEADER) -> int:
    """How many bytes of the body are JSON, as the client has announced; 0 for a raw request.

    Args:
        text: of the announcement; None if there is none.
        name: what errors call it.

    Raises:
        InvalidArgumentError: it is not a number, or not one in range. As in Triton, what follows the number is ignored.
    """
    if text is None:
        return body_length
    if len(text) < 10 and text.isdigit():
        length = int(text)
        if length <= body_length:
            return length
    shown = text.decode("utf-8", "surrogateescape")
    number = _INTEGER.match(shown)
    if number is None:
        raise InvalidArgumentError(f"Unable to parse {name}, got: {shown}")
    digits = number[1]
    # int() refuses texts of thousands of digits, and such a number is out of range anyway.
    length = int(digits) if len(digits) <= 4000 else _INT32_MAX + 1
    if not _INT32_MIN <= length <= _INT32_MAX:
        bounds = f" [ {_INT32_MIN}, {_INT32_MAX} ]" if name == LENGTH_HEADER else ""
        raise InvalidArgumentError(f"Unable to parse {name}, value is out of range{bounds}, got: {shown}")
    if not 0 <= length <= body_length:
        raise InvalidArgumentError(f"inference header size should be in range (0, {body_length}), got: {shown}")
    return length
