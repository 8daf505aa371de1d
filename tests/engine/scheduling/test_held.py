"""Schedulers that hold requests back until enough are there, as the environment asks."""

from __future__ import annotations

from typing import Any, cast

import pytest
from google.protobuf import text_format
from sequence_world import Slots, sequence_job

from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.scheduler_delays import SchedulerDelays
from trireme.engine.scheduling.core import AWAIT, WAIT, Action, Dispatch, Reject, SchedulerCore
from trireme.engine.scheduling.factory import make_scheduler
from trireme.engine.scheduling.queueing import DynamicBatcher
from trireme.engine.scheduling.sequence.batcher import SequenceBatcher

DYNAMIC = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 1000000 } }"
DIRECT = "sequence_batching { direct { } }"
OLDEST = "sequence_batching { oldest { max_candidate_sequences: 4 } }"


def scheduler(batching: str, queued: int, backlog: int = 0) -> SchedulerCore:
    text = f'name: "m" max_batch_size: 2 {batching}'
    config = model_config(text_format.Parse(text, ModelConfigMessage()))
    core = make_scheduler(config, None, SchedulerDelays(queued, backlog))
    return core if isinstance(core, DynamicBatcher) else cast(SchedulerCore, WithSlots(cast(SequenceBatcher, core)))


class WithSlots:
    """A sequence batcher whose slots are told, and heard, before it decides."""

    def __init__(self, core: SequenceBatcher) -> None:
        self.core = core
        self._slots = Slots(core)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def next_action(self, now: float) -> Action:
        action: Action = AWAIT
        while action is AWAIT:
            while self._slots.deliver(now):
                pass
            action = self.core.next_action(now)
        return action


def ids(action: object) -> list[str]:
    assert isinstance(action, Dispatch)
    return [job.id for job in action.jobs]


def test_without_delays_a_model_gets_the_ordinary_scheduler() -> None:
    assert type(scheduler(DYNAMIC, 0)) is DynamicBatcher
    assert type(cast(WithSlots, scheduler(DIRECT, 0)).core) is SequenceBatcher


def test_a_dynamic_batcher_dispatches_nothing_until_its_queue_has_held_so_many(make_job) -> None:
    core = scheduler(DYNAMIC, 3)
    core.instance_idle(0)
    core.instance_idle(1)
    for number in range(2):
        core.enqueue(make_job(number), 0.0)
    assert core.next_action(0.0) is WAIT
    assert core.next_action(5.0) is WAIT, "nothing expires, either"
    core.enqueue(make_job(2), 5.0)
    rejected = [core.next_action(5.0), core.next_action(5.0)]
    assert [isinstance(action, Reject) for action in rejected] == [True, True]
    assert ids(core.next_action(5.0)) == ["2"]
    core.enqueue(make_job(3), 5.0)
    assert ids(core.next_action(5.0)) == ["3"], "it waits for so many only once"


@pytest.mark.parametrize("batching", [DYNAMIC, DIRECT, OLDEST])
def test_a_scheduler_that_is_stopping_holds_nothing_back(batching: str) -> None:
    core = scheduler(batching, 9, 9)
    core.instance_idle(0)
    core.enqueue(sequence_job(1, "se", "a"), 0.0)
    assert not isinstance(core.next_action(0.0), Dispatch)
    core.stop()
    assert ids(core.next_action(0.0)) == ["a"]


def test_the_direct_strategy_waits_for_the_slots_of_all_instances_and_the_backlog() -> None:
    core = scheduler(DIRECT, 4, 2)
    for instance in (0, 1):
        core.instance_idle(instance)
    for key in (1, 2, 3, 4):  # two slots on each of two instances
        core.enqueue(sequence_job(key, "s", f"{key}a"), 0.0)
    assert not isinstance(core.next_action(0.0), Dispatch), "the backlog is empty"
    core.enqueue(sequence_job(5, "s", "5a"), 0.0)
    core.enqueue(sequence_job(1, "", "1b"), 0.0)
    assert not isinstance(core.next_action(0.0), Dispatch), "one request is in the backlog"
    core.enqueue(sequence_job(5, "e", "5b"), 0.0)
    batches = [ids(core.next_action(0.0)), ids(core.next_action(0.0))]
    assert sorted(name for batch in batches for name in batch) == ["1a", "2a", "3a", "4a"]


def test_the_oldest_strategy_waits_for_so_many_issued_to_an_instance() -> None:
    core = scheduler(OLDEST, 3)
    core.instance_idle(0)
    for key in (1, 2):
        core.enqueue(sequence_job(key, "s", f"{key}a"), 0.0)
        core.enqueue(sequence_job(key, "", f"{key}b"), 0.0)
    assert not isinstance(core.next_action(0.0), Dispatch), "each sequence has one issued at a time"
    core.enqueue(sequence_job(3, "s", "3a"), 0.0)
    assert ids(core.next_action(0.0)) == ["1a", "2a"]


@pytest.mark.parametrize("batching", [DYNAMIC, DIRECT, OLDEST])
def test_a_request_that_is_cancelled_while_it_is_held_counts(batching: str) -> None:
    """Triton keeps it in its queue until the batcher looks there for the first time."""
    core = scheduler(batching, 3)
    core.instance_idle(0)
    jobs = [sequence_job(key, "s", str(key)) for key in (1, 2, 3)]
    for job in jobs[:2]:
        core.enqueue(job, 0.0)
    assert not isinstance(core.next_action(0.0), Dispatch)
    core.cancel(jobs[1])
    while isinstance(core.next_action(0.0), Reject):
        pass
    assert not isinstance(core.next_action(0.0), Dispatch)
    core.enqueue(jobs[2], 0.0)
    action = core.next_action(0.0)
    if isinstance(action, Reject):
        action = core.next_action(0.0)
    assert ids(action) == ["1", "3"]


def test_and_so_does_one_in_the_backlog() -> None:
    core = scheduler(DIRECT, 2, 2)
    core.instance_idle(0)
    jobs = [sequence_job(key, "s", str(key)) for key in (1, 2, 3, 4)]
    for job in jobs[:3]:
        core.enqueue(job, 0.0)
    core.cancel(jobs[2])
    while isinstance(core.next_action(0.0), Reject):
        pass
    assert not isinstance(core.next_action(0.0), Dispatch)
    core.enqueue(jobs[3], 0.0)
    assert ids(core.next_action(0.0)) == ["1", "2"]
