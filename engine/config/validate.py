"""Checks of a configuration: its settings (docs/reference/model-configuration.md#settings), then its tensors.

Each check yields what is wrong, in order; the first problem is what is raised, and the checks behind it do not run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from ..datatypes import BY_NUMBER, BYTES, FP32, INT32
from ..tensor_limits import MAX_ELEMENTS, MAX_RANK, bounded_product
from .ensemble import ensemble_problems
from .model import ModelConfig, enum_name, refuse
from .platforms import ENSEMBLE, PLATFORMS
from .sequence import sequence_problems


def validate(config: ModelConfig) -> None:
    """Check a normalised configuration completely, tensors included; see `validate_settings`."""
    validate_settings(config.message)
    validate_tensors(config.message)


def validate_settings(message: Any) -> None:
    """Check everything but inputs and outputs: what must hold before a backend completes the configuration.

    Raises:
        InvalidArgumentError: the first thing that is wrong, in the words of
            docs/reference/model-configuration.md#settings.
    """
    refuse(setting_problems(message))


def setting_problems(message: Any) -> Iterator[str]:
    """All that `validate_settings` would refuse, in order."""
    name, batching = message.name, message.dynamic_batching
    if not name:
        yield "model configuration must specify 'name'"
    yield from _platform_problems(message)
    if message.max_batch_size < 0:
        yield f"'max_batch_size' must be non-negative value for {name}"
    for problem in _dynamic_batching_problems(batching, message.max_batch_size):
        yield f"{problem} for {name}"
    if message.HasField("sequence_batching"):
        yield from sequence_problems(message)
    if message.HasField("ensemble_scheduling"):
        yield from ensemble_problems(message)
    elif message.platform == ENSEMBLE:
        yield f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble"
    if message.response_cache.enable and message.model_transaction_policy.decoupled:
        yield (
            f"Response Cache does not currently support model {name} with 'decoupled' transaction policy. "
            "Please disable the response cache."
        )
    yield from _metric_problems(message)


def _platform_problems(message: Any) -> Iterator[str]:
    if not message.backend and message.platform != ENSEMBLE:
        yield f"unexpected platform type '{message.platform}' for {message.name}"
    if message.backend and message.platform == ENSEMBLE:
        yield f"Ensemble model '{message.name}' must have platform type 'ensemble' and empty backend type"
    if message.backend in PLATFORMS and message.platform not in PLATFORMS[message.backend]:
        yield f"unexpected 'platform' and 'backend' pair, got:{message.platform}, {message.backend}"


def _dynamic_batching_problems(batching: Any, max_batch_size: int) -> Iterator[str]:
    """Nothing, where there is no dynamic batching: all of it is at its defaults then."""
    for size in batching.preferred_batch_size:
        if size <= 0:
            yield "dynamic batching preferred size must be positive"
        if size > max_batch_size:
            yield "dynamic batching preferred size must be <= max batch size"
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        yield f"default priority level must be in range [1, {levels}]"
    if levels and any(not 1 <= level <= levels for level in batching.priority_queue_policy):
        yield f"priority queue policy must have priority level in range [1, {levels}]"
    if not batching.preserve_ordering:
        return
    if levels > 1:
        yield "Only one priority level is allowed when 'preserve_ordering' is true"
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        if policy.timeout_action == policy.DELAY and policy.default_timeout_microseconds != 0:
            yield "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true"


def _metric_problems(message: Any) -> Iterator[str]:
    for control in message.model_metrics.metric_control:
        buckets = control.histogram_options.buckets
        if not control.HasField("metric_identifier"):
            yield "metric control must specify 'metric_identifier'"
        if not control.metric_identifier.family:
            yield "metric identifier must specify non-empty 'family'"
        if not control.HasField("histogram_options"):
            yield "metric control must specify 'histogram_options'"
        if not buckets:
            yield "histogram options must specify non-empty 'buckets'"
        if not all(low < high for low, high in pairwise((-math.inf, *buckets, math.inf))):
            yield "histogram options must specify finite 'buckets' in increasing order"


# -- Checks of inputs, outputs and the tensors made from batches (docs/reference/model-configuration.md#tensors)


_FORMATS_WITH_THREE_DIMS = ("FORMAT_NHWC", "FORMAT_NCHW")
_BYTES_LENGTH_SIZE = 4


def validate_tensors(message: Any) -> None:
    """Check all tensors of a configuration.

    Raises:
        InvalidArgumentError: the first thing that is wrong; every text ends with `` for <model>``.
    """
    refuse(tensor_problems(message))


def tensor_problems(message: Any) -> Iterator[str]:
    """All that `validate_tensors` would refuse, in order."""
    return (f"{problem} for {message.name}" for problem in _all_tensor_problems(message))


def _all_tensor_problems(message: Any) -> Iterator[str]:
    for tensor in message.input:
        yield from _tensor_problems(message, tensor, "input")
        if enum_name(tensor, "format") in _FORMATS_WITH_THREE_DIMS and len(tensor.dims) != 3:
            yield "model input NHWC/NCHW require 3 dims"
        yield from _tensorrt_problems(message, tensor, "input")
    for tensor in message.output:
        yield from _tensor_problems(message, tensor, "output")
        yield from _tensorrt_problems(message, tensor, "output")
    yield from _batch_problems(message)


def _tensor_problems(message: Any, tensor: Any, role: str) -> Iterator[str]:
    who = f"model {role} "
    if not tensor.name:
        yield f"{who}must specify 'name'"
    who += f"'{tensor.name}' "
    if tensor.data_type not in BY_NUMBER:
        yield f"{who}must specify 'data_type'"
    if not tensor.dims:
        yield f"{who}must specify 'dims'"
    has_reshape = tensor.HasField("reshape")
    if has_reshape and not tensor.reshape.shape and message.max_batch_size == 0:
        yield f"{who}cannot have empty reshape for non-batching model as scalar tensors are not supported"
    for what, dims in (("dims", tensor.dims), ("reshape", tensor.reshape.shape)):
        if len(dims) > MAX_RANK:
            yield f"{who}{what} has {len(dims)} dimensions, expected at most {MAX_RANK}"
    for what, dims in (("dimension", tensor.dims), ("reshape dimensions", tensor.reshape.shape)):
        if not all(dim >= 1 or dim == -1 for dim in dims):
            yield f"{who}{what} must be integer >= 1, or -1 to indicate a variable-size dimension"
    yield from _size_problems(tensor, role)
    if has_reshape:
        yield from _reshape_problems(who, tensor.dims, tensor.reshape.shape)


def _size_problems(tensor: Any, role: str) -> Iterator[str]:
    if -1 in tensor.dims or tensor.data_type not in BY_NUMBER:
        return
    count = bounded_product(tensor.dims)
    if count > MAX_ELEMENTS:
        yield f"model {role} element count for tensor '{tensor.name} dims' exceeds maximum size of {MAX_ELEMENTS}"
    datatype = BY_NUMBER[tensor.data_type]
    if count * (_BYTES_LENGTH_SIZE if datatype is BYTES else datatype.size) > MAX_ELEMENTS:
        yield f"model {role} byte size for tensor '{tensor.name}' exceeds maximum size of {MAX_ELEMENTS}"


def _reshape_problems(who: str, dims: Sequence[int], shape: Sequence[int]) -> Iterator[str]:
    """Both must hold the same elements: between any two variable dimensions, and in front of and behind them.

    An empty shape is a scalar, which stands for exactly one element.
    """
    ours, theirs = _chunks(dims), _chunks(shape)
    if (-1 in dims) == (-1 in shape) and len(ours) != len(theirs):
        yield f"{who}has different number of variable-size dimensions for dims and reshape"
    if ours != theirs:
        yield f"{who}has different size for dims and reshape"


def _chunks(dims: Sequence[int]) -> list[int]:
    counts = [1]
    for dim in dims:
        if dim == -1:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


def _tensorrt_problems(message: Any, tensor: Any, role: str) -> Iterator[str]:
    is_tensorrt = message.platform == "tensorrt_plan"
    if tensor.is_shape_tensor and not is_tensorrt:
        yield "shape tensors are only supported for TensorRT platform"
    if tensor.is_non_linear_format_io and not is_tensorrt:
        yield "Non-linear IO format is only supported for the TensorRT platform"
    if tensor.is_non_linear_format_io and len(tensor.dims) != 3:
        yield f"Non-linear IO format {role} requires 3 dims"


def _batch_problems(message: Any) -> Iterator[str]:
    """Of the tensors that are made from batches, and of those that are cut up by them."""
    inputs = {tensor.name for tensor in message.input}
    outputs = {tensor.name for tensor in message.output}
    for item in message.batch_input:
        yield from _source_problems(item, "input")
        if item.data_type not in (INT32.number, FP32.number):
            yield "batch input data type must be TYPE_INT32 or TYPE_FP32"
        yield from _unknown_sources(item, inputs)
    seen: set[str] = set()
    for item in message.batch_output:
        yield from _source_problems(item, "output")
        for name in item.target_name:
            if name not in outputs:
                yield f"unknown target output name '{name}'"
            if name in seen:
                yield f"target output name '{name}' can only be specified once"
            seen.add(name)
        yield from _unknown_sources(item, inputs)


def _source_problems(item: Any, role: str) -> Iterator[str]:
    kind = enum_name(item, "kind")
    if kind.isdigit() or kind.startswith("-"):
        yield f"unknown batch {role} kind '{kind}'"
    if len(item.source_input) != 1:
        yield f"batch {role} kind '{kind}' expects 1 source input, got {len(item.source_input)}"


def _unknown_sources(item: Any, inputs: set[str]) -> Iterator[str]:
    return (f"unknown source input name '{name}'" for name in item.source_input if name not in inputs)
