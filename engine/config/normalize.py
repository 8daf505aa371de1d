"""Defaults that the server writes into a configuration (docs/reference/model-configuration.md#defaults)."""

from __future__ import annotations

from typing import Any

from .platforms import ENSEMBLE

DEFAULT_SEQUENCE_IDLE_US = 1_000_000


def normalize(message: Any) -> None:
    """Fill in, in place, every default that does not depend on devices. Doing it twice changes nothing."""
    if not message.HasField("version_policy"):
        message.version_policy.latest.num_versions = 1
    if message.HasField("dynamic_batching"):
        _prefer_full_batches(message.dynamic_batching, message.max_batch_size)
    if message.HasField("sequence_batching"):
        batching = message.sequence_batching
        if batching.max_sequence_idle_microseconds == 0:
            batching.max_sequence_idle_microseconds = DEFAULT_SEQUENCE_IDLE_US
        if batching.HasField("oldest"):
            _prefer_full_batches(batching.oldest, message.max_batch_size)
    if not is_ensemble(message):
        optimization = message.optimization
        for name in ("input_pinned_memory", "output_pinned_memory"):
            if not optimization.HasField(name):
                getattr(optimization, name).enable = True


def is_ensemble(message: Any) -> bool:
    return message.platform == ENSEMBLE or message.HasField("ensemble_scheduling")


def _prefer_full_batches(batching: Any, max_batch_size: int) -> None:
    if max_batch_size > 0 and not batching.preferred_batch_size:
        batching.preferred_batch_size.append(max_batch_size)
