"""The server's side of the protocol's values (`child.protocol`): jobs as requests, and responses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from ..engine.config.model import ModelOutput
from ..engine.datatypes import BY_NUMBER, DataType
from ..engine.errors import (
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
from ..engine.job import Job
from ..engine.memory.tensors import RegionTensor
from ..engine.request import InferenceResponse, ParameterValue
from ..engine.scheduling.batch import client_shape
from ..engine.tensor import Tensor
from ..engine.tensor_limits import bounded_product
from .child.codec import MessageError, Payload, Source, WireTensor, cut

SEQUENCE_START, SEQUENCE_END = 1, 2

MOST_DIMENSIONS = 64
"""As many as numpy's arrays have at most."""
MOST_PARAMETERS = 1024
MOST_OUTPUTS = 1024
"""Of a response to a model with fewer outputs."""

_MOST_KNOWN = 256
_LONGEST_KNOWN = 256
"""Characters of a name that is remembered."""

_MOST_BYTES = 2**63 - 1
_REFERENCE_BYTES = 8
"""An element of BYTES, to numpy."""

_SCALARS = (str, int, bool, float)

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


class LostInputError(Exception):
    """An input that a message needs cannot be read from its region.

    Args:
        error: why, as its client is told.
    """

    def __init__(self, tensor: RegionTensor, error: TriremeError) -> None:
        super().__init__(error.message)
        self.tensor = tensor
        self.error = error


class _InRegion(Source):
    """A tensor in a client's memory. Raises LostInputError: it cannot be read."""

    def __init__(self, tensor: RegionTensor) -> None:
        self._tensor = tensor

    def __len__(self) -> int:
        return self._tensor.nbytes

    def read_into(self, target: np.ndarray) -> None:
        try:
            self._tensor.read_into(target)
        except TriremeError as error:
            raise LostInputError(self._tensor, error) from error


def write_tensor(tensor: Tensor, payload: Payload) -> WireTensor:
    """A tensor to be sent; its contents go to the payload. ValueError if it can be no array."""
    if isinstance(tensor, RegionTensor) and tensor.nbytes:
        return tensor.name, tensor.datatype.number, tensor.shape, payload.add(_InRegion(tensor)), tensor.nbytes
    buffer = tensor.buffer
    if not buffer:
        # numpy makes no array whose dimensions other than 0 amount to more than there can be bytes.
        extent = bounded_product([dim for dim in tensor.shape if dim]) * (tensor.datatype.size or _REFERENCE_BYTES)
        if extent > _MOST_BYTES:
            raise ValueError(
                f"input '{tensor.name}' has no elements, and is of a shape that is too large: {tensor.shape}"
            )
    return tensor.name, tensor.datatype.number, tensor.shape, payload.add(buffer), len(buffer)


class KnownTensors:
    """Reads tensors that come again and again: of one that is like another before, only its place is looked at."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[str, DataType, tuple[int, ...], int]] = {}

    def read(self, payload: memoryview, wire: WireTensor) -> Tensor:
        """As `read_tensor`."""
        name, number, shape, offset, nbytes = wire
        known = self._known.get((name, number, shape, nbytes))
        if known is None:
            tensor = read_tensor(payload, wire)
            if len(name) <= _LONGEST_KNOWN and len(self._known) < _MOST_KNOWN:
                about = tensor.name, tensor.datatype, tensor.shape, nbytes
                self._known[name, number, shape, nbytes] = about
            return tensor
        name, datatype, shape, nbytes = known
        end = offset + nbytes
        if offset < 0 or end > len(payload):
            raise MessageError(f"tensor '{name}' lies outside of its message")
        return Tensor(name, datatype, shape, payload[offset:end])


def read_tensor(payload: memoryview, wire: WireTensor) -> Tensor:
    """A tensor that came, a view of the payload. MessageError if it is broken."""
    name, number, shape, _, nbytes = wire
    datatype = BY_NUMBER.get(number)
    if datatype is None or name.__class__ is not str:
        raise MessageError(f"tensor '{name}' is of type number {number}")
    if len(shape) > MOST_DIMENSIONS:
        raise MessageError(f"tensor '{name}' has {len(shape)} dimensions, and may have {MOST_DIMENSIONS}")
    elements = 1
    for dim in shape:
        if dim.__class__ is not int or not 0 <= dim <= _MOST_BYTES:
            raise MessageError(f"tensor '{name}' has a dimension that is none")
        elements *= dim
    if datatype.size and elements * datatype.size != nbytes:
        raise MessageError(f"tensor '{name}' has {nbytes} bytes, which do not go with its shape")
    return Tensor(name, datatype, tuple(shape), cut(payload, wire))


def write_job(job: Job, key: int, payload: Payload, outputs: tuple[str, ...]) -> tuple[Any, ...]:
    """A job as a request; `outputs` of the model are all wanted if the client named none."""
    request = job.request
    headers = None if request.trace is None else request.trace.headers()  # what the model may hand on to whom it calls
    flags = SEQUENCE_START if request.sequence_start else 0
    flags |= SEQUENCE_END if request.sequence_end else 0
    parameters = _compact(request.parameters) if request.parameters else "{}"
    return (
        key,
        request.id,
        request.correlation_id or 0,
        flags,
        request.timeout_us,
        parameters,
        job.requested_outputs or outputs,
        _compact(headers) if headers else None,
        tuple([write_tensor(tensor, payload) for tensor in job.inputs.values()]),
    )


def without_lost(lost: LostInputError, jobs: Sequence[Job], keys: list[int]) -> tuple[list[Job], list[int]]:
    """Fail the job whose input was lost; the others, and their keys. If it was the last one, its error is raised."""
    if len(jobs) == 1:
        raise lost.error
    owns = [any(tensor is lost.tensor for tensor in job.inputs.values()) for job in jobs]
    jobs[owns.index(True)].fail(lost.error)
    kept = [not own for own in owns]
    return list(compress(jobs, kept)), list(compress(keys, kept))


def _compact(parameters: Mapping[str, ParameterValue]) -> str:
    """As Triton writes them; models may compare or keep the text."""
    return json.dumps(parameters, separators=(",", ":"), ensure_ascii=False)


def read_response(
    job: Job,
    wire: tuple[Any, ...],
    payload: memoryview,
    known: KnownTensors,
    reshaped: Mapping[str, ModelOutput],
    batching: bool,
) -> InferenceResponse | TriremeError:
    """What a model answered to a job. The outputs in `reshaped`, which have a ``reshape``, get the shapes that clients
    expect; if `batching`, shapes begin with a batch dimension. MessageError if it is broken."""
    error, parameters, tensors = wire
    if error is not None:
        text, code = error
        return _ERRORS.get(code, InternalError)(_utf8(text), reason=FailureReason.BACKEND)
    if len(tensors) > MOST_OUTPUTS and len(tensors) > len(job.requested_outputs):
        raise MessageError(f"a response with {len(tensors)} outputs")
    if parameters or parameters.__class__ is not dict:
        check_parameters(parameters)
        parameters = {_utf8(key): _utf8(of) if isinstance(of, str) else of for key, of in parameters.items()}
    read = known.read
    response = job.response([read(payload, tensor) for tensor in tensors], parameters)
    return _reshape_undone(response, reshaped, batching) if reshaped else response


def _reshape_undone(
    response: InferenceResponse, outputs: Mapping[str, ModelOutput], batching: bool
) -> InferenceResponse | TriremeError:
    for place, tensor in enumerate(response.outputs):
        output = outputs.get(tensor.name)
        if output is None:
            continue
        rows, shape = (tensor.shape[:1], tensor.shape[1:]) if batching else ((), tensor.shape)
        try:
            if batching and not rows:
                raise InternalError("there is no batch dimension")
            response.outputs[place] = tensor.reshaped((*rows, *client_shape(output, shape)))
        except InternalError as error:
            return InternalError(
                f"output tensor shape does not match size of output for '{tensor.name}': {error.message}",
                reason=FailureReason.BACKEND,
            )
    return response


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """MessageError if they are too many, or are no parameters."""
    if len(parameters) > MOST_PARAMETERS:
        raise MessageError(f"{len(parameters)} parameters, of which there may be {MOST_PARAMETERS}")
    for name, value in parameters.items():
        if name.__class__ is not str or value.__class__ not in _SCALARS:
            raise MessageError("a parameter that is neither bool nor number nor text")


def _utf8(text: str) -> str:
    """A model's text as it can be sent to clients: Python has texts with half a character, such as file names."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def write_error(error: TriremeError) -> tuple[Any, ...]:
    codes = [code for code, kind in _ERRORS.items() if type(error) is kind]
    return (error.message, codes[0] if codes else 1), {}, ()
