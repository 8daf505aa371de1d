"""What actors say to each other: small, frozen, named by what they say."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.execution import ExecutionBatch
from ..engine.scheduling.core import InstanceId


@dataclass(frozen=True, slots=True)
class QueueChanged:
    """To a scheduler: jobs came, or gave up, since it last looked. One waits in the box at most."""


@dataclass(frozen=True, slots=True)
class InstanceIdle:
    """To a scheduler: this instance can take a batch."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class InstanceGranted:
    """To a scheduler: the rate limiter lets this instance execute."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class BatchSealed:
    """To an instance: execute this."""

    batch: ExecutionBatch


@dataclass(frozen=True, slots=True)
class StopInstance:
    """To an instance: close, once the batch in hand is done."""


SchedulerMessage = QueueChanged | InstanceIdle | InstanceGranted
InstanceMessage = BatchSealed | StopInstance

QUEUE_CHANGED = QueueChanged()
