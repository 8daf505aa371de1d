"""Decodes infer requests: from the fields of a protobuf message to an `InferenceRequest`
(docs/reference/grpc.md#input-tensors). Faults are found in the order in which Triton finds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...engine.description import ModelDescription
from ...engine.errors import InvalidArgumentError
from ...engine.memory.regions import Regions, RegionSlice
from ...engine.memory.tensors import RegionTensor, places_on_gpus
from ...engine.request import InferenceRequest
from ...engine.tensor import Buffer, Tensor
from ...engine.tensor_limits import DEFAULT_LIMITS, TensorLimits
from ...engine.validation import refuse_duplicates
from .infer_messages import WireInput, WireOutput, WireRequest, datatype_of, scan_infer_request
from .infer_parameters import find_slice, names_region, parse_version, read_class_count, read_parameters
from .wire_contents import FIELDS, WireContents


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
    """Typed contents as they would be sent raw; an error unless only the field for the datatype has elements.

    Raises:
        UnreadableError: a number is too long.
    """
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
        request.output_places = places_on_gpus(places)
    request.requested_outputs = tuple(dict.fromkeys(output.name for output in wire.outputs))
    return DecodedGrpcInfer(request, model, wire.model_version, class_counts, empty_final_response, places)


def _read_outputs(outputs: list[WireOutput], regions: Regions) -> tuple[dict[str, int], dict[str, RegionSlice]]:
    """The class counts of the outputs that are to be classified, and the places of those that are to go to shared
    memory; of an output listed twice, the first of each.

    Raises:
        InvalidArgumentError: a parameter of the wrong type, or shared memory together with another form, or a region
            that has no such part.
        NotFoundError: an output is to go to a region that is not registered.
    """
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
