"""Infer requests written by protobuf, decoded by us, with a model that takes anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from triton_messages import MESSAGES as PB

from trireme.api.grpc.infer_request import DecodedGrpcInfer, decode_infer, read_infer_request
from trireme.engine.config.model import ModelConfig
from trireme.engine.description import ModelDescription
from trireme.engine.errors import TriremeError
from trireme.engine.memory.regions import Regions

Request = PB.ModelInferRequest
Response = PB.ModelInferResponse
StreamResponse = PB.ModelStreamInferResponse


def describe(name: str, version: int) -> ModelDescription:
    """Knows every model, in version 1."""
    return ModelDescription(name, 1, (1,), ModelConfig(name), {})


def an_input(
    name: str = "IN", datatype: str = "INT32", shape: Sequence[int] = (1,), contents: Any = None, **fields: Any
) -> Any:
    """An input; `fields` are fields of its contents."""
    if fields:
        contents = PB.InferTensorContents(**fields)
    return Request.InferInputTensor(name=name, datatype=datatype, shape=shape, contents=contents)


def parameter(choice: str | None = None, value: Any = None) -> Any:
    return PB.InferParameter(**({} if choice is None else {choice: value}))


def with_parameters(message: Any, **values: tuple[str | None, Any]) -> Any:
    """`message`, with parameters given as (choice, value)."""
    for name, value in values.items():
        message.parameters[name].CopyFrom(parameter(*value))
    return message


def decode(request: Any, find: Callable[[str, int], ModelDescription] = describe) -> DecodedGrpcInfer:
    return decode_infer(read_infer_request(request.SerializeToString()), find, Regions())


def refusal(request: Any, find: Callable[[str, int], ModelDescription] = describe) -> TriremeError:
    """What a request is refused with."""
    with pytest.raises(TriremeError) as caught:
        decode(request, find)
    return caught.value
