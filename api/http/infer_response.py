"""Encodes infer responses: JSON by hand, binary tensors behind it, or in shared memory (http.md §4.8, §4.12)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ...engine.description import ModelDescription
from ...engine.errors import UnsupportedError
from ...engine.request import ParameterValue
from ...engine.response import InferenceResponse
from ...engine.tensor import Buffer
from ..classification import classify
from . import json_writer
from .exchange import BINARY, JSON, Answer
from .infer_request import DecodedInfer

_LARGE_BYTES = 65_536
"""A single output of this size is sent from where it lies, instead of being copied behind the JSON text."""


def encode_infer(response: InferenceResponse, decoded: DecodedInfer, model: ModelDescription) -> Answer:
    """The answer to a request that the model has answered.

    Args:
        decoded: the request, for the forms in which it wants its outputs.
        model: for labels, and for whether there is a batch dimension.

    Raises:
        InternalError: an output does not fit into the shared memory given for it.
        InvalidArgumentError: an output cannot be given in the form asked for.
        UnsupportedError: a response parameter that JSON cannot carry.
    """
    forms = decoded.forms
    default_form = decoded.default_form
    outputs: list[bytes] = []
    blobs: list[Buffer] = []
    for tensor in response.outputs:
        form = forms.get(tensor.name, default_form)
        if form.class_count:
            labels = model.labels.get(tensor.name, ())
            tensor = classify(tensor, form.class_count, labels, model.config.max_batch_size > 0)
        if form.place is not None:
            form.place.write(tensor.name, tensor.buffer)
            data = b""
        elif form.binary:
            blob = tensor.buffer
            if blob:
                blobs.append(blob)
            data = b',"parameters":{"binary_data_size":%d}' % len(blob)
        else:
            data = b',"data":' + json_writer.tensor_data(tensor)
        outputs.append(b"%b%b}" % (_opening(tensor.name, tensor.datatype.name, tensor.shape), data))
    head = _head(response.model_name, response.model_version)
    if response.id:
        head = b'{"id":%b,%b' % (json_writer.string(response.id), head[1:])
    if response.parameters:
        head = b'%b,"parameters":%b' % (head, _parameters(response.parameters))
    text = b'%b,"outputs":[%b]}' % (head, b",".join(outputs))
    if not blobs:
        return Answer(200, JSON, text)
    headers = [(b"Inference-Header-Content-Length", b"%d" % len(text))]
    if len(blobs) == 1 and len(blobs[0]) >= _LARGE_BYTES:
        return Answer(200, BINARY, text, headers, tail=blobs[0])
    return Answer(200, BINARY, b"".join((text, *blobs)), headers)


@lru_cache(maxsize=1024)
def _head(model_name: str, model_version: int) -> bytes:
    return b'{"model_name":%b,"model_version":"%d"' % (json_writer.string(model_name), model_version)


@lru_cache(maxsize=1024)
def _opening(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """An output up to where its data begins. Responses repeat names, and most repeat shapes."""
    dims = ",".join(map(str, shape)).encode()
    return b'{"name":%b,"datatype":"%b","shape":[%b]' % (json_writer.string(name), datatype.encode(), dims)


def _parameters(parameters: Mapping[str, ParameterValue]) -> bytes:
    refuse_bytes(parameters)
    return json_writer.dumps(dict(parameters))


def refuse_bytes(parameters: Mapping[str, ParameterValue]) -> None:
    """What a model may put into its response's parameters, but JSON not.

    Raises:
        UnsupportedError: there is such a value.
    """
    for value in parameters.values():
        if not isinstance(value, (bool, int, float, str)):
            raise UnsupportedError(
                "Response parameter of type 'TRITONSERVER_PARAMETER_BYTES' is not currently supported"
            )
