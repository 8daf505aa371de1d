"""What a model takes, as the server describes it, and tensors that it takes: contents are made up."""

from __future__ import annotations

import http.client
import json
import math
import select
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from ..engine.datatypes import BOOL, BY_CONFIG_NAME, BYTES, DataType
from ..engine.request import LATEST
from ..proto.messages import inference
from .connections import BUFFER_BYTES, RefusedError
from .grpc_connection import GrpcLoadConnection
from .target import LoadTarget

_CONFIG_PATH = "/inference.GRPCInferenceService/ModelConfig"
_TIMEOUT_S = 30.0
_SEED = 18
_FALLBACK_BYTES = 8


@dataclass(frozen=True, slots=True)
class InputDescription:
    """An input; -1 in `dims`, which has no batch dimension, is a variable one."""

    name: str
    datatype: DataType
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """What a model takes.

    Attributes:
        batches: inputs have a batch dimension in front.
    """

    inputs: tuple[InputDescription, ...]
    batches: bool


@dataclass(frozen=True, slots=True)
class MadeInput:
    """A tensor, as it goes over the wire."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


def describe_model(target: LoadTarget, name: str, version: int = LATEST) -> ModelInputs:
    """Ask the server.

    Raises:
        RefusedError: it does not describe the model, or cannot be reached.
    """
    try:
        ask = _http_config if target.protocol.is_http else _grpc_config
        config = ask(target, name, version)
    except (OSError, http.client.HTTPException) as error:
        raise RefusedError(f"no server answers at {target}: {error}") from error
    described: list[InputDescription] = []
    for each in config.get("input", []):
        datatype = BY_CONFIG_NAME.get(each["data_type"])
        if datatype is None:
            raise RefusedError(f"model '{name}': input '{each['name']}' has the unknown type {each['data_type']}")
        if not each.get("optional"):
            described.append(InputDescription(each["name"], datatype, tuple(int(dim) for dim in each["dims"])))
    return ModelInputs(tuple(described), int(config.get("max_batch_size", 0)) > 0)


def _http_config(target: LoadTarget, name: str, version: int) -> Mapping[str, Any]:
    if target.tls is None:
        connection = http.client.HTTPConnection(target.host, target.port, timeout=_TIMEOUT_S)
    else:
        connection = http.client.HTTPSConnection(target.host, target.port, timeout=_TIMEOUT_S, context=target.tls)
    try:
        path = f"/v2/models/{quote(name, safe='')}{'' if version == LATEST else f'/versions/{version}'}/config"
        connection.request("GET", path, headers=dict(target.headers()))
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    try:
        document = json.loads(body)
    except ValueError as error:
        raise RefusedError(f"{target} answers {path} with {body[:100]!r}, which is not JSON") from error
    if answer.status != 200 or not isinstance(document, dict):
        said = document.get("error", document) if isinstance(document, dict) else document
        raise RefusedError(f"{target} does not describe model '{name}': {said}")
    return document


def _grpc_config(target: LoadTarget, name: str, version: int) -> Mapping[str, Any]:
    connection = GrpcLoadConnection(target.port, 0, target.host, _CONFIG_PATH, target.headers(), target.tls)
    connection.keeps_messages = True
    try:
        asked = inference.ModelConfigRequest(name=name, version="" if version == LATEST else str(version))
        connection.ask([bytes(asked)])
        buffer = memoryview(bytearray(BUFFER_BYTES))
        complete = False
        while not complete:
            if not select.select([connection.socket], [], [], _TIMEOUT_S)[0]:
                raise RefusedError(f"{target} does not answer within {_TIMEOUT_S:g} s")
            complete = connection.receive(buffer)
        if connection.status:
            raise RefusedError(f"{target} does not describe model '{name}': {connection.reason}")
        config = inference.ModelConfigResponse.parse(connection.message[5:]).config or inference.ModelConfig()
    finally:
        connection.close()
    inputs = [
        {"name": each.name, "data_type": each.data_type.name, "dims": each.dims, "optional": each.optional}
        for each in config.input
    ]
    return {"input": inputs, "max_batch_size": config.max_batch_size}


def make_inputs(model: ModelInputs, rows: int, elements: Sequence[int] = (), nbytes: int = 0) -> list[MadeInput]:
    """Tensors for a request: numbers from [0, 1) or 1, texts of one letter.

    Args:
        elements: of a row, for each input with a variable dimension; where they are not known, such a dimension is 1,
            or what `nbytes` leaves for the only one.
        nbytes: of all inputs; 0 for unknown. Texts are as long as it takes.
    """
    chance = np.random.default_rng(_SEED)
    counts = list(elements)
    variable = [each for each in model.inputs if -1 in each.dims]
    sized = sum([rows * math.prod(each.dims) * each.datatype.size for each in model.inputs if -1 not in each.dims])
    if not counts and len(variable) == 1 and variable[0].datatype.size:
        known = math.prod([dim for dim in variable[0].dims if dim != -1])
        counts = [max(known, (nbytes - sized) // (rows * variable[0].datatype.size))]
    shapes: list[tuple[int, ...]] = []
    for each in model.inputs:
        dims = _fixed(each.dims, counts.pop(0) if -1 in each.dims and counts else 0)
        shapes.append((rows, *dims) if model.batches else dims)
    numbers = [math.prod(shape) for shape in shapes]
    pairs = list(zip(model.inputs, numbers, strict=True))
    texts = sum([count for each, count in pairs if each.datatype is BYTES])
    others = sum([count * each.datatype.size for each, count in pairs if each.datatype is not BYTES])
    length = (nbytes - others) // texts - 4 if texts and nbytes > others else _FALLBACK_BYTES
    return [
        MadeInput(each.name, each.datatype.name, shape, _data(each.datatype, count, max(0, length), chance))
        for (each, count), shape in zip(pairs, shapes, strict=True)
    ]


def _fixed(dims: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """Dimensions, the first variable one such that there are so many elements; others are 1."""
    known = math.prod([dim for dim in dims if dim != -1])
    free = elements // known if known and elements else 1
    fixed: list[int] = []
    for dim in dims:
        fixed.append(free if dim == -1 else dim)
        free = 1 if dim == -1 else free
    return tuple(fixed)


def _data(datatype: DataType, count: int, length: int, chance: np.random.Generator) -> bytes:
    if datatype is BYTES:
        return (length.to_bytes(4, "little") + b"x" * length) * count
    storage = datatype.storage
    if datatype is BOOL or storage.kind in "iu":
        return np.ones(count, storage).tobytes()
    if storage.kind == "f":
        return chance.random(count, np.float64).astype(storage).tobytes()
    return bytes(count * datatype.size)
