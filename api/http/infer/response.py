"""Encodes infer responses: JSON by hand, binary tensors behind it, or in shared memory
(docs/reference/http-inference.md#response, docs/reference/shared-memory.md#tensors-in-regions)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ....engine.admission.large_requests import LARGE_BYTES
from ....engine.errors import UnsupportedError
from ....engine.memory.tensors import is_in_place, put_in_place
from ....engine.request import InferenceResponse, ParameterValue
from ....engine.tensor import Buffer, joined
from ...classification import classify
from ...pipeline import as_bytes, element_by_element
from ..exchange import BINARY, JSON, Answer, Headers
from ..json import writer as json_writer
from ..json.steps import give_way
from .request import AS_BINARY, DecodedInfer

_BINARY_END = b',"parameters":{"binary_data_size":%d}}'
_TEXT_LENGTH = b"Inference-Header-Content-Length"
_FEW_PIECES, _MANY_PIECES = 8, 64
_COPIED_BYTES = 1 << 20
_LARGE_BYTES = 65_536
"""A single output of this size is sent from where it lies, instead of being copied behind the JSON text."""


def encode_infer(response: InferenceResponse, decoded: DecodedInfer) -> Answer:
    """The answer to a request that the model has answered, in the forms in which the request wants its outputs.

    Raises:
        InternalError: an output does not fit into the shared memory given for it.
        InvalidArgumentError: an output cannot be given in the form asked for.
        UnsupportedError: a response parameter that JSON cannot carry.
    """
    outputs = response.outputs
    if len(outputs) == 1 and not (response.id or response.parameters):
        tensor = outputs[0]
        form = response.form
        known = None if form is None else form.encoded
        if known is not None and known[0] is decoded.forms and known[1] is decoded.default_form:
            return Answer(200, BINARY, b"".join((known[2], tensor.buffer)), known[3])
        if (
            decoded.forms.get(tensor.name, decoded.default_form) is AS_BINARY
            and 0 < len(blob := tensor.buffer) < _LARGE_BYTES
        ):
            name, version = response.model_name, response.model_version
            text, headers = _binary(name, version, tensor.name, tensor.datatype.name, tensor.shape, len(blob))
            if form is not None:
                form.encoded = decoded.forms, decoded.default_form, text, headers
            return Answer(200, BINARY, b"".join((text, blob)), headers)
    return _encode(response, decoded)


def _encode(response: InferenceResponse, decoded: DecodedInfer) -> Answer:
    """Any other answer; raises as `encode_infer`."""
    forms, default_form, outputs = decoded.forms, decoded.default_form, response.outputs
    pieces: list[Buffer] = [b""]  # the head, which comes last
    blobs: list[Buffer] = []
    between = b',"outputs":['
    closing = b',"outputs":[]}'
    for number, tensor in enumerate(outputs, 1):
        form = forms.get(tensor.name, default_form)
        if form.class_count:
            model = decoded.model
            assert model is not None, "the request was for one"
            labels = model.labels.get(tensor.name, ())
            tensor = classify(tensor, form.class_count, labels, model.config.max_batch_size > 0)
        if form.place is not None:
            put_in_place(tensor, form.place)
            end = b"}"
        elif form.binary:
            blob = tensor.buffer
            if blob:
                blobs.append(blob)
            end = _BINARY_END % len(blob)
        else:
            pieces += (between, _opening(tensor.name, tensor.datatype.name, tensor.shape), b',"data":')
            pieces += json_writer.tensor_pieces(tensor, b"}]}" if number == len(outputs) else b"}")
            between, closing = b",", b""
            continue
        pieces += (between, _opening(tensor.name, tensor.datatype.name, tensor.shape), end)
        between, closing = b",", b"]}"
    head = _head(response.model_name, response.model_version)
    if response.id:
        head = b'{"id":%b,%b' % (json_writer.string(response.id), head[1:])
    if response.parameters:
        head = b'%b,"parameters":%b' % (head, _parameters(response.parameters))
    pieces[0] = head
    if closing:
        pieces.append(closing)
    elif not blobs and len(pieces[-1]) > _COPIED_BYTES:
        *text, tail = pieces
        if sum(map(len, text)) <= _COPIED_BYTES:
            return Answer(200, JSON, b"".join(text), tail=tail)
    if len(pieces) > _MANY_PIECES or (len(pieces) > _FEW_PIECES and sum(map(len, pieces)) > _COPIED_BYTES):
        return _large(pieces, blobs, takes_long(response, decoded))
    text = b"".join(pieces)
    if not blobs:
        return Answer(200, JSON, text)
    headers = ((_TEXT_LENGTH, b"%d" % len(text)),)
    if len(blobs) == 1 and len(blobs[0]) >= _LARGE_BYTES:
        return Answer(200, BINARY, text, headers, tail=blobs[0])
    if sum(map(len, blobs)) > LARGE_BYTES:
        return Answer(200, BINARY, text, headers, tail=joined(blobs))
    return Answer(200, BINARY, b"".join((text, *blobs)), headers)


def takes_long(response: InferenceResponse, decoded: DecodedInfer) -> bool:
    """Whether `encode_infer` takes so long that it is called on a thread."""
    forms, default_form = decoded.forms, decoded.default_form
    several = len(response.outputs) > 1
    for tensor in response.outputs:
        form = forms.get(tensor.name, default_form)
        if form.place is not None:
            if not is_in_place(tensor, form.place) and as_bytes(tensor, copied=True):
                return True
        elif form.binary and not form.class_count:
            if as_bytes(tensor, copied=several):
                return True
        elif element_by_element(tensor):
            return True
    return False


def _large(pieces: list[Buffer], blobs: list[Buffer], on_thread: bool) -> Answer:
    """An answer whose text is too large to be copied again."""
    headers = ((_TEXT_LENGTH, b"%d" % sum(map(len, pieces))),) if blobs else ()
    pieces += blobs
    whole = joined(pieces, give_way if on_thread else None)
    return Answer(200, BINARY if blobs else JSON, b"", headers, tail=whole)


@lru_cache(maxsize=1024)
def _head(model_name: str, model_version: int) -> bytes:
    return b'{"model_name":%b,"model_version":"%d"' % (json_writer.string(model_name), model_version)


@lru_cache(maxsize=1024)
def _opening(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """An output up to where its data begins. Responses repeat names, and most repeat shapes."""
    dims = ",".join(map(str, shape)).encode()
    return b'{"name":%b,"datatype":"%b","shape":[%b]' % (json_writer.string(name), datatype.encode(), dims)


@lru_cache(maxsize=1024)
def _binary(
    model_name: str, model_version: int, name: str, datatype: str, shape: tuple[int, ...], size: int
) -> tuple[bytes, Headers]:
    """The text of an answer with one output of `size` bytes, which follow the text; and its headers."""
    output = _opening(name, datatype, shape) + _BINARY_END % size
    text = b'%b,"outputs":[%b]}' % (_head(model_name, model_version), output)
    return text, ((_TEXT_LENGTH, b"%d" % len(text)),)


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
