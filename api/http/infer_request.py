"""Decodes infer requests: from the body and its headers to an `InferenceRequest` (docs/reference/http-inference.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...engine.description import ModelDescription
from ...engine.errors import InvalidArgumentError
from ...engine.region_tensor import RegionTensor, places_on_gpus
from ...engine.request import InferenceRequest
from ...engine.shared_memory import Regions
from ...engine.tensor import Buffer
from ...engine.tensor_limits import TensorLimits
from . import json_reader
from .infer_inputs import read_inputs
from .infer_outputs import AS_BINARY, AS_JSON, OutputForm, read_outputs
from .infer_parameters import read_parameters
from .json_access import converted, read_member

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_INTEGER = re.compile(r"[ \t]*([+-]?[0-9]+)")


@dataclass(slots=True)
class DecodedInfer:
    """What the client asks for.

    Attributes:
        request: for the engine.
        forms: forms of the outputs listed, by name; shared by requests that ask for the same.
        default_form: form of outputs that are not listed.
        in_regions: whether an input or an output is in shared memory, so that the same text may mean something else
            when it comes again.
        model: what was found of its model, by who has the request decoded.
    """

    request: InferenceRequest
    forms: Mapping[str, OutputForm]
    default_form: OutputForm
    in_regions: bool = False
    model: ModelDescription | None = None


def header_length(text: bytes | None, body_length: int) -> int:
    """How many bytes of the body are JSON; 0 for a raw request.

    Args:
        text: the header ``Inference-Header-Content-Length``, None if there is none.

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
        raise InvalidArgumentError(f"Unable to parse Inference-Header-Content-Length, got: {shown}")
    digits = number[1]
    # int() refuses texts of thousands of digits, and such a number is out of range anyway.
    length = int(digits) if len(digits) <= 4000 else _INT32_MAX + 1
    if not _INT32_MIN <= length <= _INT32_MAX:
        raise InvalidArgumentError(
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            f"[ {_INT32_MIN}, {_INT32_MAX} ], got: {shown}"
        )
    if not 0 <= length <= body_length:
        raise InvalidArgumentError(f"inference header size should be in range (0, {body_length}), got: {shown}")
    return length


def decode_infer(
    body: Buffer,
    json_length: int,
    model_name: str,
    version: int,
    limit_bytes: int,
    regions: Regions,
    limits: TensorLimits,
) -> DecodedInfer:
    """The request that `body` holds.

    Args:
        body: as sent, unpacked. Binary tensors become views on it.
        json_length: how much of it is JSON, from `header_length`.
        version: as asked for in the path.
        limit_bytes: bound on a tensor given as JSON.
        regions: shared memory, where tensors may be.
        limits: what one tensor may be like.

    Raises:
        InternalError, InvalidArgumentError, NotFoundError: docs/reference/http-inference.md,
            docs/reference/shared-memory.md, first failure wins.
    """
    if json_length == 0:
        return _decode_raw(body, model_name, version)
    view = memoryview(body)
    document = json_reader.parse(view[:json_length])
    return decode_document(document, view[json_length:], model_name, version, limit_bytes, regions, limits)


def decode_document(
    document: Any,
    blobs: memoryview,
    model_name: str,
    version: int,
    limit_bytes: int,
    regions: Regions,
    limits: TensorLimits,
) -> DecodedInfer:
    """The request that a JSON document describes; see `decode_infer`.

    Args:
        blobs: the bytes that follow the text.
    """
    members = document if type(document) is dict else {}
    request = InferenceRequest(model_name, version)
    if "id" in members:
        request.id = converted(json_reader.as_string, members["id"], "id")
    default_form = AS_JSON
    if "parameters" in members and read_parameters(members["parameters"], request):
        default_form = AS_BINARY
    inputs = read_member(json_reader.as_array, members, "inputs")
    request.inputs = read_inputs(inputs, blobs, model_name, limit_bytes, regions, limits)
    forms: dict[str, OutputForm] = {}
    if "outputs" in members:
        forms = read_outputs(converted(json_reader.as_array, members["outputs"], "outputs"), regions)
        request.requested_outputs = tuple(forms)
    request.in_regions = any(isinstance(tensor, RegionTensor) for tensor in request.inputs)
    places = {name: form.place for name, form in forms.items() if form.place is not None}
    if places:
        request.output_places = places_on_gpus(places)
    return DecodedInfer(request, forms, default_form, request.in_regions or bool(places))


def _decode_raw(body: Buffer, model_name: str, version: int) -> DecodedInfer:
    """A body that is the data of the model's only input (docs/reference/http-inference.md#raw-binary-requests)."""
    return DecodedInfer(InferenceRequest(model_name, version, raw_input=body), {}, AS_BINARY)
