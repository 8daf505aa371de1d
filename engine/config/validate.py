"""Checks of a configuration: its settings (docs/reference/model-configuration.md#settings), then its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..datatypes import BY_NUMBER, BYTES, FP32, INT32
from ..errors import InvalidArgumentError
from ..tensor_limits import MAX_ELEMENTS, MAX_RANK, bounded_product
from .build import enum_name
from .ensemble import validate_ensemble
from .model import ModelConfig
from .platforms import ENSEMBLE, PLATFORMS
from .sequence import validate_sequence_batching


def validate(config: ModelConfig) -> None:
    """Check a normalised configuration completely, tensors included; errors as of `validate_settings`."""
    validate_settings(config.message)
    validate_tensors(config.message)


def validate_settings(message: Any) -> None:
    """Check everything but inputs and outputs: what must hold before a backend completes the configuration.

    Raises:
        InvalidArgumentError: the first thing that is wrong, in the words of
            docs/reference/model-configuration.md#settings.
    """
    if not message.name:
        raise InvalidArgumentError("model configuration must specify 'name'")
    _validate_platform(message)
    if message.max_batch_size < 0:
        raise InvalidArgumentError(f"'max_batch_size' must be non-negative value for {message.name}")
    if message.HasField("dynamic_batching"):
        _validate_dynamic_batching(message)
    if message.HasField("sequence_batching"):
        validate_sequence_batching(message)
    if message.HasField("ensemble_scheduling"):
        validate_ensemble(message)
    elif message.platform == ENSEMBLE:
        raise InvalidArgumentError(
            f"ensemble scheduling must be set for ensemble {message.name} whose platform is ensemble"
        )
    if message.response_cache.enable and message.model_transaction_policy.decoupled:
        raise InvalidArgumentError(
            f"Response Cache does not currently support model {message.name} with 'decoupled' transaction policy. "
            "Please disable the response cache."
        )
    _validate_metrics(message)


def _validate_platform(message: Any) -> None:
    if not message.backend and message.platform != ENSEMBLE:
        raise InvalidArgumentError(f"unexpected platform type '{message.platform}' for {message.name}")
    if message.backend and message.platform == ENSEMBLE:
        raise InvalidArgumentError(
            f"Ensemble model '{message.name}' must have platform type 'ensemble' and empty backend type"
        )
    if message.backend in PLATFORMS and message.platform not in PLATFORMS[message.backend]:
        raise InvalidArgumentError(
            f"unexpected 'platform' and 'backend' pair, got:{message.platform}, {message.backend}"
        )


def _validate_dynamic_batching(message: Any) -> None:
    batching = message.dynamic_batching
    for size in batching.preferred_batch_size:
        if size <= 0:
            raise InvalidArgumentError(f"dynamic batching preferred size must be positive for {message.name}")
        if size > message.max_batch_size:
            raise InvalidArgumentError(f"dynamic batching preferred size must be <= max batch size for {message.name}")
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            raise InvalidArgumentError(f"default priority level must be in range [1, {levels}] for {message.name}")
        if any(not 1 <= level <= levels for level in batching.priority_queue_policy):
            raise InvalidArgumentError(
                f"priority queue policy must have priority level in range [1, {levels}] for {message.name}"
            )
    if batching.preserve_ordering:
        _validate_ordering(message)


def _validate_ordering(message: Any) -> None:
    batching = message.dynamic_batching
    if batching.priority_levels > 1:
        raise InvalidArgumentError(
            f"Only one priority level is allowed when 'preserve_ordering' is true for {message.name}"
        )
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        if policy.timeout_action == policy.DELAY and policy.default_timeout_microseconds != 0:
            raise InvalidArgumentError(
                f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {message.name}"
            )


def _validate_metrics(message: Any) -> None:
    for control in message.model_metrics.metric_control:
        if not control.HasField("metric_identifier"):
            raise InvalidArgumentError("metric control must specify 'metric_identifier'")
        if not control.metric_identifier.family:
            raise InvalidArgumentError("metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            raise InvalidArgumentError("metric control must specify 'histogram_options'")
        if not control.histogram_options.buckets:
            raise InvalidArgumentError("histogram options must specify non-empty 'buckets'")
        if not all(low < high for low, high in pairwise((-math.inf, *control.histogram_options.buckets, math.inf))):
            raise InvalidArgumentError("histogram options must specify finite 'buckets' in increasing order")


# -- Checks of inputs, outputs and the tensors made from batches (docs/reference/model-configuration.md#tensors)


_FORMATS_WITH_THREE_DIMS = ("FORMAT_NHWC", "FORMAT_NCHW")
_BYTES_LENGTH_SIZE = 4


def validate_tensors(message: Any) -> None:
    """Check all tensors of a configuration.

    Raises:
        InvalidArgumentError: as above; every text ends with `` for <model>``.
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
    if count > MAX_ELEMENTS:
        raise _Problem(
            f"model {role} element count for tensor '{tensor.name} dims' exceeds maximum size of {MAX_ELEMENTS}"
        )
    datatype = BY_NUMBER[tensor.data_type]
    if count * (_BYTES_LENGTH_SIZE if datatype is BYTES else datatype.size) > MAX_ELEMENTS:
        raise _Problem(f"model {role} byte size for tensor '{tensor.name}' exceeds maximum size of {MAX_ELEMENTS}")


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
    for item in message.batch_input:
        _validate_kind(item, "input")
        if item.data_type not in (INT32.number, FP32.number):
            raise _Problem("batch input data type must be TYPE_INT32 or TYPE_FP32")
        _validate_sources(message, item)


def _validate_batch_outputs(message: Any) -> None:
    outputs = {tensor.name for tensor in message.output}
    seen: set[str] = set()
    for item in message.batch_output:
        _validate_kind(item, "output")
        for name in item.target_name:
            if name not in outputs:
                raise _Problem(f"unknown target output name '{name}'")
            if name in seen:
                raise _Problem(f"target output name '{name}' can only be specified once")
            seen.add(name)
        _validate_sources(message, item)


def _validate_kind(item: Any, role: str) -> None:
    kind = enum_name(item, "kind")
    if kind.isdigit() or kind.startswith("-"):
        raise _Problem(f"unknown batch {role} kind '{kind}'")
    if len(item.source_input) != 1:
        raise _Problem(f"batch {role} kind '{kind}' expects 1 source input, got {len(item.source_input)}")


def _validate_sources(message: Any, item: Any) -> None:
    for name in item.source_input:
        if all(name != tensor.name for tensor in message.input):
            raise _Problem(f"unknown source input name '{name}'")
