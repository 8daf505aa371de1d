"""Writes ``ModelInferRequest`` messages for replicas (docs/reference/grpc.md#input-tensors).

A message that has come as one goes on as it is. Any other comes as pieces to be sent one behind the other, so that a
tensor's bytes go out from where they lie. Data is always raw. What stands before it is the same for requests of one
kind, and remembered for those with one input.
"""

from __future__ import annotations

from functools import lru_cache

from ....engine.errors import InvalidArgumentError
from ....engine.request import LATEST, InferenceRequest
from ....engine.tensor import Buffer
from ..framing import INT32_MAX, PREFIX_BYTES, prefix
from ..infer_writer import tensor_field
from ..wire_writer import delimited, opening, parameter, text_field

_RAW = 7
_INT64_SIGN = 2**63
_START, _END = parameter("sequence_start", True), parameter("sequence_end", True)


def write_infer_request(request: InferenceRequest) -> tuple[list[Buffer], int]:
    """The message, framed, and how many bytes it has.

    Raises:
        InvalidArgumentError: it would be too large for gRPC.
        UnsupportedError: a parameter that the protocol cannot carry.
    """
    message = request.message
    if message is not None:
        return [prefix(False, len(message)), message], PREFIX_BYTES + len(message)
    inputs, form = request.inputs, request.form
    if form is not None and form.sent is not None and not (request.id or request.parameters or request.correlation_id):
        name, version, nbytes, head = form.sent
        blob = inputs[0].buffer
        if len(blob) == nbytes and request.model_name == name and request.model_version == version:
            return [head, blob], len(head) + nbytes
    plain = not (request.id or request.parameters or request.correlation_id or request.priority or request.timeout_us)
    if len(inputs) == 1 and plain and not (request.sequence_start or request.sequence_end):
        tensor = inputs[0]
        blob = tensor.buffer
        size, name, version, wanted = len(blob), request.model_name, request.model_version, request.requested_outputs
        head = _beginning(name, version, tensor.name, tensor.datatype.name, tensor.shape, wanted, size)
        if form is not None:
            form.sent = name, version, size, head
        return [head, blob], len(head) + size
    head = _model(request.model_name, request.model_version)
    if not plain or request.sequence_start or request.sequence_end:
        head += _about(request)
    for tensor in inputs:
        head += tensor_field(tensor.name, tensor.datatype.name, tensor.shape)
    head += _outputs(request.requested_outputs)
    pieces: list[Buffer] = []
    for tensor in inputs:
        blob = tensor.buffer
        pieces += (head + opening(_RAW, len(blob)), blob)
        head = b""
    pieces.append(head)
    size = sum(map(len, pieces))
    return [_prefix(size), *pieces], PREFIX_BYTES + size


def _prefix(size: int) -> bytes:
    if size > INT32_MAX:
        raise InvalidArgumentError(f"request has {size} bytes as a message, expected at most {INT32_MAX}")
    return prefix(False, size)


def _about(request: InferenceRequest) -> bytes:
    """The id and the parameters."""
    fields = [text_field(3, request.id)]
    correlation_id = request.correlation_id
    if correlation_id:
        fields.append(parameter("sequence_id", _signed(correlation_id)))
    if request.sequence_start:
        fields.append(_START)
    if request.sequence_end:
        fields.append(_END)
    if request.priority:
        fields.append(parameter("priority", _signed(request.priority)))
    if request.timeout_us:
        fields.append(parameter("timeout", _signed(request.timeout_us)))
    fields += [parameter(name, value) for name, value in request.parameters.items()]
    return b"".join(fields)


def _signed(value: int | str) -> int | str:
    """An unsigned number of 64 bits as the signed one that it is sent as."""
    return value - 2 * _INT64_SIGN if isinstance(value, int) and value >= _INT64_SIGN else value


@lru_cache(maxsize=1024)
def _beginning(
    model: str, version: int, name: str, datatype: str, shape: tuple[int, ...], wanted: tuple[str, ...], size: int
) -> bytes:
    """Everything before the data of an only input, of `size` bytes, of a request about which nothing else is said."""
    head = _model(model, version) + tensor_field(name, datatype, shape) + _outputs(wanted) + opening(_RAW, size)
    return _prefix(len(head) + size) + head


@lru_cache(maxsize=1024)
def _model(name: str, version: int) -> bytes:
    return text_field(1, name) + text_field(2, "" if version == LATEST else str(version))


@lru_cache(maxsize=1024)
def _outputs(names: tuple[str, ...]) -> bytes:
    return b"".join([delimited(6, text_field(1, name)) for name in names])
