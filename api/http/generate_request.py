"""Decodes generate requests: the members of a JSON object become inputs and parameters
(docs/reference/generate.md#request)."""

from __future__ import annotations

from typing import Any

from ...engine.config.model import ModelInput
from ...engine.datatypes import BYTES
from ...engine.description import ModelDescription
from ...engine.errors import InvalidArgumentError, TriremeError, request_prefix
from ...engine.request import InferenceRequest
from ...engine.tensor import Tensor, add_packed
from ...engine.tensor_limits import TensorLimits
from . import json_reader
from .infer_parameters import custom_parameter
from .json_access import converted
from .json_limits import refuse_strings
from .json_pieces import LargeArray, LargeString
from .json_tensor import refuse_half

_NESTED = "parameters"
"""The member whose members are handled like those of the request itself."""


def read_generate(
    document: Any, model: ModelDescription, version: int, limit_bytes: int, limits: TensorLimits
) -> InferenceRequest:
    """The request that a body's JSON describes.

    A member that has the name of an input is that input, any other is a request parameter; none of the names that mean
    something to the server elsewhere (``priority``, ``sequence_id``, ``triton_…``) does so here. ``id`` is also the
    request's id.

    Args:
        document: parsed; large arrays may be `LargeArray`.
        model: whose inputs they are; their shapes follow from its configuration.
        version: as asked for in the path.
        limit_bytes: bound on what the tensors take together.
        limits: what one tensor may be like.

    Raises:
        InternalError: no object, or a value of the wrong type.
        InvalidArgumentError: elements that do not fit an input's shape, a value that no parameter can have, too much.
        OddTextError: large data is not plain JSON.
    """
    json_reader.members(document)
    request = InferenceRequest(model.name, version)
    if "id" in document:
        request.id = converted(json_reader.as_string, document["id"], "id")
    reader = _Reader(request, model, limit_bytes, limits)
    for name, value in document.items():
        if name == _NESTED:
            reader.read_nested(value)
        else:
            reader.read(name, value)
    return request


class _Reader:
    """Puts members into `request`."""

    def __init__(
        self, request: InferenceRequest, model: ModelDescription, limit_bytes: int, limits: TensorLimits
    ) -> None:
        self._request = request
        self._model = model
        self._inputs = {tensor.name: tensor for tensor in model.config.input}
        self._limit_bytes = limit_bytes
        self._limits = limits
        self._read_bytes = 0
        self._strings: list[int] = []

    def read(self, name: str, value: Any) -> None:
        given = self._inputs.get(name)
        if given is None:
            if isinstance(value, LargeString):
                self._strings.append(value.nbytes)
                refuse_strings(*self._strings)
                value = value.whole()
            self._request.parameters[name] = custom_parameter(name, value)
            return
        if any(tensor.name == name for tensor in self._request.inputs):
            raise InvalidArgumentError(f"{request_prefix(self._request.id)}input '{name}' already exists in request")
        tensor = _tensor(given, self._model.client_shape(given), value, self._limits)
        self._read_bytes += tensor.nbytes
        if self._read_bytes > self._limit_bytes:
            raise InvalidArgumentError(
                f"request size of {self._read_bytes} bytes with input '{name}' of size {tensor.nbytes} bytes exceeds "
                f"the maximum allowed input size of {self._limit_bytes}. Use --http-max-input-size to increase the "
                "limit."
            )
        self._request.inputs.append(tensor)

    def read_nested(self, value: Any) -> None:
        if _NESTED in self._inputs:
            raise InvalidArgumentError(f"Keyword '{_NESTED}' for nested schema also given as input tensor name")
        problem = f"Expected JSON object for keyword: '{_NESTED}'"
        try:
            members = json_reader.as_object(value)
            problem = f"Converting keyword: '{_NESTED}'"
            for name, nested in members.items():
                self.read(name, nested)
        except TriremeError as error:
            raise type(error)(f"{problem}: {error.message}") from None


def _tensor(given: ModelInput, client_shape: tuple[int, ...], value: Any, limits: TensorLimits) -> Tensor:
    """An input from a scalar or an array, whose elements are not counted deeper than the outermost level."""
    is_text = isinstance(value, LargeString)
    data = value if type(value) is list or type(value) is LargeArray else ["" if is_text else value]
    try:
        shape = _fitted(given.name, client_shape, len(data))
    except InvalidArgumentError:
        if given.datatype is BYTES:
            # That they are strings comes first.
            json_reader.tensor_from_json(given.name, BYTES, (len(data),), data, limits)
        raise
    refuse_half(given.name, given.datatype)
    if is_text and given.datatype is BYTES:
        packed = bytearray()
        add_packed(packed, value.pieces())
        return Tensor(given.name, BYTES, shape, memoryview(packed))
    return json_reader.tensor_from_json(given.name, given.datatype, shape, data, limits)


def _fitted(name: str, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`shape` with its variable dimensions set so that it has `count` elements: the innermost takes what the fixed ones
    leave, the others are 1.

    Raises:
        InvalidArgumentError: there is no such shape.
    """
    fitted: list[int] = []
    for dim in shape:
        if dim > 0 and count % dim == 0:
            count //= dim
        elif dim >= 0:
            raise _unfit(name)
    for dim in reversed(shape):
        fitted.append(dim if dim >= 0 else count)
        count = count if dim >= 0 else 1
    if count != 1:
        raise _unfit(name)
    return tuple(reversed(fitted))


def _unfit(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"The schema can not convert input '{name}' to tensor with proper shape")
