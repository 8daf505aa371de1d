"""How batches are made of what the slots of an instance offer, by either strategy
(docs/reference/sequences.md#direct-strategy, docs/reference/sequences.md#oldest-strategy).

Direct: slot n of an instance is row n of its batches.
 1. A batch is formed when the instance executes none. Its rows are the slots from 0 up to the last one that is READY.
 2. A slot that is not READY, or whose request is not compatible with the first one of the batch, contributes a null
    job. Requests that are left out keep their place.
 3. If the model has a queue delay and a minimum slot utilization, both not 0, a batch waits until enough slots are
    ready or the oldest request that is ready has waited so long. When the model is stopping, nothing waits.

Oldest: the requests of candidate sequences are batched as they come.
 4. Each slot, that is each candidate, has at most one request here, from when it is *issued* until it is executed.
 5. Batches are formed of the issued requests as the dynamic batcher does (`formation`), in the order in which they were
    issued; their delay counts from then. There are no null jobs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence as Row
from dataclasses import dataclass

import numpy as np

from ...config.model import ModelConfig
from ...config.sequence import DirectStrategy, OldestStrategy, SequenceBatching
from ...job import Job, Outcome, SealReason
from ...request import InferenceRequest
from ..core import InstanceId
from ..formation import Compatibility, Formation
from .controls import Controls
from .slot import Slot
from .state import StateLayout, zeros

FormedBatch = tuple[Row[Job], SealReason]


class SequenceHost(ABC):
    """An instance with its slots.

    Attributes:
        slots: those that are made, by number.
        ready: the slots in state READY, by number, in the order in which their requests were due.
        leaving: its slots get no new sequence.
        spare: it takes only a batch that could not grow if it waited (`SchedulerCore.instance_idle`).
        executing: batches handed to the instance and not settled.
        ripe_s: when a batch that was left to grow will be sent as it is; None if there is none.
        issued: requests that are issued and in no batch yet, in order, each with its slot (rule 4).
    """

    def __init__(self, instance: InstanceId) -> None:
        self.instance = instance
        self.slots: dict[int, Slot] = {}
        self.ready: dict[int, Slot] = {}
        self.leaving = False
        self.spare = False
        self.executing = 0
        self.ripe_s: float | None = None
        self.issued: OrderedDict[Job, Slot] = OrderedDict()

    def issue(self, now: float) -> None:
        """Move requests that may go from their slots to where batches are made, if that is another place."""

    @abstractmethod
    def form(self, now: float, draining: bool) -> FormedBatch | None:
        """The batch to execute now; None to wait, until `ripe_s` at most."""

    def withdraw(self, job: Job) -> Slot | None:
        """Take a request back that was issued, and is in no batch yet.

        Returns:
            Its slot, in which it is still out; None if there is no such request.
        """
        return self.issued.pop(job, None)


class NoReply:
    """Takes answers that no client waits for."""

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        return False


class NullJob(Job):
    """A row without a request, where a direct batch has a gap.

    It looks like a request, so that backends need not know; its READY control says that it is none. It has inputs of
    its own, made of nothing (never another client's data), asks for no answer, and counts in no statistics, but in the
    size of its batch.

    Args:
        like: the first request of the batch, which says what inputs must look like; controls and state added.
        controls: the model's.
    """

    __slots__ = ()
    is_null = True

    def __init__(self, like: Job, controls: Controls) -> None:
        inputs = {name: zeros(name, tensor.datatype, tensor.shape) for name, tensor in like.inputs.items()}
        inputs.update(controls.null)
        request = InferenceRequest(like.model_name, like.model_version)
        super().__init__(request, inputs, like.rows, like.model_name, like.model_version, NoReply())
        if like.state is not None:
            self.state = like.state.scratch()
            inputs.update(self.state.inputs)


class DirectHost(SequenceHost):
    """One instance under the direct strategy.

    Args:
        rows: max_batch_size, at least 1; the number of slots.
        compatibility: what the requests of a batch must agree on; None for nothing.
    """

    def __init__(
        self,
        instance: InstanceId,
        controls: Controls,
        strategy: DirectStrategy,
        rows: int,
        compatibility: Compatibility | None,
    ) -> None:
        super().__init__(instance)
        self._controls = controls
        self._rows = rows
        self._compatibility = compatibility
        self._delay_s = strategy.max_queue_delay_us / 1_000_000
        self._enough = _slots_needed(strategy.minimum_slot_utilization, rows)

    def form(self, now: float, draining: bool) -> FormedBatch | None:
        self.ripe_s = None
        if self.executing or not self.ready:
            return None
        reason = SealReason.DRAIN if draining else SealReason.IDLE
        if self._delay_s and self._enough and not draining:
            reason = SealReason.PREFERRED
            if len(self.ready) < self._enough:
                reason = SealReason.DELAY
                ripe_s = min(slot.next_s for slot in self.ready.values()) + self._delay_s
                if now < ripe_s:
                    self.ripe_s = ripe_s
                    return None
        jobs = self._take()
        if len(jobs) == self._rows and not any(isinstance(job, NullJob) for job in jobs):
            reason = SealReason.FULL
        return jobs, reason

    def _take(self) -> list[Job]:
        """The rows of a batch (rule 2)."""
        rows: list[Job | None] = [None] * (max(self.ready) + 1)
        first: Job | None = None
        signature = None
        for number in sorted(self.ready):
            slot = self.ready[number]
            job = slot.head
            assert job is not None, "a slot that is READY has a request that may go"
            if self._compatibility is not None:
                if first is None:
                    signature = self._compatibility.signature(job)
                elif self._compatibility.signature(job) != signature:
                    continue
            first = first or job
            rows[number] = slot.take()
        assert first is not None, "the first request that is ready is compatible with itself"
        return [NullJob(first, self._controls) if job is None else job for job in rows]


def _slots_needed(utilization: float, rows: int) -> int:
    """The fewest ready slots that are enough; 0 for no minimum. In single precision, in which it is configured."""
    if not utilization:
        return 0
    wanted = np.float32(utilization)
    return next(count for count in range(1, rows + 1) if np.float32(count) / np.float32(rows) >= wanted)


class OldestHost(SequenceHost):
    """One instance under the oldest strategy.

    Args:
        rows: max_batch_size, at least 1.
        compatibility: what the requests of a batch must agree on; None for nothing.
        least: no batch is formed before so many requests have been issued at a time (`held`); 0 for none.
    """

    def __init__(
        self,
        instance: InstanceId,
        strategy: OldestStrategy,
        rows: int,
        compatibility: Compatibility | None,
        least: int = 0,
    ) -> None:
        super().__init__(instance)
        self._least = least
        preferred = strategy.preferred_batch_sizes
        self._formation = Formation(preferred, rows, strategy.max_queue_delay_us / 1_000_000, compatibility)

    def issue(self, now: float) -> None:
        for slot in list(self.ready.values()):
            job = slot.take()
            job.enqueued_s = now
            self.issued[job] = slot

    def form(self, now: float, draining: bool) -> FormedBatch | None:
        self.ripe_s = None
        if not self.issued or (len(self.issued) < self._least and not draining):
            return None
        self._least = 0
        formation = self._formation
        formation.walk(self.issued)
        if self.spare and not formation.is_complete(now):
            return None
        decision = formation.decide(now, draining)
        if decision is None:
            self.ripe_s = formation.ripe_s
            return None
        count, reason = decision
        return [self.issued.popitem(last=False)[0] for _ in range(count)], reason

    def withdraw(self, job: Job) -> Slot | None:
        slot = super().withdraw(job)
        if slot is not None and self._least:
            self._least -= 1  # it counts as if it were still there (`held`)
        return slot


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """A model's way with sequences.

    Attributes:
        rows: most rows of a batch: max_batch_size, at least 1.
        controls: complete the inputs of requests.
        compatibility: what the requests of a batch must agree on; None for nothing.
        least_issued: oldest strategy: so many requests an instance waits for once (`held`).
    """

    batching: SequenceBatching
    rows: int
    controls: Controls
    compatibility: Compatibility | None
    least_issued: int = 0

    @classmethod
    def of(
        cls, config: ModelConfig, batching: SequenceBatching, states: StateLayout | None, least_issued: int = 0
    ) -> SequencePlan:
        """The plan for a model with this (complete, valid) configuration and these implicit states."""
        controls = Controls(batching.controls, config.max_batch_size > 0, states)
        compatibility = Compatibility.of(config, states is not None)
        return cls(batching, max(1, config.max_batch_size), controls, compatibility, least_issued)

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

    def host(self, instance: InstanceId) -> SequenceHost:
        """An instance, which has no slots yet."""
        strategy = self.batching.strategy
        if isinstance(strategy, OldestStrategy):
            return OldestHost(instance, strategy, self.rows, self.compatibility, self.least_issued)
        return DirectHost(instance, self.controls, strategy, self.rows, self.compatibility)
