"""Writes infer responses, for unary calls and for streams (docs/reference/grpc.md#responses,
docs/reference/grpc.md#streams).

Fields stand in the order of their numbers, as protobuf writes them. A message comes as pieces to be sent one behind the
other, so that an output's bytes go out from where they lie. Data is always raw, and empty if it
is put into shared memory; typed contents are never written.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache

from ...engine.errors import InvalidArgumentError, TriremeError, UnsupportedError
from ...engine.job import Outcome
from ...engine.memory.tensors import is_in_place, put_in_place
from ...engine.request import InferenceResponse, ParameterValue
from ...engine.tensor import Buffer
from ..classification import classify
from ..pipeline import as_bytes, element_by_element
from .infer_request import DecodedGrpcInfer
from .wire import FIXED64, LENGTH, VARINT, tag

_INT32_MAX = 2**31 - 1
_INT64 = range(-(2**63), 2**63)
_UINT64_MASK = 2**64 - 1
_RAW = 6


def _varint(number: int) -> bytes:
    """An unsigned number: 7 bits a byte, low bits first."""
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)


@lru_cache(maxsize=1024)
def _opening(number: int, size: int) -> bytes:
    return _varint(tag(number, LENGTH)) + _varint(size)


def _delimited(number: int, payload: bytes) -> bytes:
    return _opening(number, len(payload)) + payload


def _text(number: int, text: str) -> bytes:
    """A string field; nothing if it is empty. What is no Unicode cannot be sent and becomes question marks."""
    return _delimited(number, text.encode("utf-8", "replace")) if text else b""


def _parameter(name: str, value: ParameterValue) -> bytes:
    """An entry of a map of ``InferParameter``, whose field has number 4 wherever responses have one."""
    if isinstance(value, bool):
        choice = _varint(tag(1, VARINT)) + _varint(value)
    elif isinstance(value, int) and value in _INT64:
        choice = _varint(tag(2, VARINT)) + _varint(value & _UINT64_MASK)
    elif isinstance(value, str):
        choice = _delimited(3, value.encode("utf-8", "replace"))
    elif isinstance(value, float):
        choice = _varint(tag(4, FIXED64)) + struct.pack("<d", value)
    else:
        raise UnsupportedError(f"response parameter '{name}' must be a bool, a 64-bit int, a string or a double")
    return _delimited(4, _delimited(1, name.encode("utf-8", "replace")) + _delimited(2, choice))


_FINAL = {final: _parameter("triton_final_response", final) for final in (False, True)}


def write_stream_response(outcome: Outcome, decoded: DecodedGrpcInfer, final: bool) -> list[Buffer]:
    """The ``ModelStreamInferResponse`` with what a request that was executed has come to.

    Args:
        outcome: an answer of the model, its error, or None if all that there is to say is that no more will follow.
        final: whether no other response to the request will follow.

    Raises:
        InternalError, InvalidArgumentError, UnsupportedError: as `write_infer_response`.
    """
    if outcome is None:
        return [_delimited(2, _echo(decoded, final))]
    if isinstance(outcome, TriremeError):
        return write_stream_error(outcome.message, decoded, final)
    return write_infer_response(outcome, decoded, final)


def write_stream_error(message: str, decoded: DecodedGrpcInfer, final: bool) -> list[Buffer]:
    """The ``ModelStreamInferResponse`` to a request whose execution failed. Arguments as `write_stream_response`."""
    return [_text(1, message) + _delimited(2, _echo(decoded, final))]


def write_stream_refusal(message: str, request_id: str) -> list[Buffer]:
    """The ``ModelStreamInferResponse`` to a request that was not executed: its id is all that is told of it."""
    return [_text(1, message) + _delimited(2, _text(3, request_id))]


def _echo(decoded: DecodedGrpcInfer, final: bool) -> bytes:
    """What a response without outputs tells of its request: the version as the request spells it."""
    request = decoded.request
    return _text(1, request.model_name) + _text(2, decoded.version_text) + _text(3, request.id) + _FINAL[final]


def takes_long(response: InferenceResponse, decoded: DecodedGrpcInfer) -> bool:
    """Whether an answer takes so long to write that this is done on a thread."""
    places, class_counts = decoded.places, decoded.class_counts
    for tensor in response.outputs:
        if class_counts and tensor.name in class_counts:
            if element_by_element(tensor):
                return True
            continue
        place = places.get(tensor.name)
        if place is not None and is_in_place(tensor, place):
            continue
        if as_bytes(tensor, copied=place is not None):
            return True
    return False


def write_infer_response(
    response: InferenceResponse, decoded: DecodedGrpcInfer, final: bool | None = None
) -> list[Buffer]:
    """The ``ModelInferResponse`` to a request that the model has answered.

    Args:
        final: of an answer on a stream, as for `write_stream_response`, as which it is written; else None.

    Raises:
        InternalError: an output does not fit into the shared memory given for it.
        InvalidArgumentError: an output cannot be classified, or the message would be too large for gRPC.
        UnsupportedError: a response parameter that the protocol cannot carry.
    """
    outputs = response.outputs
    if len(outputs) == 1 and not (response.parameters or decoded.places or decoded.class_counts):
        tensor = outputs[0]
        blob = tensor.buffer
        name, version, size = response.model_name, response.model_version, len(blob)
        if not response.id:
            return [_beginning(name, version, final, tensor.name, tensor.datatype.name, tensor.shape, size), blob]
        request_id = response.id.encode("utf-8", "replace")
        between = _between(final, tensor.name, tensor.datatype.name, tensor.shape, size)
        head = b"".join((_model(name, version), _opening(3, len(request_id)), request_id, between))
        return [_checked_opening(len(head) + size, final) + head, blob]
    head = _model(response.model_name, response.model_version)
    if response.id:
        head += _text(3, response.id)
    if response.parameters:
        head += _parameters(response.parameters)
    if final is not None:
        head += _FINAL[final]
    blobs: list[Buffer] = []
    for tensor in outputs:
        place = decoded.places.get(tensor.name)
        if place is not None:
            put_in_place(tensor, place)
        elif tensor.name in decoded.class_counts:
            model = decoded.model
            labels = model.labels.get(tensor.name, ())
            tensor = classify(tensor, decoded.class_counts[tensor.name], labels, model.config.max_batch_size > 0)
        head += _output(tensor.name, tensor.datatype.name, tensor.shape)
        blobs.append(tensor.buffer if place is None else b"")
    pieces: list[Buffer] = []
    for blob in blobs:
        pieces.append(head + _opening(_RAW, len(blob)))
        pieces.append(blob)
        head = b""
    if head:
        pieces.append(head)
    opening = _checked_opening(sum(map(len, pieces)), final)
    return [opening, *pieces] if opening else pieces


def _checked_opening(size: int, final: bool | None) -> bytes:
    """What stands before a ``ModelInferResponse`` of this size. Raises InvalidArgumentError: it is too large."""
    if size > _INT32_MAX:
        raise InvalidArgumentError(f"Response has byte size {size} which exceeds gRPC's byte size limit {_INT32_MAX}.")
    return b"" if final is None else _opening(2, size)


@lru_cache(maxsize=1024)
def _beginning(
    model: str, version: int, final: bool | None, name: str, datatype: str, shape: tuple[int, ...], size: int
) -> bytes:
    """Everything before the data of an only output, of `size` bytes, of a response without an id. Arguments and errors
    are those of `write_infer_response`."""
    head = _model(model, version) + _between(final, name, datatype, shape, size)
    return _checked_opening(len(head) + size, final) + head


@lru_cache(maxsize=1024)
def _between(final: bool | None, name: str, datatype: str, shape: tuple[int, ...], size: int) -> bytes:
    """What stands between the id of a response and the data of its only output, of `size` bytes."""
    return (b"" if final is None else _FINAL[final]) + _output(name, datatype, shape) + _opening(_RAW, size)


@lru_cache(maxsize=1024)
def _model(name: str, version: int) -> bytes:
    return _text(1, name) + _text(2, str(version))


@lru_cache(maxsize=1024)
def _output(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """An output without its data. Responses repeat names, and most repeat shapes."""
    dims = b"".join(_varint(dim) for dim in shape)
    return _delimited(5, _text(1, name) + _text(2, datatype) + (_delimited(3, dims) if dims else b""))


def _parameters(parameters: Mapping[str, ParameterValue]) -> bytes:
    return b"".join(_parameter(name, value) for name, value in parameters.items())
