"""The default scheduler keeps what docs/reference/scheduling.md#default-scheduler says."""

from __future__ import annotations

import pytest

from trireme.engine.errors import FailureReason, UnavailableError
from trireme.engine.job import SealReason
from trireme.engine.scheduling.core import WAIT, Dispatch, Reject
from trireme.engine.scheduling.queueing import DefaultScheduler


def test_each_execution_takes_one_request_in_order_of_arrival(make_job, run):
    history = run(DefaultScheduler(), [(0.0, make_job(n, rows=2)) for n in range(3)])
    assert history.batches == [(float(n), [str(n)], SealReason.UNBATCHED) for n in range(3)]


def test_any_free_instance_takes_the_head_the_one_idle_longest_first(make_job, run):
    history = run(DefaultScheduler(), [(n / 10, make_job(n)) for n in range(5)], busy_s=0.15, instances=2)
    assert history.ids == [["0"], ["1"], ["2"], ["3"], ["4"]]
    assert history.instances == [0, 1, 0, 1, 0]


def test_priority_and_timeout_are_ignored(make_job, run):
    jobs = [make_job(n, priority=9 - n, timeout_us=1) for n in range(3)]
    history = run(DefaultScheduler(), [(0.0, job) for job in jobs])
    assert history.ids == [["0"], ["1"], ["2"]]
    assert history.rejected == []
    assert [(job.level, job.deadline_s, job.arrival) for job in jobs] == [(0, None, 1), (0, None, 2), (0, None, 3)]


def test_cancelled_request_leaves_the_queue_at_once_although_no_instance_is_idle(make_job):
    core = DefaultScheduler()
    first, cancelled, last = jobs = [make_job(n) for n in range(3)]
    for job in jobs:
        core.enqueue(job, 2.5)
    core.cancel(cancelled)
    action = core.next_action(3.0)
    assert isinstance(action, Reject)
    assert action.job is cancelled
    assert action.error.reason is FailureReason.CANCELED
    assert cancelled.cancelled
    assert core.next_action(3.0) is WAIT
    assert core.queued == 2
    for job in (first, last):
        core.instance_idle(4)
        assert core.next_action(3.0) == Dispatch(4, [job], SealReason.UNBATCHED)


def test_cancelling_a_request_in_execution_changes_nothing_in_the_queue(make_job):
    core = DefaultScheduler()
    job = make_job()
    core.enqueue(job, 0.0)
    core.instance_idle(4)
    core.next_action(0.0)
    core.cancel(job)
    assert job.cancelled
    assert core.next_action(0.0) is WAIT
    assert core.queued == 0


def test_a_cancelled_request_that_was_not_fetched_yet_is_given_back_by_drop_all(make_job):
    core = DefaultScheduler()
    jobs = [make_job(n) for n in range(3)]
    for job in jobs:
        core.enqueue(job, 0.0)
    core.cancel(jobs[1])
    assert core.queued == 3
    assert core.drop_all() == jobs
    assert core.next_action(0.0) is WAIT


def test_stopping_refuses_new_requests_and_drains_the_old_ones(make_job):
    core = DefaultScheduler()
    job = make_job(1)
    core.enqueue(job, 0.0)
    core.stop()
    with pytest.raises(UnavailableError) as refusal:
        core.enqueue(make_job(2), 0.0)
    assert refusal.value.message == (
        "[request id: 2] Server is stopping, scheduler for model has stopped accepting new inference requests"
    )
    core.instance_idle(0)
    assert core.next_action(0.0) == Dispatch(0, [job], SealReason.UNBATCHED)


def test_instance_that_is_gone_gets_nothing(make_job):
    core = DefaultScheduler()
    core.instance_idle(0)
    core.instance_idle(1)
    core.instance_gone(0)
    core.instance_gone(7)
    jobs = [make_job(n) for n in range(2)]
    for job in jobs:
        core.enqueue(job, 0.0)
    assert core.next_action(0.0) == Dispatch(1, [jobs[0]], SealReason.UNBATCHED)
    assert core.next_action(0.0) is WAIT


def test_drop_all_gives_back_every_job_in_arrival_order(make_job):
    core = DefaultScheduler()
    jobs = [make_job(n) for n in range(3)]
    for job in jobs:
        core.enqueue(job, 0.0)
    assert core.queued == 3
    assert core.drop_all() == jobs
    assert core.queued == 0
    core.instance_idle(0)
    assert core.next_action(0.0) is WAIT
