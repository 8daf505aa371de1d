"""Requests as bytes, made before any is sent, so that sending them costs next to nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from urllib.parse import quote

import numpy as np

from ..engine.datatypes import BF16, BY_NAME, BYTES, FP16
from ..engine.logs.request_log import LoggedRequest
from ..engine.request import LATEST
from ..engine.tensor import iter_bytes
from ..proto.messages import inference
from .connections import RefusedError
from .generated_requests import generation_inputs, stream_document
from .model_inputs import MadeInput, ModelInputs, describe_model, make_inputs
from .stream_connection import WANTS_FINAL
from .target import LoadProtocol, LoadTarget

Parts = tuple[bytes, ...]

_RAW_CONTENTS_TAG = b"\x3a"
_INT64_END = 1 << 63


class RequestPreparer:
    """Makes requests for one server. Requests that are alike share their bytes, those of sequences all but the head.

    Args:
        describe: what a model takes; by default the server is asked, once for each model.
    """

    def __init__(
        self, target: LoadTarget, describe: Callable[[LoadTarget, str, int], ModelInputs] = describe_model
    ) -> None:
        self._target = target
        self._describe = describe
        self._models: dict[tuple[str, int], ModelInputs] = {}
        self._inputs: dict[LoggedRequest, list[MadeInput]] = {}
        self._made: dict[LoggedRequest, Parts] = {}
        self._write = _WRITERS[target.protocol]
        self._numbers = count()  # of requests for generated text

    def make(self, request: LoggedRequest) -> Parts:
        """A request as a connection of the target's protocol takes it.

        Raises:
            RefusedError: the server does not describe the model, or the protocol cannot carry its answers.
        """
        if request.prompt_tokens:
            return _generation_parts(self._target, request, next(self._numbers))
        alike = replace(request, offset_s=0.0, tenant="", protocol="", result=None, ensemble=False)
        parts = self._made.get(alike)
        if parts is None:
            parts = self._write(self._target, alike, self._inputs_of(alike))
            if not alike.sequence:
                self._made[alike] = parts
        return parts

    def _inputs_of(self, request: LoggedRequest) -> list[MadeInput]:
        key = LoggedRequest(
            0.0, request.model, request.version, request.rows, request.nbytes, elements=request.elements
        )
        made = self._inputs.get(key)
        if made is None:
            name = request.model, request.version
            model = self._models.get(name)
            if model is None:
                model = self._models[name] = self._describe(self._target, *name)
            made = self._inputs[key] = make_inputs(model, request.rows, request.elements, request.nbytes)
        return made


def _http_parts(target: LoadTarget, request: LoggedRequest, inputs: Sequence[MadeInput]) -> Parts:
    tensors = [{**_described(each), "parameters": {"binary_data_size": len(each.data)}} for each in inputs]
    parameters = {"binary_data_output": True, **_parameters(request)}
    document = json.dumps({"parameters": parameters, "inputs": tensors}, separators=(",", ":")).encode()
    nbytes = len(document) + sum([len(each.data) for each in inputs])
    head = _head(target, request, [f"Inference-Header-Content-Length: {len(document)}", f"Content-Length: {nbytes}"])
    return _joined([head + document, *(each.data for each in inputs)])


def _json_parts(target: LoadTarget, request: LoggedRequest, inputs: Sequence[MadeInput]) -> Parts:
    tensors = [{**_described(each), "data": _values(each)} for each in inputs]
    parameters = _parameters(request)
    wanted = {"inputs": tensors, **({"parameters": parameters} if parameters else {})}
    document = json.dumps(wanted, separators=(",", ":")).encode()
    head = _head(target, request, ["Content-Type: application/json", f"Content-Length: {len(document)}"])
    return _joined([head, document])


def _generation_parts(target: LoadTarget, request: LoggedRequest, number: int) -> Parts:
    """A request for generated text, whose answers come as they come about."""
    if target.protocol.is_http:
        document = stream_document(request, number)
        headers = ["Content-Type: application/json", f"Content-Length: {len(document)}"]
        return _joined([_head(target, request, headers, "generate_stream"), document])
    if target.protocol is LoadProtocol.GRPC:
        raise RefusedError(
            f"model '{request.model}' answers many times, which unary calls do not carry; expected http:// or stream://"
        )
    return _grpc_parts(target, request, generation_inputs(request, number))


def _described(made: MadeInput) -> dict[str, object]:
    return {"name": made.name, "datatype": made.datatype, "shape": made.shape}


def _values(made: MadeInput) -> list[object]:
    """The elements, as JSON has them.

    Raises:
        RefusedError: it has none of this type.
    """
    datatype = BY_NAME[made.datatype]
    if datatype in (FP16, BF16):
        raise RefusedError(f"input '{made.name}' is of type {made.datatype}, which JSON cannot say")
    if datatype is BYTES:
        return [text.decode() for text in iter_bytes(made.data)]
    return np.frombuffer(made.data, datatype.storage).tolist()


def _parameters(request: LoggedRequest) -> dict[str, object]:
    parameters: dict[str, object] = {}
    if request.priority:
        parameters["priority"] = request.priority
    if request.timeout_us:
        parameters["timeout"] = request.timeout_us
    if request.sequence:
        parameters |= {
            "sequence_id": request.sequence,
            "sequence_start": request.start,
            "sequence_end": request.end,
        }
    return parameters


def _head(target: LoadTarget, request: LoggedRequest, headers: Sequence[str], action: str = "infer") -> bytes:
    version = "" if request.version == LATEST else f"/versions/{request.version}"
    lines = [
        f"POST /v2/models/{quote(request.model, safe='')}{version}/{action} HTTP/1.1",
        f"Host: {target.host}:{target.port}",
        *headers,
        *(f"{name}: {value}" for name, value in target.headers()),
        "\r\n",
    ]
    return "\r\n".join(lines).encode()


def _grpc_parts(_target: LoadTarget, request: LoggedRequest, inputs: Sequence[MadeInput]) -> Parts:
    made = inference.ModelInferRequest(
        model_name=request.model,
        model_version="" if request.version == LATEST else str(request.version),
        inputs=[
            inference.ModelInferRequestInferInputTensor(name=each.name, datatype=each.datatype, shape=list(each.shape))
            for each in inputs
        ],
    )
    if request.priority:
        made.parameters["priority"] = inference.InferParameter(uint64_param=request.priority)
    if request.timeout_us:
        made.parameters["timeout"] = inference.InferParameter(int64_param=request.timeout_us)
    if request.prompt_tokens:
        made.parameters[WANTS_FINAL] = inference.InferParameter(bool_param=True)
    if request.sequence:
        made.parameters["sequence_id"] = _sequence_parameter(request.sequence)
        made.parameters["sequence_start"] = inference.InferParameter(bool_param=request.start)
        made.parameters["sequence_end"] = inference.InferParameter(bool_param=request.end)
    parts = [bytes(made)]
    for each in inputs:
        parts += [_RAW_CONTENTS_TAG + _varint(len(each.data)), each.data]
    return _joined(parts)


def _sequence_parameter(sequence: int | str) -> inference.InferParameter:
    if isinstance(sequence, str):
        return inference.InferParameter(string_param=sequence)
    if sequence < _INT64_END:
        return inference.InferParameter(int64_param=sequence)
    return inference.InferParameter(uint64_param=sequence)


def _varint(value: int) -> bytes:
    """A length as protobuf writes it."""
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*written, value))


_SMALL_BYTES = 16_384


def _joined(parts: list[bytes]) -> Parts:
    """In one piece if they are small, so that large ones are not copied for each request of a sequence."""
    return (b"".join(parts),) if sum(map(len, parts)) <= _SMALL_BYTES else tuple(parts)


_WRITERS = {
    LoadProtocol.HTTP: _http_parts,
    LoadProtocol.JSON: _json_parts,
    LoadProtocol.GRPC: _grpc_parts,
    LoadProtocol.STREAM: _grpc_parts,
}
