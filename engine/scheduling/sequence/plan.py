"""What a model's configuration asks of its sequence batcher, worked out once."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.model import ModelConfig
from ...config.sequence import OldestStrategy, SequenceBatching
from ..compatibility import Compatibility
from ..core import InstanceId
from .compatibility import SequenceCompatibility
from .controls import Controls
from .direct import DirectHost
from .host import Host
from .inputs import InputAdder
from .oldest import OldestHost
from .state import StateLayout


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """A model's way with sequences.

    Attributes:
        rows: most rows of a batch: max_batch_size, at least 1.
        inputs: completes the inputs of requests.
        compatibility: what the requests of a batch must agree on; None for nothing.
        least_issued: oldest strategy: so many requests an instance waits for once (`held`).
    """

    batching: SequenceBatching
    rows: int
    inputs: InputAdder
    compatibility: Compatibility | None
    least_issued: int = 0

    @classmethod
    def of(
        cls, config: ModelConfig, batching: SequenceBatching, states: StateLayout | None, least_issued: int = 0
    ) -> SequencePlan:
        """The plan for a model with this (complete, valid) configuration and these implicit states."""
        controls = Controls(batching.controls, config.max_batch_size > 0)
        compatibility = Compatibility.of(config)
        if states is not None and config.max_batch_size > 0:
            compatibility = SequenceCompatibility(compatibility)
        inputs = InputAdder(controls, states)
        return cls(batching, max(1, config.max_batch_size), inputs, compatibility, least_issued)

    @property
    def iterative(self) -> bool:
        return self.batching.iterative

    @property
    def max_idle_s(self) -> float:
        return self.batching.max_sequence_idle_us / 1_000_000

    @property
    def slots(self) -> int:
        """Slots of an instance."""
        strategy = self.batching.strategy
        if isinstance(strategy, OldestStrategy) and strategy.max_candidate_sequences > 0:
            return strategy.max_candidate_sequences
        return self.rows

    def host(self, instance: InstanceId) -> Host:
        """An instance, which has no slots yet."""
        strategy = self.batching.strategy
        if isinstance(strategy, OldestStrategy):
            return OldestHost(instance, strategy, self.rows, self.compatibility, self.least_issued)
        return DirectHost(instance, self.inputs.controls, strategy, self.rows, self.compatibility)
