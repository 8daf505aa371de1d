"""Which scheduler a model gets (scheduling.md §1)."""

from __future__ import annotations

from ..config.model import ModelConfig
from ..config.sequence import sequence_batching
from .compatibility import Compatibility
from .core import SchedulerCore
from .default import DefaultScheduler
from .dynamic import DynamicBatcher
from .sequence.batcher import SequenceBatcher
from .sequence.plan import SequencePlan
from .sequence.state import StateLayout


def make_scheduler(config: ModelConfig, states: StateLayout | None = None) -> SchedulerCore:
    """A scheduler for a model that has instances.

    Args:
        config: complete and valid.
        states: its implicit states, if it has any.
    """
    sequences = sequence_batching(config)
    if sequences is not None:
        return SequenceBatcher(SequencePlan.of(config, sequences, states))
    if config.dynamic_batching is not None:
        return DynamicBatcher(config.dynamic_batching, config.max_batch_size, Compatibility.of(config))
    return DefaultScheduler()
