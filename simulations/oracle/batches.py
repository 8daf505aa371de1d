"""Which batch is right: a function of what is queued, in order, and of the time
(docs/reference/scheduling.md#forming-a-batch, docs/reference/scheduling.md#compatible-requests)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...engine.config.model import DynamicBatching, ModelConfig
from ...engine.job import SealReason
from .queues import NaiveEntry


@dataclass(frozen=True, slots=True)
class Batch:
    """The first `count` requests of the queue are to be executed, for this reason."""

    count: int
    reason: SealReason


@dataclass(frozen=True, slots=True)
class NotYet:
    """No batch is due before `due_s`, unless something happens."""

    due_s: float


def may_share(config: ModelConfig, first: NaiveEntry, other: NaiveEntry) -> bool:
    """Inputs with a variable dimension have equal shapes, the batch dimension aside, unless ragged batches are allowed;
    shape tensors have equal contents; if any input is optional, both requests give the same ones."""
    for tensor in config.input:
        mine, its = first.inputs.get(tensor.name), other.inputs.get(tensor.name)
        if tensor.optional and (mine is None) != (its is None):
            return False
        if mine is None or its is None:
            continue
        if tensor.is_shape_tensor:
            if mine.shape != its.shape or mine.array.tolist() != its.array.tolist():
                return False
        elif -1 in tensor.dims and not tensor.allow_ragged_batch and mine.shape[1:] != its.shape[1:]:
            return False
    if any(tensor.optional for tensor in config.input):
        return sorted(first.inputs) == sorted(other.inputs)
    return True


def _can_differ(config: ModelConfig) -> bool:
    """Whether there may be two requests that may not share a batch."""
    return any(each.optional or each.is_shape_tensor or -1 in each.dims for each in config.input)


def right_batch(
    config: ModelConfig, batching: DynamicBatching, queue: Sequence[NaiveEntry], now_s: float, stopping: bool
) -> Batch | NotYet:
    """What an idle instance is to be given of a queue that is not empty.

    Args:
        queue: in the order of execution.
        stopping: no delay is waited for any more.
    """
    most = max(1, config.max_batch_size)
    preferred = batching.preferred_batch_sizes or (most,)
    delay_s = batching.max_queue_delay_us / 1_000_000

    # "The first request starts the batch, whatever its size. The next one joins unless the batch had more rows than
    # max_batch_size with it, or it may not share a batch with the first; then no request behind it joins either."
    candidates = 1
    alike = not _can_differ(config)
    sizes = [queue[0].rows]
    end: SealReason | None = None
    while end is None and candidates < len(queue):
        other = queue[candidates]
        if sizes[-1] + other.rows > most:
            end = SealReason.FULL
        elif not (alike or may_share(config, queue[0], other)):
            end = SealReason.SHAPE
        else:
            candidates += 1
            sizes.append(sizes[-1] + other.rows)
    if sizes[-1] >= most:
        end = SealReason.FULL

    # "The delay is over when the oldest of them has waited for it."
    due_s = min(entry.queued_s for entry in queue[:candidates]) + delay_s
    if delay_s == 0 or now_s < due_s:
        # "Unless a delay is over, the batch ends at the last preferred size,
        exact = [count for count, size in enumerate(sizes, start=1) if size in preferred]
        if exact:
            return Batch(exact[-1], SealReason.FULL if sizes[exact[-1] - 1] >= most else SealReason.PREFERRED)
        # or else before the request that brings it over the largest one."
        for count, entry in enumerate(queue[1 : candidates + 1], start=1):
            if sizes[count - 1] + entry.rows > max(preferred):
                return Batch(count, SealReason.FULL)
    # "Otherwise all of them go, if no other may join, if a delay is over, if there are as many rows as the largest
    # preferred size, or if nothing says to wait."
    if end is not None:
        return Batch(candidates, end)
    if delay_s and now_s >= due_s:
        return Batch(candidates, SealReason.DELAY)
    if sizes[-1] >= max(preferred):
        return Batch(candidates, SealReason.FULL)
    if stopping:
        return Batch(candidates, SealReason.DRAIN)
    if not delay_s:
        return Batch(candidates, SealReason.IDLE)
    return NotYet(due_s)


def cannot_grow(
    config: ModelConfig, batching: DynamicBatching, queue: Sequence[NaiveEntry], now_s: float, stopping: bool
) -> bool:
    """Whether the batch that is right now is right whatever requests like the first one come, and however long it
    waits."""
    right = right_batch(config, batching, queue, now_s, stopping)
    if isinstance(right, NotYet):
        return False
    end_s = max(entry.queued_s for entry in queue) + batching.max_queue_delay_us / 1_000_000
    like = replace(queue[0], rows=1, queued_s=now_s)
    for count in range(max(1, config.max_batch_size) + 1):
        for moment_s in (now_s, end_s):
            other = right_batch(config, batching, [*queue, *[like] * count], moment_s, stopping)
            if not isinstance(other, Batch) or other.count != right.count:
                return False
    return True
