"""The queue stays as small as what is in it, and knows the order of its jobs at any time."""

from __future__ import annotations

import pytest

from trireme.engine.config.model import DynamicBatching, QueuePolicy, TimeoutAction
from trireme.engine.scheduling.queue import FifoQueue, PriorityQueues, job_queue

HOUR_US = 3_600_000_000


def with_timeouts(action=TimeoutAction.REJECT) -> PriorityQueues:
    return PriorityQueues(DynamicBatching(default_queue_policy=QueuePolicy(action, HOUR_US, True)))


def test_deadlines_of_jobs_that_left_do_not_pile_up(make_job):
    queue = with_timeouts()
    for n in range(10_000):
        queue.put(make_job(n), 0.0)
        queue.take(1)
    assert len(queue) == 0
    assert len(queue.deadlines) <= 64


def test_sweeping_deadlines_keeps_those_of_queued_jobs(make_job):
    queue = with_timeouts()
    kept = make_job("kept", timeout_us=1_000_000)
    queue.put(kept, 0.0)
    for n in range(1000):
        passing = make_job(n)
        queue.put(passing, 0.0)
        queue.remove(passing)
    assert queue.expire(0.5) == []
    assert queue.deadlines[0][0] == 1.0
    assert queue.expire(1.0) == [(kept, True)]
    assert len(queue) == 0


def test_a_job_queued_again_is_not_expired_by_its_old_deadline(make_job):
    queue = with_timeouts()
    job = make_job(timeout_us=1_000_000)
    queue.put(job, 0.0)
    queue.take(1)
    queue.put(job, 0.5)
    assert queue.expire(1.0) == []
    assert queue.expire(1.5) == [(job, True)]


def test_jobs_that_expire_together_keep_the_order_of_their_deadlines(make_job):
    queue = with_timeouts(TimeoutAction.DELAY)
    jobs = [make_job(n, timeout_us=timeout_us) for n, timeout_us in enumerate((3, 1, 2, 0, 1))]
    for job in jobs:
        queue.put(job, 0.0)
    assert queue.expire(1.0) == [(jobs[n], False) for n in (1, 4, 2, 0)]
    assert list(queue) == [jobs[n] for n in (3, 1, 4, 2, 0)]
    assert queue.take(5) == [jobs[n] for n in (3, 1, 4, 2, 0)]


def test_put_says_whether_the_job_is_last(make_job):
    queue = PriorityQueues(
        DynamicBatching(
            priority_levels=3,
            default_priority_level=2,
            default_queue_policy=QueuePolicy(TimeoutAction.DELAY, 1_000_000),
        )
    )
    assert queue.put(make_job("a", priority=2), 0.0)
    assert not queue.put(make_job("b", priority=1), 0.0)
    assert queue.put(make_job("c", priority=3), 0.0)
    assert queue.put(make_job("d", priority=3), 0.0)
    queue.expire(1.0)
    assert not queue.put(make_job("e", priority=3), 1.0), "expired jobs of its level are behind it"
    assert [job.id for job in queue] == ["b", "a", "e", "c", "d"]


def test_any_number_of_levels_costs_nothing_until_used(make_job):
    queue = PriorityQueues(DynamicBatching(priority_levels=2**40, default_priority_level=2**39))
    jobs = [make_job(priority=priority) for priority in (2**40, 0, 1)]
    for job in jobs:
        queue.put(job, 0.0)
    assert queue.take(3) == jobs[::-1]


def test_remove_knows_its_own_jobs(make_job):
    queue = with_timeouts()
    job, stranger = make_job("own"), make_job("stranger")
    assert not queue.remove(stranger)
    queue.put(job, 0.0)
    assert not queue.remove(stranger)
    assert queue.remove(job)
    assert not queue.remove(job)
    assert list(queue) == []


@pytest.mark.parametrize(
    ("batching", "kind"),
    [
        (DynamicBatching(), FifoQueue),
        (
            DynamicBatching(max_queue_delay_us=1, default_queue_policy=QueuePolicy(TimeoutAction.DELAY, 0, True)),
            FifoQueue,
        ),
        (DynamicBatching(priority_queue_policy={1: QueuePolicy(max_queue_size=1)}), FifoQueue),
        (DynamicBatching(priority_levels=1), PriorityQueues),
        (DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=1)), PriorityQueues),
        (DynamicBatching(default_queue_policy=QueuePolicy(default_timeout_us=1)), PriorityQueues),
    ],
)
def test_a_model_gets_the_queue_that_its_policies_need(batching, kind):
    assert type(job_queue(batching)) is kind


@pytest.mark.parametrize("queue", [FifoQueue(), PriorityQueues(DynamicBatching())], ids=["fifo", "priorities"])
def test_without_policies_both_kinds_of_queue_do_the_same(queue, make_job):
    jobs = [make_job(n, timeout_us=1) for n in range(5)]
    assert [queue.put(job, 7.0) for job in jobs] == [True] * 5
    assert [(job.arrival, job.level, job.enqueued_s, job.deadline_s) for job in jobs[:2]] == [
        (1, 0, 7.0, None),
        (2, 0, 7.0, None),
    ]
    assert (queue.remove(jobs[1]), queue.remove(jobs[1]), queue.full) == (True, False, False)
    assert queue.take(2) == [jobs[0], jobs[2]]
    assert (queue.expire(8.0), len(queue), list(queue)) == ([], 2, jobs[3:])
    assert queue.take(2) == jobs[3:]
    queue.put(jobs[0], 9.0)
    assert (queue.drain(), len(queue), jobs[0].arrival) == ([jobs[0]], 0, 6)
