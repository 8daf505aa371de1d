"""The server's side of the protocol's values (`child.protocol`): jobs as requests, and responses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...bounded_product import bounded_product
from ...datatypes import BY_NUMBER
from ...errors import (
    AlreadyExistsError,
    CancelledError,
    FailureReason,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TriremeError,
    UnavailableError,
    UnsupportedError,
)
from ...job import Job
from ...request import ParameterValue
from ...response import InferenceResponse
from ...tensor import Tensor
from ...tracing.record import Trace
from .child.codec import MessageError, Payload, WireTensor, cut

SEQUENCE_START, SEQUENCE_END = 1, 2

_MOST_BYTES = 2**63 - 1
_REFERENCE_BYTES = 8
"""An element of BYTES, to numpy."""

_ERRORS: dict[int, type[TriremeError]] = {
    0: TriremeError,
    1: InternalError,
    2: NotFoundError,
    3: InvalidArgumentError,
    4: UnavailableError,
    5: UnsupportedError,
    6: AlreadyExistsError,
    7: CancelledError,
}
"""By the codes of ``TritonError``."""


def write_tensor(tensor: Tensor, payload: Payload) -> WireTensor:
    """A tensor to be sent; its contents go to the payload.

    Raises:
        ValueError: it can be no array.
    """
    buffer = tensor.buffer
    if not buffer:
        _check_extent(tensor)
    return tensor.name, tensor.datatype.number, tensor.shape, payload.add(buffer), len(buffer)


def _check_extent(tensor: Tensor) -> None:
    """numpy makes no array whose dimensions other than 0 amount to more than there can be bytes."""
    extent = bounded_product([dim for dim in tensor.shape if dim]) * (tensor.datatype.size or _REFERENCE_BYTES)
    if extent > _MOST_BYTES:
        raise ValueError(f"input '{tensor.name}' has no elements, and is of a shape that is too large: {tensor.shape}")


def read_tensor(payload: memoryview, wire: WireTensor) -> Tensor:
    """A tensor that came, a view of the payload.

    Raises:
        MessageError: it is broken.
    """
    datatype = BY_NUMBER.get(wire[1])
    if datatype is None:
        raise MessageError(f"tensor '{wire[0]}' is of type number {wire[1]}")
    return Tensor(wire[0], datatype, tuple(wire[2]), cut(payload, wire))


def write_job(job: Job, key: int, payload: Payload, outputs: tuple[str, ...]) -> tuple[Any, ...]:
    """A job as a request.

    Args:
        outputs: of the model, all of which are wanted if the client named none.
    """
    request = job.request
    flags = 0
    if request.sequence_start:
        flags |= SEQUENCE_START
    if request.sequence_end:
        flags |= SEQUENCE_END
    parameters = _compact(request.parameters) if request.parameters else "{}"
    return (
        key,
        request.id,
        request.correlation_id or 0,
        flags,
        request.timeout_us,
        parameters,
        job.requested_outputs or outputs,
        None if request.trace is None else _trace_context(request.trace),
        tuple([write_tensor(tensor, payload) for tensor in job.inputs.values()]),
    )


def _compact(parameters: Mapping[str, ParameterValue]) -> str:
    """As Triton writes them; models may compare or keep the text."""
    return json.dumps(parameters, separators=(",", ":"), ensure_ascii=False)


def _trace_context(trace: Trace) -> str | None:
    """What the model may hand on to whom it calls, as JSON."""
    headers = trace.headers()
    return json.dumps(headers) if headers else None


def read_response(job: Job, wire: tuple[Any, ...], payload: memoryview) -> InferenceResponse | TriremeError:
    """What a model answered to a job.

    Raises:
        MessageError: it is broken.
    """
    error, parameters, tensors = wire
    if error is not None:
        return read_error(*error)
    for name, value in parameters.items():
        if not name.isascii() or isinstance(value, str):
            parameters = {_utf8(key): _utf8(of) if isinstance(of, str) else of for key, of in parameters.items()}
            break
    return job.response([read_tensor(payload, tensor) for tensor in tensors], parameters)


def read_error(text: str, code: int) -> TriremeError:
    return _ERRORS.get(code, InternalError)(_utf8(text), reason=FailureReason.BACKEND)


def _utf8(text: str) -> str:
    """A model's text as it can be sent to clients: Python has texts with half a character, such as file names."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def write_error(error: TriremeError) -> tuple[Any, ...]:
    """A server's error as a response."""
    codes = [code for code, kind in _ERRORS.items() if type(error) is kind]
    return (error.message, codes[0] if codes else 1), {}, ()
