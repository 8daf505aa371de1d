"""Decodes infer requests: from a protobuf message to an `InferenceRequest` (docs/reference/grpc.md#input-tensors)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...engine.description import ModelDescription
from ...engine.errors import InvalidArgumentError
from ...engine.memory.regions import Regions, RegionSlice
from ...engine.memory.tensors import RegionTensor, places_on_gpus
from ...engine.request import InferenceRequest
from ...engine.tensor import Buffer
from ...engine.tensor_limits import DEFAULT_LIMITS, TensorLimits
from ...engine.validation import refuse_duplicates
from .codec import UnreadableError
from .infer_contents import prepare_contents, read_inputs
from .infer_messages import WireOutput, WireRequest, read_infer_message, scan_infer_message
from .infer_parameters import find_slice, names_region, read_class_count, read_parameters
from .versions import parse_version
from .wire import MalformedMessageError

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
    try:
        return read_infer_message(message, limits)
    except MalformedMessageError:
        raise UnreadableError from None


def scan_infer_request(message: Buffer, limits: TensorLimits) -> WireRequest:
    """The same, except that nothing is unpacked yet: for `unpack_infer_request`."""
    try:
        return scan_infer_message(message, limits)
    except MalformedMessageError:
        raise UnreadableError from None


def unpack_infer_request(request: WireRequest) -> None:
    """Make of typed contents what they would be if they were sent raw.

    Raises:
        UnreadableError: a number is too long.
    """
    try:
        request.unpack()
    except MalformedMessageError:
        raise UnreadableError from None
    prepare_contents(request)


def decode_infer(wire: WireRequest, describe: Describe, regions: Regions) -> DecodedGrpcInfer:
    """What a request means. Its faults are found in the order in which Triton finds them: the version, the model,
    parameters, an input given twice, the inputs' data, the outputs.

    Args:
        regions: shared memory, where tensors may be.

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
