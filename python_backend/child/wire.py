"""The model's side of the protocol's values: requests to execute, responses, and what goes the other way in BLS."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from .codec import MOST_HEAD_BYTES, MessageError, Payload, WireTensor, cut, encode
from .utils.errors import TritonError
from .utils.request import InferenceRequest, incoming
from .utils.response import Host, InferenceResponse
from .utils.runner import shortened
from .utils.tensor import (
    BF16,
    BYTES,
    DTYPES,
    Tensor,
    deserialize_bytes_tensor,
    number_of,
    packed,
)

_COPIED_BYTES = 4 << 10
"""Contents of a tensor that are copied sooner than looked at."""


def read_tensor(payload: memoryview, wire: WireTensor) -> Tensor:
    """A tensor that came: a view of the payload, but for BYTES. MessageError if it is broken."""
    number = wire[1]
    if number == BYTES:
        try:
            elements = deserialize_bytes_tensor(cut(payload, wire))
        except struct.error as error:
            raise MessageError(f"tensor '{wire[0]}': {error}") from None
        return Tensor._view(wire[0], elements.reshape(wire[2]))
    return Tensor._view(wire[0], array_of(payload, wire), number == BF16)


def array_of(payload: memoryview, tensor: WireTensor) -> np.ndarray:
    """A tensor that is not BYTES as an array, a view; BF16 as uint16. MessageError if its contents are not what its
    shape says."""
    name, number, shape, offset, nbytes = tensor
    try:
        array = np.ndarray(shape, DTYPES[number], payload, offset)  # looks at the end of the buffer, not at its start
        if offset < 0 or array.nbytes != nbytes:
            raise ValueError(f"{nbytes} bytes from {offset} on for shape {list(shape)}")
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise MessageError(f"tensor '{name}': {error}") from None
    return array


def write_tensor(tensor: Tensor, payload: Payload) -> WireTensor:
    """A tensor to be sent; its contents go to the payload. ValueError if it has elements that are no text."""
    array = tensor._array
    number = BF16 if tensor._bf16 else number_of(array)
    if number == BYTES:
        content = packed(array, lambda element: _text(tensor._name, element))
        return tensor._name, BYTES, array.shape, payload.add(content), len(content)
    if array.nbytes <= _COPIED_BYTES:
        content = array.tobytes()
        return tensor._name, number, array.shape, payload.add(content), len(content)
    if not array.flags.c_contiguous:  # it was changed after the tensor was made
        array = np.ascontiguousarray(array)
    return tensor._name, number, array.shape, payload.add(array.reshape(-1).view(np.uint8).data), array.nbytes


def read_request(wire: tuple[Any, ...], payload: memoryview, host: Host) -> InferenceRequest:
    """A request to execute. MessageError if it is broken."""
    key, request_id, correlation_id, flags, timeout_us, parameters, wanted, trace, tensors = wire
    inputs = list(map(read_tensor, repeat(payload), tensors))
    return incoming(key, host, inputs, request_id, correlation_id, flags, timeout_us, parameters, wanted, trace)


def write_request(request: InferenceRequest, payload: Payload) -> tuple[Any, ...]:
    """A request to another model: (model, version, id, correlation ID, flags, timeout in µs, parameters, wanted,
    key of the request whose trace it goes with, or None, tensors). Raises as `write_tensor`."""
    return (
        request._model_name,
        request._model_version,
        request._request_id,
        request._correlation_id,
        request._flags,
        request._timeout,
        json.loads(request._parameters) if request._parameters != "{}" else {},
        tuple(request._requested),
        request._trace._key,
        tuple([write_tensor(tensor, payload) for tensor in request._inputs]),
    )


def write_response(response: InferenceResponse, payload: Payload) -> tuple[Any, ...]:
    """A response to be sent. Raises as `write_tensor`."""
    error = response._error
    if error is not None:
        return (shortened(error._message), error._code), response._parameters, ()
    return None, response._parameters, tuple(map(write_tensor, response._outputs, repeat(payload)))


def write_error(message: str, code: int = TritonError.INTERNAL) -> tuple[Any, ...]:
    return (shortened(message), code), {}, ()


def fitted(answers: Sequence[tuple[int, Any]], why: str) -> tuple[tuple[int, Any], ...]:
    """The answers to a batch, which together are too large for a message: those that take more than their share are
    cut to it if they are errors, and become errors if they are not.
    """
    share = MOST_HEAD_BYTES // len(answers) - 64
    fitting: list[tuple[int, Any]] = []
    for key, wire in answers:
        if len(encode((wire,), Payload())[0]) > share:
            text, code = wire[0] or (f"the response cannot be sent: {why}", TritonError.INTERNAL)
            wire = ((text[: share // 4], code), {}, ())
        fitting.append((key, wire))
    return tuple(fitting)


def read_response(wire: tuple[Any, ...], payload: memoryview) -> InferenceResponse:
    """A response of another model. MessageError if it is broken."""
    error, parameters, tensors = wire
    response = InferenceResponse([read_tensor(payload, tensor) for tensor in tensors])
    response._parameters = parameters
    if error is not None:
        response._error = TritonError(*error)
    return response


def _text(name: str, element: object) -> bytes:
    """An element that is no bytes is its text, as for Triton: ``1.5``, ``None``."""
    try:
        return str(element).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"tensor '{name}' has an element that is no text: {error}") from None
    except Exception as error:  # noqa: BLE001 - a __str__ of user code
        raise ValueError(f"tensor '{name}' has an element without a text: {type(error).__name__}") from None
