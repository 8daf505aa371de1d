"""Writes infer responses, for unary calls and for streams (docs/reference/grpc.md#responses,
docs/reference/grpc.md#streams).

Fields stand in the order of their numbers, as protobuf writes them. A message comes as pieces to be sent one behind the
other, so that an output's bytes go out from where they lie. Data is always raw, and empty if it
is put into shared memory; typed contents are never written.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ...engine.errors import InvalidArgumentError, TriremeError
from ...engine.job import Outcome
from ...engine.memory.tensors import is_in_place, put_in_place
from ...engine.request import InferenceResponse, ParameterValue
from ...engine.tensor import Buffer
from ..classification import classify
from ..pipeline import as_bytes, element_by_element
from .infer_request import DecodedGrpcInfer
from .wire_writer import delimited, opening, parameter, text_field, varint

_INT32_MAX = 2**31 - 1
_RAW = 6


FINAL = "triton_final_response"
KINDS_WANTED = "trireme-error-kinds"
"""Metadata of a stream whose client, a gateway, wants to know more of errors than their texts."""
ERROR_KIND, ERROR_REFUSAL = "trireme_error_kind", "trireme_error_refusal"
"""Parameters that say it: the name of the `ErrorKind`, and the `RefusalReason` of what was not executed."""

_FINAL = {final: parameter(FINAL, final) for final in (False, True)}


def write_stream_response(outcome: Outcome, decoded: DecodedGrpcInfer, final: bool, kind: bytes = b"") -> list[Buffer]:
    """The ``ModelStreamInferResponse`` with what a request that was executed has come to.

    Args:
        outcome: an answer of the model, its error, or None if all that there is to say is that no more will follow.
        final: whether no other response to the request will follow.
        kind: from `error_kind`.

    Raises:
        InternalError, InvalidArgumentError, UnsupportedError: as `write_infer_response`.
    """
    if outcome is None:
        return [delimited(2, _echo(decoded, final))]
    if isinstance(outcome, TriremeError):
        return write_stream_error(outcome.message, decoded, final, kind)
    return write_infer_response(outcome, decoded, final)


def write_stream_error(message: str, decoded: DecodedGrpcInfer, final: bool, kind: bytes = b"") -> list[Buffer]:
    """The ``ModelStreamInferResponse`` to a request whose execution failed. Arguments as `write_stream_response`.

    Args:
        kind: from `error_kind`.
    """
    return [text_field(1, message) + delimited(2, _echo(decoded, final) + kind)]


def write_stream_refusal(message: str, request_id: str, kind: bytes = b"") -> list[Buffer]:
    """The ``ModelStreamInferResponse`` to a request that was not executed: its id is all that is told of it, and its
    `kind`."""
    return [text_field(1, message) + delimited(2, text_field(3, request_id) + kind)]


def error_kind(error: TriremeError, refused: bool) -> bytes:
    """What `KINDS_WANTED` asks for, of an error on a stream."""
    refusal = error.refusal_reason if refused else None
    kind = parameter(ERROR_KIND, error.kind.name)
    return kind if refusal is None else kind + _FINAL[True] + parameter(ERROR_REFUSAL, refusal.value)


def _echo(decoded: DecodedGrpcInfer, final: bool) -> bytes:
    """What a response without outputs tells of its request: the version as the request spells it."""
    request = decoded.request
    return (
        text_field(1, request.model_name)
        + text_field(2, decoded.version_text)
        + text_field(3, request.id)
        + _FINAL[final]
    )


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
    if response.message is not None and final is None and not (decoded.places or decoded.class_counts):
        return [response.message]
    outputs = response.outputs
    if len(outputs) == 1 and not (response.parameters or decoded.places or decoded.class_counts):
        tensor = outputs[0]
        blob = tensor.buffer
        name, version, size = response.model_name, response.model_version, len(blob)
        if not response.id:
            return [_beginning(name, version, final, tensor.name, tensor.datatype.name, tensor.shape, size), blob]
        request_id = response.id.encode("utf-8", "replace")
        between = _between(final, tensor.name, tensor.datatype.name, tensor.shape, size)
        head = b"".join((_model(name, version), opening(3, len(request_id)), request_id, between))
        return [_checked_opening(len(head) + size, final) + head, blob]
    head = _model(response.model_name, response.model_version)
    if response.id:
        head += text_field(3, response.id)
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
        head += tensor_field(tensor.name, tensor.datatype.name, tensor.shape)
        blobs.append(tensor.buffer if place is None else b"")
    pieces: list[Buffer] = []
    for blob in blobs:
        pieces.append(head + opening(_RAW, len(blob)))
        pieces.append(blob)
        head = b""
    if head:
        pieces.append(head)
    before = _checked_opening(sum(map(len, pieces)), final)
    return [before, *pieces] if before else pieces


def _checked_opening(size: int, final: bool | None) -> bytes:
    """What stands before a ``ModelInferResponse`` of this size. Raises InvalidArgumentError: it is too large."""
    if size > _INT32_MAX:
        raise InvalidArgumentError(f"Response has byte size {size} which exceeds gRPC's byte size limit {_INT32_MAX}.")
    return b"" if final is None else opening(2, size)


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
    return (b"" if final is None else _FINAL[final]) + tensor_field(name, datatype, shape) + opening(_RAW, size)


@lru_cache(maxsize=1024)
def _model(name: str, version: int) -> bytes:
    return text_field(1, name) + text_field(2, str(version))


@lru_cache(maxsize=1024)
def tensor_field(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """An output, or a request's input, without its data. They repeat names, and most repeat shapes."""
    dims = b"".join(varint(dim) for dim in shape)
    return delimited(5, text_field(1, name) + text_field(2, datatype) + (delimited(3, dims) if dims else b""))


def _parameters(parameters: Mapping[str, ParameterValue]) -> bytes:
    return b"".join(parameter(name, value) for name, value in parameters.items())
