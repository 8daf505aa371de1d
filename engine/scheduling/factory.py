"""Which scheduler a model gets (scheduling.md §1)."""

from __future__ import annotations

from ..config.model import ModelConfig
from ..errors import UnsupportedError
from .compatibility import Compatibility
from .core import SchedulerCore
from .default import DefaultScheduler
from .dynamic import DynamicBatcher


def make_scheduler(config: ModelConfig) -> SchedulerCore:
    """A scheduler for a model with this (complete, valid) configuration.

    Raises:
        UnsupportedError: it asks for a scheduler that this version does not have.
    """
    for asked, name in (
        (config.has_sequence_batching, "sequence_batching"),
        (config.has_ensemble_scheduling, "ensemble_scheduling"),
    ):
        if asked:
            raise UnsupportedError(
                f"model '{config.name}' is configured with '{name}', which this version of Trireme does not support; "
                "supported are 'dynamic_batching' and no scheduler at all"
            )
    if config.dynamic_batching is not None:
        return DynamicBatcher(config.dynamic_batching, config.max_batch_size, Compatibility.of(config))
    return DefaultScheduler()
