"""Jobs to schedule, and a small world in virtual time to schedule them in."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pytest

from trireme.engine.datatypes import FP32
from trireme.engine.errors import TriremeError
from trireme.engine.job import Job, Outcome, SealReason
from trireme.engine.request import InferenceRequest
from trireme.engine.scheduling.core import Dispatch, Reject, SchedulerCore, WaitUntil
from trireme.engine.tensor import Tensor


class NoReply:
    """Cores never answer jobs."""

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        raise AssertionError("a scheduler core answered a job")


def job(
    name: str | int = "", rows: int = 1, priority: int = 0, timeout_us: int = 0, shape: tuple[int, ...] | None = None
) -> Job:
    """A job for model ``m``, with one input ``IN`` of this shape (without the batch dimension) if one is given."""
    inputs = {}
    if shape is not None:
        inputs["IN"] = Tensor("IN", FP32, (rows, *shape), array=np.zeros((rows, *shape), np.float32))
    request = InferenceRequest("m", id=str(name), priority=priority, timeout_us=timeout_us)
    return Job(request, inputs, rows, "m", 1, NoReply())


@dataclass
class History:
    """What happened. Times in seconds, jobs by id.

    Attributes:
        batches: (when it started, ids, why it was sealed), in order.
        instances: who executed each batch.
        rejected: (when, id, error) of jobs that left the queue unexecuted.
        refused: id and error of jobs that did not get in.
    """

    batches: list[tuple[float, list[str], SealReason]] = field(default_factory=list)
    instances: list[int] = field(default_factory=list)
    rejected: list[tuple[float, str, TriremeError]] = field(default_factory=list)
    refused: dict[str, TriremeError] = field(default_factory=dict)

    @property
    def ids(self) -> list[list[str]]:
        """The batches' ids."""
        return [ids for _, ids, _ in self.batches]

    @property
    def sizes(self) -> list[int]:
        """How many requests there were in each batch."""
        return [len(ids) for ids in self.ids]

    @property
    def starts(self) -> list[float]:
        return [start_s for start_s, _, _ in self.batches]

    @property
    def reasons(self) -> list[SealReason]:
        return [reason for _, _, reason in self.batches]


def simulate(
    core: SchedulerCore, arrivals: Iterable[tuple[float, Job]], busy_s: float = 1.0, instances: int = 1
) -> History:
    """Run a core in virtual time until nothing more happens.

    Args:
        arrivals: (seconds, job), in any order; those of one instant arrive in the order given.
        busy_s: how long each batch takes.
    """
    history = History()
    events: list[tuple[float, int, Job | int]] = []
    for at_s, arriving in arrivals:
        heapq.heappush(events, (at_s, len(events), arriving))
    sequence = len(events)
    for instance in range(instances):
        core.instance_idle(instance)
    now = 0.0
    while True:
        action = core.next_action(now)
        if isinstance(action, Dispatch):
            history.batches.append((now, [each.id for each in action.jobs], action.reason))
            history.instances.append(action.instance)
            heapq.heappush(events, (now + busy_s, sequence, action.instance))
            sequence += 1
        elif isinstance(action, Reject):
            history.rejected.append((now, action.job.id, action.error))
        elif isinstance(action, WaitUntil) and (not events or action.when_s < events[0][0]):
            assert action.when_s > now, "a core must not ask to be woken at once"
            now = action.when_s
        elif events:
            now, _, event = heapq.heappop(events)
            if isinstance(event, Job):
                try:
                    core.enqueue(event, now)
                except TriremeError as error:
                    history.refused[event.id] = error
            else:
                core.instance_idle(event)
        else:
            return history


@pytest.fixture(scope="session")
def make_job() -> Callable[..., Job]:
    """`job` as a fixture."""
    return job


@pytest.fixture(scope="session")
def run() -> Callable[..., History]:
    """`simulate` as a fixture."""
    return simulate
