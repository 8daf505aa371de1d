"""Everything about a configuration that is checked without looking at its tensors
(docs/reference/model-configuration.md#settings)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from ..errors import InvalidArgumentError
from .ensemble import validate_ensemble
from .model import ModelConfig
from .platforms import ENSEMBLE, PLATFORMS
from .sequence import validate_sequence_batching
from .validate_tensors import validate_tensors


def validate(config: ModelConfig) -> None:
    """Check a normalised configuration completely, tensors included.

    Raises:
        InvalidArgumentError: the first thing that is wrong, in the words of
            docs/reference/model-configuration.md#settings.
    """
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
    _validate_response_cache(message)
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


def _validate_response_cache(message: Any) -> None:
    if message.response_cache.enable and message.model_transaction_policy.decoupled:
        raise InvalidArgumentError(
            f"Response Cache does not currently support model {message.name} with 'decoupled' transaction policy. "
            "Please disable the response cache."
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
