"""Which scheduler a model gets (docs/reference/scheduling.md#batches-and-instances)."""

from __future__ import annotations

from collections.abc import Callable

from ..config.model import ModelConfig
from ..config.objective import latency_objective_s
from ..config.sequence import OldestStrategy, sequence_batching
from ..scheduler_delays import SchedulerDelays
from .adaptive import AdaptiveBatcher
from .core import SchedulerCore
from .formation import Compatibility
from .held import HeldDynamicBatcher, HeldSequenceBatcher
from .queueing import DefaultScheduler, DynamicBatcher
from .sequence.batcher import SequenceBatcher
from .sequence.state import StateLayout
from .sequence.strategies import SequencePlan
from .strategy import StrategicBatcher, batch_strategy

NO_DELAYS = SchedulerDelays()

CoreFactory = Callable[[ModelConfig, StateLayout | None, SchedulerDelays], SchedulerCore]
"""Makes a scheduler core as `make_scheduler` does, perhaps one that is observed."""


def make_scheduler(
    config: ModelConfig, states: StateLayout | None = None, delays: SchedulerDelays = NO_DELAYS
) -> SchedulerCore:
    """A scheduler for a model that has instances.

    Args:
        config: complete and valid.
        states: its implicit states, if it has any.
        delays: how many requests it waits for first, for tests; the adaptive batcher does not, nor one with a strategy.

    Raises:
        TriremeError: see `latency_objective_s` and `batch_strategy`.
    """
    objective_s = latency_objective_s(config)
    strategy = batch_strategy(config)
    sequences = sequence_batching(config)
    if sequences is not None:
        if isinstance(sequences.strategy, OldestStrategy):
            return SequenceBatcher(SequencePlan.of(config, sequences, states, delays.queued))
        plan = SequencePlan.of(config, sequences, states)
        return HeldSequenceBatcher(plan, delays) if delays.queued else SequenceBatcher(plan)
    batching = config.dynamic_batching
    if batching is not None:
        compatibility = Compatibility.of(config)
        if strategy is not None:
            return StrategicBatcher(strategy, batching, config.max_batch_size, compatibility)
        if objective_s is not None:
            return AdaptiveBatcher(batching, config.max_batch_size, objective_s, compatibility)
        if delays.queued:
            return HeldDynamicBatcher(batching, config.max_batch_size, compatibility, delays.queued)
        return DynamicBatcher(batching, config.max_batch_size, compatibility)
    return DefaultScheduler()
