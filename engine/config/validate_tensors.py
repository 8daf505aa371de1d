"""Checks of inputs, outputs and the tensors made from batches (docs/reference/model-configuration.md#tensors)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..datatypes import BY_NUMBER, BYTES, FP32, INT32
from ..errors import InvalidArgumentError
from ..tensor_limits import MAX_ELEMENTS as MAX_SIZE
from ..tensor_limits import MAX_RANK, bounded_product
from .build import enum_name

"""Elements or bytes that a tensor may have at most."""

_FORMATS_WITH_THREE_DIMS = ("FORMAT_NHWC", "FORMAT_NCHW")
_BYTES_LENGTH_SIZE = 4


def validate_tensors(message: Any) -> None:
    """Check all tensors of a configuration.

    Raises:
        InvalidArgumentError: the first thing that is wrong; every text ends with `` for <model>``.
    """
    try:
        for tensor in message.input:
            _validate_tensor(message, tensor, "input")
            if enum_name(tensor, "format") in _FORMATS_WITH_THREE_DIMS and len(tensor.dims) != 3:
                raise _Problem("model input NHWC/NCHW require 3 dims")
            _validate_tensorrt_only(message, tensor, "input")
        for tensor in message.output:
            _validate_tensor(message, tensor, "output")
            _validate_tensorrt_only(message, tensor, "output")
        _validate_batch_inputs(message)
        _validate_batch_outputs(message)
    except _Problem as problem:
        raise InvalidArgumentError(f"{problem} for {message.name}") from None


class _Problem(Exception):
    """What is wrong, still without the model's name."""


def _validate_tensor(message: Any, tensor: Any, role: str) -> None:
    who = f"model {role} "
    if not tensor.name:
        raise _Problem(f"{who}must specify 'name'")
    who += f"'{tensor.name}' "
    if tensor.data_type not in BY_NUMBER:
        raise _Problem(f"{who}must specify 'data_type'")
    if not tensor.dims:
        raise _Problem(f"{who}must specify 'dims'")
    has_reshape = tensor.HasField("reshape")
    if has_reshape and not tensor.reshape.shape and message.max_batch_size == 0:
        raise _Problem(f"{who}cannot have empty reshape for non-batching model as scalar tensors are not supported")
    for what, dims in (("dims", tensor.dims), ("reshape", tensor.reshape.shape)):
        if len(dims) > MAX_RANK:
            raise _Problem(f"{who}{what} has {len(dims)} dimensions, expected at most {MAX_RANK}")
    wildcard = "must be integer >= 1, or -1 to indicate a variable-size dimension"
    if not all(_is_dimension(dim) for dim in tensor.dims):
        raise _Problem(f"{who}dimension {wildcard}")
    if has_reshape and not all(_is_dimension(dim) for dim in tensor.reshape.shape):
        raise _Problem(f"{who}reshape dimensions {wildcard}")
    _validate_size(tensor, role)
    if has_reshape:
        _validate_reshape(who, tensor.dims, tensor.reshape.shape)


def _is_dimension(dim: int) -> bool:
    return dim >= 1 or dim == -1


def _validate_size(tensor: Any, role: str) -> None:
    if -1 in tensor.dims:
        return
    count = bounded_product(tensor.dims)
    if count > MAX_SIZE:
        raise _Problem(f"model {role} element count for tensor '{tensor.name} dims' exceeds maximum size of {MAX_SIZE}")
    datatype = BY_NUMBER[tensor.data_type]
    if count * (_BYTES_LENGTH_SIZE if datatype is BYTES else datatype.size) > MAX_SIZE:
        raise _Problem(f"model {role} byte size for tensor '{tensor.name}' exceeds maximum size of {MAX_SIZE}")


def _validate_reshape(who: str, dims: Sequence[int], shape: Sequence[int]) -> None:
    """Both must hold the same elements: between any two variable dimensions, and in front of and behind them.

    An empty shape is a scalar, which stands for exactly one element.
    """
    different = f"{who}has different size for dims and reshape"
    if (-1 in dims) != (-1 in shape):
        raise _Problem(different)
    ours, theirs = _chunks(dims), _chunks(shape)
    if len(ours) != len(theirs):
        raise _Problem(f"{who}has different number of variable-size dimensions for dims and reshape")
    if ours != theirs:
        raise _Problem(different)


def _chunks(dims: Sequence[int]) -> list[int]:
    counts = [1]
    for dim in dims:
        if dim == -1:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


def _validate_tensorrt_only(message: Any, tensor: Any, role: str) -> None:
    is_tensorrt = message.platform == "tensorrt_plan"
    if tensor.is_shape_tensor and not is_tensorrt:
        raise _Problem("shape tensors are only supported for TensorRT platform")
    if tensor.is_non_linear_format_io:
        if not is_tensorrt:
            raise _Problem("Non-linear IO format is only supported for the TensorRT platform")
        if len(tensor.dims) != 3:
            raise _Problem(f"Non-linear IO format {role} requires 3 dims")


def _validate_batch_inputs(message: Any) -> None:
    inputs = {tensor.name for tensor in message.input}
    for item in message.batch_input:
        kind = enum_name(item, "kind")
        if kind.isdigit() or kind.startswith("-"):
            raise _Problem(f"unknown batch input kind '{kind}'")
        if len(item.source_input) != 1:
            raise _Problem(f"batch input kind '{kind}' expects 1 source input, got {len(item.source_input)}")
        if item.data_type not in (INT32.number, FP32.number):
            raise _Problem("batch input data type must be TYPE_INT32 or TYPE_FP32")
        _validate_sources(item, inputs)


def _validate_batch_outputs(message: Any) -> None:
    inputs = {tensor.name for tensor in message.input}
    outputs = {tensor.name for tensor in message.output}
    seen: set[str] = set()
    for item in message.batch_output:
        kind = enum_name(item, "kind")
        if kind.isdigit() or kind.startswith("-"):
            raise _Problem(f"unknown batch output kind '{kind}'")
        if len(item.source_input) != 1:
            raise _Problem(f"batch output kind '{kind}' expects 1 source input, got {len(item.source_input)}")
        for name in item.target_name:
            if name not in outputs:
                raise _Problem(f"unknown target output name '{name}'")
            if name in seen:
                raise _Problem(f"target output name '{name}' can only be specified once")
            seen.add(name)
        _validate_sources(item, inputs)


def _validate_sources(item: Any, inputs: set[str]) -> None:
    for name in item.source_input:
        if name not in inputs:
            raise _Problem(f"unknown source input name '{name}'")
