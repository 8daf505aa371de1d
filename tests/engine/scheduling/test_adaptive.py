"""The adaptive batcher's rules, one by one. Times in seconds; a batch takes 0.01 and 0.001 a row, unless said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trireme.engine.clock import SystemClock
from trireme.engine.config.model import DynamicBatching, QueuePolicy
from trireme.engine.errors import CancelledError, FailureReason, UnavailableError
from trireme.engine.job import ExecutionBatch, Job, SealReason
from trireme.engine.scheduling.adaptive import AdaptiveBatcher
from trireme.engine.scheduling.core import WAIT, Action, Dispatch, Reject, WaitUntil
from trireme.engine.scheduling.dispatcher import Dispatcher
from trireme.engine.scheduling.formation import Compatibility

MakeJob = Callable[..., Job]
LATE = "Latency objective cannot be met, the request would be answered too late"


def cost_s(rows: int) -> float:
    return 0.01 + 0.001 * rows


def batcher(
    objective_s: float = 0.1,
    most: int = 16,
    batching: DynamicBatching | None = None,
    compatibility: Compatibility | None = None,
) -> AdaptiveBatcher:
    return AdaptiveBatcher(batching or DynamicBatching((most,)), most, objective_s, compatibility)


def taught(core: AdaptiveBatcher, make_job: MakeJob, cost: Callable[[int], float] = cost_s) -> AdaptiveBatcher:
    """With one instance, which is idle, and after batches of 1 to 16 rows, all of them long ago."""
    core.instance_idle(0)
    now = -1000.0
    for rows in (1, 2, 4, 8, 16) * 4:
        core.enqueue(make_job(rows=rows), now)
        action = core.next_action(now)
        assert isinstance(action, Dispatch)
        core.executed(0, action.jobs[0], now + cost(rows))
        core.instance_idle(0)
        now += 50.0
    return core


def dispatched(action: Action) -> list[str]:
    assert isinstance(action, Dispatch), action
    return [job.id for job in action.jobs]


def put(core: AdaptiveBatcher, make_job: MakeJob, count: int, now: float, **of: int) -> None:
    for number in range(count):
        core.enqueue(make_job(f"{now}-{number}", **of), now)


def test_nothing_is_refused_or_delayed_before_a_batch_was_over(make_job):
    core = batcher(objective_s=1e-6)
    core.instance_idle(0)
    put(core, make_job, 40, 0.0)
    assert len(dispatched(core.next_action(0.0))) == 16
    assert core.next_action(1e3) is WAIT


def test_what_waited_long_for_the_first_instance_is_executed(make_job):
    """As when the first process of a model has died of its first batch, and takes its time to come back."""
    core = batcher(objective_s=0.1, most=4)
    put(core, make_job, 5, 0.0)
    assert core.next_action(0.0) is WAIT
    core.instance_idle(0)
    first = core.next_action(10.0)
    assert len(dispatched(first)) == 4
    core.instance_gone(0)
    core.instance_idle(1)
    assert len(dispatched(core.next_action(20.0))) == 1


def test_idle_instance_takes_what_is_there(make_job):
    core = taught(batcher(), make_job)
    put(core, make_job, 3, 0.0)
    action = core.next_action(0.0)
    assert len(dispatched(action)) == 3
    assert isinstance(action, Dispatch)
    assert action.reason is SealReason.IDLE


def test_target_is_the_largest_that_lets_requests_wait_for_a_batch(make_job):
    """Batches of b take 10 + b ms: with 40 ms for both waiting and executing, 10 rows are best at any load."""
    core = taught(batcher(objective_s=0.04), make_job)
    for number in range(300):
        core.rate.arrived(1, number / 3000)
    core._choose(0.1)  # pyright: ignore[reportPrivateUsage]
    assert 8 <= core.target <= 12


def test_batch_holds_no_more_than_its_first_request_has_time_for(make_job):
    core = taught(batcher(objective_s=0.1), make_job)
    core.instance_paused(0)
    put(core, make_job, 8, 0.0)
    put(core, make_job, 4, 0.08)
    core.instance_idle(0)
    action = core.next_action(0.0845)
    assert len(dispatched(action)) == 5, "15 ms are left for the first ones"
    assert isinstance(action, Dispatch)
    assert action.reason is SealReason.FULL


def test_request_that_would_be_late_is_refused_at_the_door(make_job):
    core = taught(batcher(objective_s=0.06), make_job)
    core.enqueue(make_job(rows=16), 0.0)
    core.next_action(0.0)  # until 0.026
    accepted = 0
    while not core.would_be_late(make_job(), 0.0):
        core.enqueue(make_job(), 0.0)
        accepted += 1
    with pytest.raises(UnavailableError, match=LATE):
        core.enqueue(make_job(), 0.0)
    assert 10 <= accepted <= core.target, "one batch is over in time, two are not"


def test_more_instances_accept_more(make_job):
    def accepted(instances: int) -> int:
        core = taught(batcher(objective_s=0.06), make_job)
        for instance in range(1, instances):
            core.instance_idle(instance)
        for _ in range(instances):
            core.enqueue(make_job(rows=16), 0.0)
            core.next_action(0.0)
        for count in range(100):
            if core.would_be_late(job := make_job(), 0.0):
                return count
            core.enqueue(job, 0.0)
        raise AssertionError("refuses nothing")

    assert accepted(2) == 2 * accepted(1)


def test_refusal_names_the_request(make_job):
    core = taught(batcher(objective_s=0.005), make_job)
    put(core, make_job, 1, 0.0)
    with pytest.raises(UnavailableError, match=r"\[request id: seven\] " + LATE):
        core.enqueue(make_job("seven"), 0.0)


def test_who_is_asked_again_comes_once(make_job):
    core = taught(batcher(objective_s=0.005), make_job)
    put(core, make_job, 1, 0.0)
    job = make_job()
    rates = []
    for _ in range(2):
        with pytest.raises(UnavailableError):
            core.enqueue(job, 0.0)
        rates.append(core.rate.rows_per_s(0.0))
    assert rates[0] == rates[1]


def test_first_request_is_rejected_as_soon_as_it_would_be_late(make_job):
    core = taught(batcher(objective_s=0.05), make_job)
    core.enqueue(make_job("runs"), 0.0)
    core.next_action(0.0)
    core.enqueue(make_job("waits"), 0.0)
    wait = core.next_action(0.02)  # the one that runs takes longer than expected
    assert isinstance(wait, WaitUntil)
    assert wait.when_s == pytest.approx(0.05 - 0.011, abs=1e-3)
    assert core.next_action(wait.when_s - 1e-6) == wait
    reject = core.next_action(wait.when_s)
    assert isinstance(reject, Reject)
    assert (reject.job.id, str(reject.error)) == ("waits", LATE)
    assert isinstance(reject.error, UnavailableError)
    assert reject.error.reason is FailureReason.REJECTED
    assert core.next_action(wait.when_s) is WAIT
    assert core.queued == 0


def test_objective_that_cannot_be_met_is_tried_whenever_an_instance_is_idle(make_job):
    core = taught(batcher(objective_s=0.005), make_job)
    for at_s in (0.0, 1.0):
        core.enqueue(make_job("one"), at_s)
        action = core.next_action(at_s)
        assert dispatched(action) == ["one"]
        assert isinstance(action, Dispatch)
        with pytest.raises(UnavailableError, match=LATE):
            core.enqueue(make_job("two"), at_s)
        core.executed(0, action.jobs[0], at_s + 0.011)
        core.instance_idle(0)


def test_objective_that_cannot_be_met_is_tried_by_an_instance_that_gets_leave_later(make_job):
    core = taught(batcher(objective_s=0.005), make_job)
    core.instance_paused(0)
    core.enqueue(make_job("one"), 0.0)
    assert core.next_action(0.0) is WAIT
    assert core.wants(0, 0)
    core.instance_idle(0)
    assert dispatched(core.next_action(0.001)) == ["one"]
    core.enqueue(make_job("two"), 0.02)
    assert isinstance(core.next_action(0.02), Reject)


def test_objective_that_can_be_met_again_is_met(make_job):
    core = taught(batcher(objective_s=0.005), make_job)
    for at_s in range(200):
        core.enqueue(make_job(), at_s)
        action = core.next_action(at_s)
        assert isinstance(action, Dispatch)
        core.executed(0, action.jobs[0], at_s + 0.001)
        core.instance_idle(0)
    put(core, make_job, 2, 250.0)
    assert len(dispatched(core.next_action(250.0))) == 2


def busy(core: AdaptiveBatcher, rows_per_s: float, now: float) -> None:
    """So many rows have come in a second, and what follows from that is known."""
    for number in range(round(rows_per_s)):
        core.rate.arrived(1, now - 1 + number / rows_per_s)
    core.instance_paused(0)
    core._choose(now)  # pyright: ignore[reportPrivateUsage]
    core.instance_idle(0)


def test_small_batch_waits_where_instances_are_busy(make_job):
    core = taught(batcher(objective_s=0.2), make_job)
    busy(core, 300, 0.0)
    assert core.needed > 2
    put(core, make_job, 1, 0.0)
    wait = core.next_action(0.0)
    assert isinstance(wait, WaitUntil)
    assert 0 < wait.when_s <= 0.2 / 4
    action = core.next_action(wait.when_s)
    assert isinstance(action, Dispatch)
    assert action.reason is SealReason.DELAY


def test_batch_that_waits_goes_when_it_is_large_enough(make_job):
    core = taught(batcher(objective_s=0.2), make_job)
    busy(core, 300, 0.0)
    assert core.needed > 1
    put(core, make_job, core.needed - 1, 0.0)
    assert isinstance(core.next_action(0.0), WaitUntil)
    core.enqueue(make_job(), 0.001)
    assert len(dispatched(core.next_action(0.001))) == core.needed


def test_batch_that_waits_is_not_late_if_the_timer_is(make_job):
    """All sizes take as long, so the last moment for the batch is also that for its first request alone: with that as
    the time to go, a late timer had requests rejected one by one beside an idle instance."""
    core = taught(batcher(objective_s=0.1, most=16), make_job, lambda _rows: 0.06)
    core.needed, core.delay_s = 16, 1.0
    put(core, make_job, 3, 0.0)
    action = core.next_action(0.0)
    assert isinstance(action, WaitUntil)
    assert action.when_s == pytest.approx(0.02)
    assert len(dispatched(core.next_action(action.when_s + 0.015))) == 3


def test_nothing_waits_where_instances_have_time(make_job):
    core = taught(batcher(objective_s=0.2), make_job)
    busy(core, 50, 0.0)
    put(core, make_job, 1, 0.0)
    assert len(dispatched(core.next_action(0.0))) == 1


def test_stopping_core_waits_for_nothing_and_takes_nothing(make_job):
    core = taught(batcher(objective_s=0.2), make_job)
    busy(core, 300, 0.0)
    put(core, make_job, 1, 0.0)
    core.stop()
    action = core.next_action(0.0)
    assert isinstance(action, Dispatch)
    assert action.reason is SealReason.DRAIN
    with pytest.raises(UnavailableError, match="stopping"):
        core.enqueue(make_job(), 0.0)


def test_batch_ends_at_a_preferred_size(make_job):
    core = taught(batcher(batching=DynamicBatching((4, 8))), make_job)
    put(core, make_job, 6, 0.0)
    action = core.next_action(0.0)
    assert len(dispatched(action)) == 4
    assert isinstance(action, Dispatch)
    assert action.reason is SealReason.PREFERRED
    core.executed(0, action.jobs[0], 0.014)
    core.instance_idle(0)
    assert len(dispatched(core.next_action(0.014))) == 2


def test_requests_that_differ_do_not_share_a_batch(make_job):
    core = batcher(compatibility=Compatibility(("IN",)))
    core.instance_idle(0)
    for shape in (1, 1, 2):
        core.enqueue(make_job(shape=(shape,)), 0.0)
    action = core.next_action(0.0)
    assert len(dispatched(action)) == 2
    assert isinstance(action, Dispatch)
    assert action.reason is SealReason.SHAPE


def test_model_without_batch_dimension_executes_one_request_at_a_time(make_job):
    core = batcher(most=0, batching=DynamicBatching())
    core.instance_idle(0)
    put(core, make_job, 2, 0.0)
    assert len(dispatched(core.next_action(0.0))) == 1


def levels() -> AdaptiveBatcher:
    return batcher(
        objective_s=0.06, batching=DynamicBatching((16,), priority_levels=2, default_priority_level=2), most=16
    )


def test_higher_level_goes_first_and_does_not_count_what_waits_below(make_job):
    core = taught(levels(), make_job)
    core.enqueue(make_job(rows=16), 0.0)
    core.next_action(0.0)
    while not core.would_be_late(job := make_job("low"), 0.0):
        core.enqueue(job, 0.0)
    core.enqueue(make_job("high", priority=1), 0.0)
    core.instance_idle(0)
    assert dispatched(core.next_action(0.01))[0] == "high"


def test_queue_limits_and_timeouts_hold(make_job):
    policy = QueuePolicy(default_timeout_us=10_000, max_queue_size=2)
    core = batcher(batching=DynamicBatching((16,), default_queue_policy=policy))
    put(core, make_job, 2, 0.0)
    with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
        core.enqueue(make_job(), 0.0)
    assert core.full
    assert core.next_action(0.0) == WaitUntil(0.01)
    reject = core.next_action(0.01)
    assert isinstance(reject, Reject)
    assert str(reject.error) == "Request timeout expired"


def test_timeout_of_a_request_holds(make_job):
    """It is over long before the request would be late; others wait on."""
    policy = QueuePolicy(allow_timeout_override=True, default_timeout_us=1_000_000)
    core = taught(batcher(objective_s=10.0, batching=DynamicBatching((16,), default_queue_policy=policy)), make_job)
    core.enqueue(make_job(rows=16), 0.0)
    assert isinstance(core.next_action(0.0), Dispatch)
    core.enqueue(make_job("short", timeout_us=5_000), 0.0)
    core.enqueue(make_job("patient"), 0.0)
    assert core.next_action(0.0) == WaitUntil(0.005)
    reject = core.next_action(0.005)
    assert isinstance(reject, Reject)
    assert (reject.job.id, str(reject.error)) == ("short", "Request timeout expired")
    core.instance_idle(0)
    assert dispatched(core.next_action(0.026)) == ["patient"]


def test_queue_limit_holds_for_what_would_be_in_time(make_job):
    policy = QueuePolicy(max_queue_size=2)
    core = taught(batcher(batching=DynamicBatching((16,), default_queue_policy=policy)), make_job)
    core.enqueue(make_job(rows=16), 0.0)
    core.next_action(0.0)
    put(core, make_job, 2, 0.0)
    with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
        core.enqueue(make_job(), 0.0)
    assert core.queued == 2


def test_what_was_learnt_can_be_read(make_job):
    assert batcher().expected() == []
    core = taught(batcher(most=16), make_job)
    assert [rows for rows, _ in core.expected()] == [1, 2, 4, 8, 16]
    assert [seconds for _, seconds in core.expected()] == pytest.approx([cost_s(rows) for rows in (1, 2, 4, 8, 16)])
    core = batcher(most=6)
    core.times.learn(1, 0.01)
    assert [rows for rows, _ in core.expected()] == [1, 2, 4, 6]


def test_cancelled_request_is_rejected(make_job):
    core = batcher()
    core.enqueue(job := make_job(), 0.0)
    core.cancel(job)
    reject = core.next_action(0.0)
    assert isinstance(reject, Reject)
    assert isinstance(reject.error, CancelledError)
    assert core.next_action(0.0) is WAIT


def test_first_ones_make_way_for_a_batch_of_the_target_size(make_job):
    """Of 2 old requests only batches of 2 rows can be made, of the 16 behind them one that answers 5 times as many."""
    core = taught(batcher(objective_s=0.1), make_job)
    core.instance_paused(0)
    put(core, make_job, 2, 0.0)
    put(core, make_job, 16, 0.08)
    core.instance_idle(0)
    core.target = 16
    rejected = []
    while isinstance(action := core.next_action(0.0875), Reject):
        rejected.append(action.job.id)
    assert rejected == ["0.0-0", "0.0-1"]
    assert len(dispatched(action)) == 16


def test_first_ones_do_not_make_way_for_a_small_batch(make_job):
    core = taught(batcher(objective_s=0.1), make_job)
    core.instance_paused(0)
    put(core, make_job, 2, 0.0)
    put(core, make_job, 6, 0.08)
    core.instance_idle(0)
    core.target = 16
    assert dispatched(core.next_action(0.0875)) == ["0.0-0", "0.0-1"]


def test_spare_instance_takes_what_has_reached_the_target(make_job):
    core = taught(batcher(), make_job)
    core.instance_paused(0)
    core.instance_idle(0, spare=True)
    put(core, make_job, core.target - 1, 0.0)
    assert not isinstance(core.next_action(0.0), Dispatch)
    put(core, make_job, 1, 0.0)
    assert len(dispatched(core.next_action(0.0))) == core.target


def test_batch_bound_behind_another_began_when_that_was_over(make_job):
    core = taught(batcher(most=1), make_job, lambda rows: 0.01)
    put(core, make_job, 1, 0.0)
    first = core.next_action(0.0)
    core.instance_idle(0, spare=True)
    core.enqueue(make_job(), 0.0)
    second = core.next_action(0.0)
    assert isinstance(first, Dispatch)
    assert isinstance(second, Dispatch)
    core.executed(0, first.jobs[0], 0.01)
    core.executed(0, second.jobs[0], 0.02)
    assert core.times.expected_s(1) == pytest.approx(0.01)


def test_batch_of_an_instance_that_died_is_not_learnt(make_job):
    core = batcher()
    core.instance_idle(0)
    core.enqueue(make_job(), 0.0)
    action = core.next_action(0.0)
    assert isinstance(action, Dispatch)
    core.instance_gone(0)
    core.executed(0, action.jobs[0], 5.0)
    assert not core.times.known


def test_dispatcher_tells_it_when_batches_are_over(make_job):
    core = batcher()
    dispatcher = Dispatcher(core, adaptive=True)
    dispatcher.attach(0)
    core.enqueue(make_job(rows=3), 0.0)
    action = dispatcher.next_action(0.0)
    assert isinstance(action, Dispatch)
    dispatcher.over(0, action.jobs, 0.25, (), False)
    assert core.times.expected_s(3) == 0.25


def test_what_is_given_back_is_queued_no_more(make_job):
    core = taught(batcher(), make_job)
    core.instance_paused(0)
    put(core, make_job, 3, 0.0)
    assert len(core.drop_all()) == 3
    core.instance_idle(0)
    assert core.next_action(0.0) is WAIT
    assert not core.would_be_late(make_job(), 0.0)


def test_failed_batch_is_not_learnt(make_job):
    """It may have taken no time at all; or all the time there is, until it was given up."""
    core = taught(batcher(), make_job)
    expected_s = core.times.expected_s(4)
    for _ in range(20):
        core.enqueue(make_job(rows=4), 0.0)
        action = core.next_action(0.0)
        assert isinstance(action, Dispatch)
        core.executed(0, action.jobs[0], 1e-6, failed=True)
        core.instance_idle(0)
    assert core.times.expected_s(4) == expected_s


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_dispatcher_tells_it_whether_a_batch_has_failed(make_job, failing):
    """A batch of which some requests failed was executed."""
    core = batcher()
    dispatcher = Dispatcher(core, adaptive=True)
    dispatcher.attach(0)
    jobs = [make_job(str(number)) for number in range(2)]
    for job in jobs:
        core.enqueue(job, 0.0)
    dispatcher.next_action(0.0)
    batch = ExecutionBatch(jobs, "m_0", SystemClock())
    for number, job in enumerate(jobs):
        batch.answer(job, CancelledError("") if number < failing else job.response([]), True)
    batch.finish()
    dispatcher.over(0, jobs, 0.25, (), False)
    assert core.times.known == (failing < 2)
