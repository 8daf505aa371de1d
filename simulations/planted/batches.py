"""Bugs of queues and batches, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...engine.config.model import QueuePolicy
from ...engine.job import Job, SealReason
from ...engine.scheduling.batch import BatchLayout, _ScatterLayout
from ...engine.scheduling.core import InstanceId
from ...engine.scheduling.formation import Compatibility, Formation
from ...engine.scheduling.queue import PriorityQueues
from ...engine.scheduling.queueing import DynamicBatcher


def _exceeded_batch(original: Any, batcher: DynamicBatcher, batching: Any, max_batch_size: int, *rest: Any) -> None:
    """Off by one: batches may grow one row too large."""
    original(batcher, batching, max_batch_size + 1, *rest)


def _inverted_priority(original: Any, queues: PriorityQueues, job: Job, now: float) -> bool:
    """A level that was empty is put last instead of where it belongs."""
    is_last = original(queues, job, now)
    queues._active.sort(key=lambda level: (level == job.level, level))
    return is_last


def _forgotten_instance(original: Any, batcher: DynamicBatcher, instance: InstanceId) -> None:
    """When an instance goes, those that are idle are forgotten with it."""
    original(batcher, instance)
    batcher._idle.clear()


def _latest_idle_first(original: Any, batcher: DynamicBatcher, instance: InstanceId, *spare: bool) -> None:
    """The instance that became idle last takes the next batch."""
    original(batcher, instance, *spare)
    batcher._idle.rotate(1)


def _first_preferred(original: Any, formation: Formation, job: Job) -> bool:
    """A batch ends at the first preferred size, not at the last."""
    cut, reason = formation._cut, formation._cut_reason
    goes_on = original(formation, job)
    if cut:
        formation._cut, formation._cut_reason = cut, reason
    return goes_on


def _delay_of_the_first(original: Any, formation: Formation, job: Job) -> bool:
    """The delay counts from the first request of a batch, though that may not be the oldest one."""
    oldest_s = formation._oldest_s
    goes_on = original(formation, job)
    if formation.count > 1:
        formation._oldest_s = oldest_s
    return goes_on


def _longer_override(original: Any, queues: PriorityQueues, job: Job, policy: QueuePolicy, now: float) -> None:
    """A request may ask for a longer time than the default one."""
    asked_us = job.request.timeout_us
    longer = policy.allow_timeout_override and asked_us > policy.default_timeout_us
    original(queues, job, replace(policy, default_timeout_us=asked_us) if longer else policy, now)


def _anyones_reason(original: Any, formation: Formation, now: float, draining: bool) -> Any:
    """A batch that is sent when its delay is over is said to be sent for an idle instance."""
    count, reason = original(formation, now, draining) or (0, SealReason.IDLE)
    return (count, SealReason.IDLE if reason is SealReason.DELAY else reason) if count else None


def _names_alone(original: Any, compatibility: Compatibility, job: Job) -> Hashable:
    """Who gives the same inputs may share a batch, whatever is in a shape tensor."""
    contents, compatibility.contents = compatibility.contents, ()
    try:
        return original(compatibility, job)
    finally:
        compatibility.contents = contents


def _cut_from_the_end(original: Any, layout: Any, array: np.ndarray, jobs: Sequence[Job]) -> Any:
    """A flat output is cut up from its end."""
    return original(layout, array, jobs[::-1])[::-1]


def _rows_of_a_neighbour(original: Any, layout: BatchLayout, jobs: Sequence[Job], outputs: Sequence[Any]) -> Any:
    """In a batch of three or more, the last two get each other's rows."""
    shares = original(layout, jobs, outputs)
    if len(shares) > 2 and jobs[-1].rows == jobs[-2].rows:
        (one, mine), (other, its) = shares[-2:]
        shares[-2:] = (one, its), (other, mine)
    return shares


BATCH_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "exceeded-batch": (DynamicBatcher, "__init__", _exceeded_batch),
    "inverted-priority": (PriorityQueues, "put", _inverted_priority),
    "forgotten-instance": (DynamicBatcher, "instance_gone", _forgotten_instance),
    "latest-idle-first": (DynamicBatcher, "instance_idle", _latest_idle_first),
    "first-preferred": (Formation, "add", _first_preferred),
    "delay-of-the-first": (Formation, "add", _delay_of_the_first),
    "longer-override": (PriorityQueues, "_set_deadline", _longer_override),
    "anyones-reason": (Formation, "decide", _anyones_reason),
    "names-alone": (Compatibility, "signature", _names_alone),
    "cut-from-the-end": (_ScatterLayout, "split", _cut_from_the_end),
    "rows-of-a-neighbour": (BatchLayout, "split", _rows_of_a_neighbour),
}
