"""The dynamic batcher keeps queue policies and priorities (docs/reference/scheduling.md#queue-policies,
docs/reference/scheduling.md#priorities), with the observed numbers."""

from __future__ import annotations

import pytest

from trireme.engine.config.model import DynamicBatching, QueuePolicy, TimeoutAction
from trireme.engine.errors import CancelledError, FailureReason, UnavailableError
from trireme.engine.job import SealReason
from trireme.engine.scheduling.core import WAIT, Dispatch, Reject, WaitUntil
from trireme.engine.scheduling.queueing import DynamicBatcher

DELAY_US = 300_000


def batcher(max_batch_size=8, **fields) -> DynamicBatcher:
    return DynamicBatcher(DynamicBatching(**fields), max_batch_size)


def timeout(timeout_us, action=TimeoutAction.REJECT, override=False, size=0) -> DynamicBatching:
    return DynamicBatching(default_queue_policy=QueuePolicy(action, timeout_us, override, size))


# ---------------------------------------------------------------------------------------------------- queue policies


def test_full_queue_refuses_and_executing_requests_do_not_count(make_job, run):
    """max_queue_size 2, one instance: one executing and two queued are accepted, the fourth is refused."""
    core = DynamicBatcher(timeout(0, size=2), 8)
    arrivals = [(0.0, make_job("first")), *((0.1, make_job(n)) for n in (1, 2)), (0.2, make_job()), (0.3, make_job(4))]
    history = run(core, arrivals)
    assert history.sizes == [1, 2]
    assert {name: error.message for name, error in history.refused.items()} == {
        "": "[request id: <id_unknown>] Exceeds maximum queue size",
        "4": "[request id: 4] Exceeds maximum queue size",
    }
    assert all(isinstance(error, UnavailableError) for error in history.refused.values())


def test_queue_has_room_again_once_a_job_was_cancelled(make_job):
    core = DynamicBatcher(timeout(0, size=1), 8)
    first, second = make_job(1), make_job(2)
    core.enqueue(first, 0.0)
    core.cancel(first)
    core.enqueue(second, 0.0)
    with pytest.raises(UnavailableError):
        core.enqueue(make_job(3), 0.0)


def test_expired_request_is_rejected_at_its_deadline_while_all_instances_are_busy(make_job, run):
    core = DynamicBatcher(timeout(200_000), 8)
    history = run(core, [(0.0, make_job("executing")), (0.1, make_job("late")), (0.85, make_job("in time"))])
    ((when_s, name, error),) = history.rejected
    assert (round(when_s, 9), name) == (0.3, "late")
    assert isinstance(error, UnavailableError)
    assert error.message == "Request timeout expired"
    assert error.reason is FailureReason.REJECTED
    assert history.ids == [["executing"], ["in time"]]


def test_request_that_expires_while_its_batch_is_delayed_leaves_the_batch(make_job, run):
    core = DynamicBatcher(
        DynamicBatching((4,), 300_000, default_queue_policy=QueuePolicy(default_timeout_us=200_000)), 8
    )
    history = run(core, [(0.0, make_job("a")), (0.15, make_job("b")), (0.16, make_job("c"))])
    assert [(round(when_s, 9), name) for when_s, name, _ in history.rejected] == [(0.2, "a"), (0.35, "b"), (0.36, "c")]
    assert history.batches == []


def test_delayed_request_goes_behind_the_unexpired_ones_and_is_executed(make_job, run):
    """The observed order 0, 2, 3, 1: request 1 expired while 0 was executing."""
    core = DynamicBatcher(timeout(10_000_000, TimeoutAction.DELAY, override=True), 1)
    arrivals = [(0.0, make_job(0)), (0.1, make_job(1, timeout_us=200_000)), (0.1, make_job(2)), (0.1, make_job(3))]
    history = run(core, arrivals)
    assert history.ids == [["0"], ["2"], ["3"], ["1"]]
    assert history.rejected == []


def test_delayed_request_goes_before_lower_levels_and_counts_for_the_queue_size(make_job, run):
    policy = QueuePolicy(TimeoutAction.DELAY, 200_000, max_queue_size=2)
    core = DynamicBatcher(
        DynamicBatching(priority_levels=2, default_priority_level=2, priority_queue_policy={1: policy}), 1
    )
    arrivals = [(0.0, make_job("executing"))]
    arrivals += [(0.1, make_job("low")), (0.2, make_job("late", priority=1)), (0.85, make_job("high", priority=1))]
    arrivals += [(0.9, make_job("too many", priority=1))]
    history = run(core, arrivals)
    assert history.ids == [["executing"], ["high"], ["late"], ["low"]]
    assert list(history.refused) == ["too many"]


@pytest.mark.parametrize(
    ("default_us", "override", "asked_us", "deadline_s"),
    [
        (500_000, True, 200_000, 0.2),
        (500_000, True, 0, 0.5),
        (500_000, True, 600_000, 0.5),
        (500_000, False, 200_000, 0.5),
        (0, True, 200_000, None),
        (0, False, 0, None),
    ],
)
def test_request_timeout_can_only_shorten_an_overridable_default(make_job, default_us, override, asked_us, deadline_s):
    core = DynamicBatcher(timeout(default_us, override=override), 8)
    job = make_job(timeout_us=asked_us)
    core.enqueue(job, 0.0)
    assert job.deadline_s == deadline_s
    assert core.next_action(0.0) == (WAIT if deadline_s is None else WaitUntil(deadline_s))


def test_cancelled_request_is_answered_and_never_executed(make_job):
    core = batcher()
    kept, cancelled = make_job("kept"), make_job("cancelled")
    core.enqueue(cancelled, 0.0)
    core.enqueue(kept, 0.0)
    core.cancel(cancelled)
    core.cancel(cancelled)
    core.instance_idle(0)
    action = core.next_action(0.0)
    assert isinstance(action, Reject)
    assert action.job is cancelled
    assert isinstance(action.error, CancelledError)
    assert (action.error.message, action.error.reason) == ("", FailureReason.CANCELED)
    assert core.next_action(0.0) == Dispatch(0, [kept], SealReason.IDLE)
    assert core.next_action(0.0) is WAIT


def test_cancelling_a_dispatched_request_only_marks_it(make_job):
    core = batcher()
    job = make_job()
    core.enqueue(job, 0.0)
    core.instance_idle(0)
    core.next_action(0.0)
    core.cancel(job)
    assert job.cancelled
    assert core.next_action(0.0) is WAIT
    assert core.queued == 0


def test_cancellation_during_the_delay_moves_its_end_to_the_next_oldest(make_job):
    core = batcher(max_queue_delay_us=500_000)
    first = make_job(1)
    core.instance_idle(0)
    core.enqueue(first, 0.0)
    core.enqueue(make_job(2), 0.25)
    assert core.next_action(0.25) == WaitUntil(0.5)
    core.cancel(first)
    assert isinstance(core.next_action(0.25), Reject)
    assert core.next_action(0.25) == WaitUntil(0.75)


# -------------------------------------------------------------------------------------------------------- priorities


def test_levels_go_in_order_and_unknown_levels_are_the_default(make_job, run):
    """The observed order 1, 2, none, 9, 3 with three levels, default 2."""
    core = DynamicBatcher(DynamicBatching(priority_levels=3, default_priority_level=2), 1)
    arrivals = [(0.0, make_job("executing", priority=2))]
    arrivals += [(0.1, make_job(f"p{priority}", priority=priority)) for priority in (3, 2, 1, 0, 9)]
    assert run(core, arrivals).ids == [["executing"], ["p1"], ["p2"], ["p0"], ["p9"], ["p3"]]


def test_batch_may_span_levels(make_job, run):
    core = DynamicBatcher(DynamicBatching(priority_levels=2, default_priority_level=1), 8)
    arrivals = [(0.0, make_job("executing")), (0.1, make_job("low", priority=2)), (0.2, make_job("high", priority=1))]
    assert run(core, arrivals).ids == [["executing"], ["high", "low"]]


def test_each_level_has_its_own_queue_size(make_job):
    policies = {1: QueuePolicy(max_queue_size=1)}
    core = DynamicBatcher(
        DynamicBatching(priority_levels=2, default_priority_level=2, priority_queue_policy=policies), 8
    )
    core.enqueue(make_job(priority=1), 0.0)
    for _ in range(3):
        core.enqueue(make_job(priority=2), 0.0)
    with pytest.raises(UnavailableError):
        core.enqueue(make_job(priority=1), 0.0)


def test_priority_is_ignored_without_levels(make_job, run):
    """So is a default level: validation lets it pass when there are none."""
    job = make_job(1, priority=7)
    assert run(batcher(default_priority_level=3), [(0.0, make_job(0)), (0.0, job)]).ids == [["0"], ["1"]]
    assert job.level == 0


def test_delay_counts_from_the_oldest_of_all_levels(make_job, run):
    core = DynamicBatcher(DynamicBatching((4,), DELAY_US, priority_levels=2, default_priority_level=2), 8)
    history = run(core, [(0.0, make_job("low")), (0.2, make_job("high", priority=1))])
    assert history.batches == [(0.3, ["high", "low"], SealReason.DELAY)]
