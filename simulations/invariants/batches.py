"""Batches are within their limits, and the reason given for each is true."""

from __future__ import annotations

from ...engine.config.objective import PARAMETER
from ...engine.job import SealReason
from ...engine.scheduling.formation import Compatibility
from ..events import BatchSealed
from ..history import Handlers
from .base import Complain, Invariant
from .state import ModelView, WorldState

TOLERANCE_NS = 1_000
"""Deadlines are floats of seconds, events are whole nanoseconds."""

_CHOSEN = (SealReason.FULL.value, SealReason.DELAY.value)


class BatchLimits(Invariant):
    """Rows, preferred sizes, and `SealReason` (docs/reference/scheduling.md#default-scheduler,
    docs/reference/scheduling.md#forming-a-batch)."""

    name = "batches are within their limits"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state

    def handlers(self) -> Handlers:
        return {BatchSealed: self._sealed}

    def _sealed(self, batch: BatchSealed) -> None:
        view = self._state.models[batch.model]
        most = max(1, view.config.max_batch_size)
        if not batch.requests:
            self.broken(f"batch {batch.batch} for {batch.instance} is empty")
        elif batch.rows > most:
            self.broken(f"batch {batch.batch} for {batch.instance} has {batch.rows} rows, more than {most}")
        elif not self._is_true(batch, view, most):
            size = f"{len(batch.requests)} requests, {batch.rows} rows"
            self.broken(f"batch {batch.batch} for {batch.instance} ({size}) is said to be sealed for: {batch.reason}")

    def _is_true(self, batch: BatchSealed, view: ModelView, most: int) -> bool:
        batching = view.config.dynamic_batching
        if view.isolated.issuperset(batch.requests):
            return batch.reason == SealReason.UNBATCHED.value and len(batch.requests) == 1
        if view.config.has_sequence_batching:
            return any(batch.requests) and batch.reason != SealReason.UNBATCHED.value
        if batching is None:
            return batch.reason == SealReason.UNBATCHED.value and len(batch.requests) == 1
        preferred = batching.preferred_batch_sizes or (most,)
        delay_ns = batching.max_queue_delay_us * 1_000
        if PARAMETER in view.config.parameters and batch.reason in _CHOSEN:
            return True  # by the batcher (`oracle.adaptive`)
        match SealReason(batch.reason):
            case SealReason.FULL:
                return batch.rows >= max(preferred) or self._next_does_not_fit(batch, view, max(preferred))
            case SealReason.PREFERRED:
                return batch.rows in preferred
            case SealReason.DELAY:
                oldest_ns = min(request.queued_ns for request in view.line.waiting.values())
                return bool(delay_ns) and batch.at_ns + TOLERANCE_NS >= oldest_ns + delay_ns
            case SealReason.IDLE:
                return not delay_ns and not view.stopping
            case SealReason.DRAIN:
                return view.stopping
            case SealReason.SHAPE:
                return Compatibility.of(view.config) is not None
            case SealReason.UNBATCHED | SealReason.STRATEGY:
                return False

    def _next_does_not_fit(self, batch: BatchSealed, view: ModelView, largest: int) -> bool:
        taken = len(batch.requests)
        for index, request in enumerate(view.line.ordered(batch.at_ns)):
            if index == taken:
                return batch.rows + request.rows > largest
        return False
