"""Decodes infer requests: from the fields of a protobuf message to an `InferenceRequest`
(docs/reference/grpc.md#input-tensors, docs/reference/grpc.md#request-parameters, docs/reference/grpc.md#versions).
Faults are found in the order in which Triton finds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...engine.description import ModelDescription
from ...engine.errors import InvalidArgumentError
from ...engine.memory.regions import Regions, RegionSlice
from ...engine.memory.tensors import RegionTensor
from ...engine.request import LATEST, InferenceRequest
from ...engine.tensor import Buffer, Tensor
from ...engine.tensor_limits import DEFAULT_LIMITS, TensorLimits
from ...engine.validation import refuse_duplicates
from ..request_parameters import RESERVED_PREFIX
from .infer_messages import (
    FIELDS,
    ParameterChoice,
    Parameters,
    UnsignedInt,
    WireContents,
    WireInput,
    WireOutput,
    WireRequest,
    begun_names,
    datatype_of,
    scan_infer_request,
)

_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]+)")
_INT64_MAX = 2**63 - 1
_DIGITS = 19


def model_of(beginning: bytes) -> tuple[str, int] | None:
    """The model and version that a request asks for, as far as the first bytes of its message say; None if they do not
    begin with the model's name, as those of all clients do that write fields in order."""
    name, version = begun_names(beginning)
    try:
        return (name, parse_version(version)) if name else None
    except InvalidArgumentError:
        return None


def parse_version(text: str) -> int:
    """The version that a client asks for; `LATEST` if the text is empty. What follows the number is ignored.

    Raises:
        InvalidArgumentError: it is no number of 64 bits, or a negative one.
    """
    if not text:
        return LATEST
    number = _INTEGER.match(text)
    version = _INT64_MAX + 2
    if number is not None and len(number[2]) <= _DIGITS:
        version = int(number[1] + number[2])
    if not -_INT64_MAX - 1 <= version <= _INT64_MAX:
        raise InvalidArgumentError(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if version < 0:
        raise InvalidArgumentError(
            f"invalid model version specified '{text}' , version should be an integral value > 0"  # sic: Triton
        )
    return version


EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"

_UINT64_MASK = 2**64 - 1
REGION = "shared_memory_region"
_OFFSET = "shared_memory_offset"
_BYTE_SIZE = "shared_memory_byte_size"


def read_parameters(parameters: Parameters, request: InferenceRequest) -> bool:
    """Put the parameters of a request into `request`. Like Triton, take 64 bits of a negative number as unsigned.

    Returns:
        Whether an empty final response is wanted.

    Raises:
        InvalidArgumentError: a value of a type that its name does not allow, or a reserved name.
    """
    empty_final_response = False
    for name, value in parameters.items():
        if name == "sequence_id":
            request.correlation_id = _correlation_id(value)
        elif name == "sequence_start":
            request.sequence_start = _flag(name, value)
        elif name == "sequence_end":
            request.sequence_end = _flag(name, value)
        elif name == "priority":
            request.priority = _priority(value)
        elif name == "timeout":
            if type(value) is not int:
                raise _bad_type(name, "int64_param.")
            request.timeout_us = value & _UINT64_MASK
        elif name == EMPTY_FINAL_RESPONSE:
            empty_final_response = _flag(name, value)
        elif name.startswith(RESERVED_PREFIX):
            raise InvalidArgumentError(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {EMPTY_FINAL_RESPONSE}"
            )
        elif value is None or type(value) is UnsignedInt:
            raise _bad_type(name, "int64_param, bool_param, or string_param.")
        else:
            request.parameters[name] = value
    return empty_final_response


def names_region(parameters: Parameters, tensor: str) -> bool:
    """Whether a tensor is to lie in shared memory, going by its parameters.

    Raises:
        InvalidArgumentError: they are incomplete or of the wrong type.
    """
    if REGION not in parameters:
        for name in (_OFFSET, _BYTE_SIZE):
            if name in parameters:
                raise InvalidArgumentError(
                    f"'{name}' can not be specified without '{REGION}' parameter for tensor '{tensor}'"
                )
        return False
    for name, kind, choice in ((REGION, str, "string_param"), (_OFFSET, int, "int64_param")):
        if name in parameters and type(parameters[name]) is not kind:
            raise _bad_type(name, f"{choice}.", f" for tensor '{tensor}'")
    if _BYTE_SIZE not in parameters:
        raise InvalidArgumentError(
            f"'{_BYTE_SIZE}' must be specified along with '{REGION}' parameter for tensor '{tensor}'"
        )
    if type(parameters[_BYTE_SIZE]) is not int:
        raise _bad_type(_BYTE_SIZE, "int64_param.", f" for tensor '{tensor}'")
    return True


def find_slice(parameters: Parameters, regions: Regions) -> RegionSlice:
    """Where in shared memory a tensor is to be, whose parameters name a region
    (docs/reference/shared-memory.md#tensors-in-regions).

    Raises:
        NotFoundError: there is no such region.
        InvalidArgumentError: the region has no such part.
    """
    region, offset, byte_size = parameters[REGION], parameters.get(_OFFSET, 0), parameters[_BYTE_SIZE]
    assert isinstance(region, str), "names_region has looked at the types"
    assert isinstance(offset, int)
    assert isinstance(byte_size, int)
    return regions.slice(region, offset & _UINT64_MASK, byte_size & _UINT64_MASK)


def read_class_count(parameters: Parameters) -> int | None:
    """How many top classes to return in place of an output; None for the output itself.

    Raises:
        InvalidArgumentError: not a positive ``int64_param``.
    """
    if "classification" not in parameters:
        return None
    count = parameters["classification"]
    if type(count) is not int:
        raise _bad_type("classification", "int64_param")
    if count <= 0:
        raise InvalidArgumentError("invalid value for 'classification' parameter, expected >= 0")  # sic: Triton
    return count & (2**32 - 1)  # all that Triton keeps of it


def _correlation_id(value: ParameterChoice) -> int | str:
    if type(value) is int:
        return value & _UINT64_MASK
    if type(value) is str:
        return value
    raise _bad_type("sequence_id", "int64_param or string_param.")


def _flag(name: str, value: ParameterChoice) -> bool:
    if type(value) is bool:
        return value
    raise _bad_type(name, "bool_param.")


def _priority(value: ParameterChoice) -> int:
    if type(value) is UnsignedInt:
        return int(value)
    if type(value) is not int:
        raise _bad_type("priority", "int64_param or uint64_param.")
    if value < 0:
        raise InvalidArgumentError("invalid value for 'priority', expected value >= 0.")
    return value


def _bad_type(name: str, expected: str, tensor: str = "") -> InvalidArgumentError:
    return InvalidArgumentError(f"invalid value type for '{name}' parameter{tensor}, expected {expected}")


def read_inputs(request: WireRequest, regions: Regions) -> list[Tensor]:
    """The tensors of a request, in order. Raw ones are views on the message, and so are FP32 and FP64 contents;
    those in shared memory are read later.

    Raises:
        InvalidArgumentError: no data, several sources of data, contents that do not fit the datatype, or a region that
            has no such part.
        NotFoundError: an input is in a region that is not registered.
    """
    tensors: list[Tensor] = []
    raw = iter(request.raw)
    for given in request.inputs:
        datatype = datatype_of(given)
        if given.parameters and names_region(given.parameters, given.name):
            if given.contents is not None:
                where = _where(given, request)
                raise InvalidArgumentError(f"unexpected 'content' provided when using shared memory {where}")
            place = find_slice(given.parameters, regions)
            tensors.append(RegionTensor(given.name, datatype, tuple(given.shape), place))
            continue
        data: Buffer | InvalidArgumentError | None
        if given.contents is None:
            data = next(raw, None)
            if data is None:
                raise InvalidArgumentError(f"unable to find data {_where(given, request)} in request.")
        elif request.raw:
            raise InvalidArgumentError(
                f"contents field must not be specified when using raw_input_contents for '{given.name}' for model "
                f"'{request.model_name}'"
            )
        else:
            data = given.prepared
            assert data is not None, "it has been unpacked"
            if isinstance(data, InvalidArgumentError):
                raise data
        tensors.append(Tensor(given.name, datatype, tuple(given.shape), data))
    return tensors


def _pack(contents: WireContents, given: WireInput, request: WireRequest) -> Buffer | InvalidArgumentError:
    """Typed contents as they would be sent raw; an error unless only the field for the datatype has elements. Raises
    UnreadableError: a number is too long."""
    datatype = datatype_of(given)
    where = _where(given, request)
    data: Buffer | None = None
    error: str | None = None
    for number, kind, datatypes_allowed in FIELDS:
        found = contents.unpack(number, datatype)
        if found is None or error is not None:
            continue
        if data is not None:
            error = f"unexpected explicit tensor data {where}, binary data was already supplied."
        elif datatype.name not in datatypes_allowed:
            error = f"unexpected explicit tensor data {where} of type '{kind}', expected datatype '{datatype.name}'"
        data = found
    if error is not None:
        return InvalidArgumentError(error)
    return b"" if data is None else data


def _where(given: WireInput, request: WireRequest) -> str:
    return f"for input tensor '{given.name}' for model '{request.model_name}'"


Describe = Callable[[str, int], ModelDescription]
"""Finds the model that a request is for, by name and version; raises `TriremeError` if requests for it are refused."""


@dataclass(slots=True)
class DecodedGrpcInfer:
    """What the client asks for.

    Attributes:
        request: for the engine.
        model: which model it is for.
        version_text: the version as the request spells it, for errors on a stream.
        class_counts: how many top classes to return in place of an output, by its name.
        enable_empty_final_response: whether a final response is wanted that has nothing to say but that it is final.
        places: where in shared memory to put an output, instead of into the answer, by its name.
    """

    request: InferenceRequest
    model: ModelDescription
    version_text: str
    class_counts: Mapping[str, int]
    enable_empty_final_response: bool
    places: Mapping[str, RegionSlice] = field(default_factory=dict)


def read_infer_request(message: Buffer, limits: TensorLimits = DEFAULT_LIMITS) -> WireRequest:
    """The fields of a request.

    Raises:
        UnreadableError: the message is no ``ModelInferRequest``.
        InvalidArgumentError: it has more of something than there may be.
    """
    request = scan_infer_request(message, limits)
    unpack_infer_request(request)
    return request


def unpack_infer_request(request: WireRequest) -> None:
    """Make of typed contents what they would be if they were sent raw. That may take long.

    Raises:
        UnreadableError: a number is too long.
    """
    for given in request.inputs:
        if given.contents is not None:
            given.prepared = _pack(given.contents, given, request)


def decode_infer(wire: WireRequest, describe: Describe, regions: Regions) -> DecodedGrpcInfer:
    """What a request means. Its faults are found in the order in which Triton finds them: the version, the model,
    parameters, an input given twice, the inputs' data, the outputs.

    Raises:
        TriremeError: what `describe` raises.
        InvalidArgumentError, NotFoundError: docs/reference/grpc.md#input-tensors, first failure wins.
    """
    version = parse_version(wire.model_version)
    model = describe(wire.model_name, version)
    request = InferenceRequest(wire.model_name, version, wire.id)
    empty_final_response = read_parameters(wire.parameters, request)
    refuse_duplicates(wire.id, (given.name for given in wire.inputs))
    request.inputs = read_inputs(wire, regions)
    request.in_regions = any(isinstance(tensor, RegionTensor) for tensor in request.inputs)
    class_counts, places = _read_outputs(wire.outputs, regions)
    if places:
        request.output_places = places or None
    request.requested_outputs = tuple(dict.fromkeys(output.name for output in wire.outputs))
    return DecodedGrpcInfer(request, model, wire.model_version, class_counts, empty_final_response, places)


def _read_outputs(outputs: list[WireOutput], regions: Regions) -> tuple[dict[str, int], dict[str, RegionSlice]]:
    """The class counts of the outputs that are to be classified, and the places of those that are to go to shared
    memory; of an output listed twice, the first of each. Raises as `decode_infer`."""
    class_counts: dict[str, int] = {}
    places: dict[str, RegionSlice] = {}
    for output in outputs:
        parameters = output.parameters
        if not parameters:
            continue
        has_region = names_region(parameters, output.name)
        class_count = read_class_count(parameters)
        if has_region:
            if class_count is not None:
                raise InvalidArgumentError("output can't set both 'shared_memory_region' and 'classification'")
            places.setdefault(output.name, find_slice(parameters, regions))
        elif class_count is not None:
            class_counts.setdefault(output.name, class_count)
    return class_counts, places
