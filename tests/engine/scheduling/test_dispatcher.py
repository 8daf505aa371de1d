"""The dispatcher: which instance may take a batch, and when."""

from __future__ import annotations

import math

import pytest

from trireme.engine.config.model import DynamicBatching
from trireme.engine.errors import CancelledError, InternalError
from trireme.engine.job import Job, SealReason
from trireme.engine.scheduling.core import WAIT, Dispatch, Reject, WaitUntil
from trireme.engine.scheduling.dispatcher import Dispatcher
from trireme.engine.scheduling.forecast import LEAD_S
from trireme.engine.scheduling.ordering import OrderedByInstance
from trireme.engine.scheduling.permits import Permits
from trireme.engine.scheduling.queueing import DefaultScheduler, DynamicBatcher


@pytest.fixture
def single() -> Dispatcher:
    """One request an execution."""
    return Dispatcher(DefaultScheduler())


@pytest.fixture
def gpu() -> Dispatcher:
    """A dynamic batcher of four rows at most, and instance 1 on a GPU with two credits that takes 10 ms a batch."""
    dispatcher = Dispatcher(DynamicBatcher(DynamicBatching(), 4))
    dispatcher._durations.update({1: 0.010, 2: 0.010, 3: 0.010})
    dispatcher.attach(1, 2, overlaps=True)
    return dispatcher


def dispatched(dispatcher: Dispatcher, now: float) -> list[tuple[int, list[Job]]]:
    """Everything that there is to dispatch."""
    found: list[tuple[int, list[Job]]] = []
    while isinstance(action := dispatcher.next_action(now), Dispatch):
        found.append((action.instance, list(action.jobs)))
    return found


def over(dispatcher: Dispatcher, instance: int, jobs: list[Job], now: float, *, in_place: bool = False) -> None:
    dispatcher.over(instance, jobs, now, (), in_place)


def enqueue(dispatcher: Dispatcher, *jobs: Job) -> list[Job]:
    for job in jobs:
        dispatcher.core.enqueue(job, 0.0)
    return list(jobs)


def test_an_instance_gets_as_many_batches_as_it_has_credits(single, make_job) -> None:
    single.attach(1, 2)
    jobs = enqueue(single, *(make_job(number) for number in range(3)))
    assert dispatched(single, 0.0) == [(1, [jobs[0]]), (1, [jobs[1]])]
    over(single, 1, [jobs[1]], 1.0)
    assert dispatched(single, 1.0) == [(1, [jobs[2]])]


def test_an_instance_stands_behind_the_others_after_each_batch(single, make_job) -> None:
    single.attach(1, 2)
    single.attach(2, 2)
    jobs = enqueue(single, *(make_job(number) for number in range(4)))
    assert [instance for instance, _ in dispatched(single, 0.0)] == [1, 2, 1, 2]
    assert len(jobs) == 4


def test_a_second_credit_is_not_used_for_a_batch_that_could_grow(gpu, make_job) -> None:
    first, second = make_job(1), make_job(2)
    enqueue(gpu, first)
    assert dispatched(gpu, 0.0) == [(1, [first])]
    enqueue(gpu, second)
    action = gpu.next_action(0.001)
    assert isinstance(action, WaitUntil)
    assert action.when_s == pytest.approx(0.010 - LEAD_S)


def test_a_second_credit_is_used_for_a_full_batch_at_once(gpu, make_job) -> None:
    first = make_job(0)
    enqueue(gpu, first)
    dispatched(gpu, 0.0)
    jobs = enqueue(gpu, *(make_job(number) for number in range(1, 6)))
    action = gpu.next_action(0.001)
    assert isinstance(action, Dispatch)
    assert (action.jobs, action.reason) == (jobs[:4], SealReason.FULL)
    assert gpu.next_action(0.001) is WAIT, "it has no third one"


@pytest.mark.parametrize(("delay_us", "sent"), [(0, [2]), (300_000, [])])
def test_the_largest_preferred_size_is_final_unless_a_delay_lets_it_be_passed(delay_us, sent, make_job) -> None:
    batching = DynamicBatching((2,), max_queue_delay_us=delay_us)
    dispatcher = Dispatcher(DynamicBatcher(batching, 4))
    dispatcher.attach(1, 2, overlaps=True)
    enqueue(dispatcher, make_job(0, rows=4))
    dispatched(dispatcher, 0.0)
    enqueue(dispatcher, make_job(1, rows=2))
    assert [jobs[0].rows for _, jobs in dispatched(dispatcher, 0.001)] == sent


def test_a_second_credit_is_used_for_anything_just_before_the_end(gpu, make_job) -> None:
    first, second = make_job(1), make_job(2)
    enqueue(gpu, first)
    dispatched(gpu, 0.0)
    enqueue(gpu, second)
    assert dispatched(gpu, 0.010 - LEAD_S) == [(1, [second])]


def test_what_holds_nothing_is_idle_although_its_end_came_early(gpu, make_job) -> None:
    first, second = make_job(1), make_job(2)
    enqueue(gpu, first)
    dispatched(gpu, 0.0)
    enqueue(gpu, second)
    over(gpu, 1, [first], 0.002)
    assert dispatched(gpu, 0.002) == [(1, [second])]


def test_an_end_that_is_not_known_is_waited_for(make_job) -> None:
    dispatcher = Dispatcher(DynamicBatcher(DynamicBatching(), 4))
    dispatcher.attach(1, 2, overlaps=True)
    first, second = make_job(1), make_job(2)
    enqueue(dispatcher, first)
    dispatched(dispatcher, 0.0)
    enqueue(dispatcher, second)
    assert dispatcher.next_action(0.001) is WAIT


def test_what_another_instance_has_taken_tells_the_end_of_this_one(make_job) -> None:
    dispatcher = Dispatcher(DynamicBatcher(DynamicBatching(), 1))
    dispatcher.attach(1, 2, overlaps=True)
    dispatcher.attach(2, 2, overlaps=True)
    first, second = make_job(1), make_job(2)
    enqueue(dispatcher, first, second)
    assert dispatched(dispatcher, 0.0) == [(1, [first]), (2, [second])]
    over(dispatcher, 2, [second], 0.010)
    third = make_job(3)
    enqueue(dispatcher, third)
    assert dispatched(dispatcher, 0.010) == [(2, [third])], "an idle instance goes before one that is about to end"


def test_an_instance_that_executed_in_place_rests_while_more_is_queued(single, make_job) -> None:
    single.attach(1)
    first, second = enqueue(single, make_job(1), make_job(2))
    assert dispatched(single, 0.0) == [(1, [first])]
    over(single, 1, [first], 0.0, in_place=True)
    assert dispatched(single, 0.0) == []
    assert single.resting == [1]
    single.end_rest()
    assert dispatched(single, 0.0) == [(1, [second])]


def test_with_nothing_queued_there_is_no_rest(single, make_job) -> None:
    single.attach(1)
    (first,) = enqueue(single, make_job(1))
    dispatched(single, 0.0)
    over(single, 1, [first], 0.0, in_place=True)
    assert single.next_action(0.0) is WAIT
    assert single.resting == []
    (second,) = enqueue(single, make_job(2))
    assert dispatched(single, 0.0) == [(1, [second])]


def test_who_leaves_gets_nothing_and_is_dismissed_when_it_holds_nothing(single, make_job) -> None:
    single.attach(1)
    first, _ = enqueue(single, make_job(1), make_job(2))
    dispatched(single, 0.0)
    assert single.leave(1)
    assert single.dismissed == []
    over(single, 1, [first], 1.0, in_place=True)
    assert single.dismissed == [1]
    assert dispatched(single, 1.0) == []


def test_requests_to_be_isolated_are_executed_alone_by_the_next_instance_of_their_seat(single, make_job) -> None:
    single.attach(1, seat=7)
    jobs = [make_job(number) for number in range(2)]
    single.detach(1)
    single.isolate(jobs, 7)
    later = make_job(9)
    enqueue(single, later)
    single.attach(2, seat=8)
    assert dispatched(single, 0.0) == [(2, [later])], "another seat has nothing to do with it"
    single.attach(3, seat=7)
    for job in jobs:
        action = single.next_action(0.0)
        assert isinstance(action, Dispatch)
        assert (action.instance, list(action.jobs), action.isolated) == (3, [job], True)
        assert single.next_action(0.0) is WAIT, "one after the other"
        over(single, 3, [job], 0.0)
    (last,) = enqueue(single, make_job(10))
    assert dispatched(single, 0.0) == [(3, [last])]


def test_an_instance_that_ends_what_it_has_begun_leaves_when_it_has_isolated_all(single, make_job) -> None:
    first, second = make_job(1), make_job(2)
    single.isolate([first, second], 7)
    single.attach(3, seat=7)
    assert dispatched(single, 0.0) == [(3, [first])]
    assert single.leave(3, sequences_first=True), "no sequence binds it"
    enqueue(single, make_job(3))
    over(single, 3, [first], 0.0)
    assert dispatched(single, 0.0) == [(3, [second])]
    assert single.dismissed == []
    over(single, 3, [second], 0.0)
    assert dispatched(single, 0.0) == [], "what waits in the queue is for others"
    assert single.dismissed == [3]


def test_an_instance_that_is_to_leave_at_once_isolates_no_more(single, make_job) -> None:
    first, second = make_job(1), make_job(2)
    single.isolate([first, second], 7)
    single.attach(3, seat=7)
    assert dispatched(single, 0.0) == [(3, [first])]
    single.leave(3, sequences_first=True)
    single.leave(3)
    over(single, 3, [first], 0.0)
    assert dispatched(single, 0.0) == []
    assert single.dismissed == [3]
    assert single.drop_all() == [second]


def test_an_isolated_request_that_is_cancelled_is_rejected(single, make_job) -> None:
    job, gone = make_job(1), make_job(2)
    gone.cancelled = True
    single.isolate([job, gone], 7)
    single.cancel(job)
    rejected = [single.next_action(0.0), single.next_action(0.0)]
    assert [each.job for each in rejected if isinstance(each, Reject)] == [gone, job]
    assert all(isinstance(each.error, CancelledError) for each in rejected if isinstance(each, Reject))
    single.attach(1, seat=7)
    assert single.next_action(0.0) is WAIT


def test_isolated_requests_whose_seat_is_lost_are_rejected_and_no_others(single, make_job) -> None:
    mine, other = make_job(1), make_job(2)
    single.isolate([mine], 7)
    single.isolate([other], 8)
    error = InternalError("the seat is lost")
    single.give_up(7, error)
    assert single.next_action(0.0) == Reject(mine, error)
    assert single.next_action(0.0) is WAIT
    assert single.drop_all() == [other]


def test_what_a_lost_seat_was_to_isolate_passes_to_the_heir_that_holds_least(single, make_job) -> None:
    busy, waiting = enqueue(single, make_job(8), make_job(9))
    single.attach(1, 2, seat=1)
    assert dispatched(single, 0.0) == [(1, [busy]), (1, [waiting])]
    single.attach(2, 2, seat=2)
    (busy_too,) = enqueue(single, make_job(10))
    assert dispatched(single, 0.0) == [(2, [busy_too])]
    jobs = [make_job(number) for number in (1, 2)]
    single.isolate(jobs, 7)
    single.give_up(7, InternalError("the seat is lost"), [1, 2])
    (later,) = enqueue(single, make_job(11))
    assert dispatched(single, 0.0) == [], "the heir holds something, and the other one has no credit"
    over(single, 2, [busy_too], 0.0)
    for job in jobs:
        action = single.next_action(0.0)
        assert isinstance(action, Dispatch)
        assert (action.instance, list(action.jobs), action.isolated) == (2, [job], True)
        assert single.next_action(0.0) is WAIT, "one after the other, and nothing beside them"
        over(single, 2, [job], 0.0)
    assert dispatched(single, 0.0) == [(2, [later])]


def test_an_heir_makes_no_use_of_leave_to_execute_until_it_has_executed_what_it_inherits(make_job) -> None:
    told: list[tuple[str, int]] = []
    limited = Dispatcher(
        DefaultScheduler(), permits=Permits(lambda event, instance, *_: told.append((event, instance)))
    )
    limited.attach(1, seat=1)
    alone = make_job(1)
    limited.isolate([alone], 7)
    limited.give_up(7, InternalError("the seat is lost"), [1])
    (later,) = enqueue(limited, make_job(2))
    assert dispatched(limited, 0.0) == [(1, [alone])]
    limited.ask_for_permits(True)
    limited.granted(1)
    assert dispatched(limited, 0.0) == [], "nothing beside what is executed alone"
    limited.ask_for_permits(True)
    assert told == [("request", 1), ("release", 1)]
    limited.ask_for_permits(True)
    over(limited, 1, [alone], 0.0)
    assert dispatched(limited, 0.0) == []
    limited.ask_for_permits(True)
    assert told[2:] == [("request", 1)], "once"
    limited.granted(1)
    assert dispatched(limited, 0.0) == [(1, [later])]


def test_who_is_to_leave_inherits_nothing(single, make_job) -> None:
    single.attach(1, seat=1)
    single.attach(2, seat=2)
    (busy,) = enqueue(single, make_job(9))
    assert dispatched(single, 0.0) == [(1, [busy])]
    single.leave(1)
    job = make_job(1)
    single.isolate([job], 7)
    single.give_up(7, InternalError("the seat is lost"), [1, 2])
    assert dispatched(single, 0.0) == [(2, [job])]


def test_without_an_instance_the_first_heir_isolates_when_it_has_one(single, make_job) -> None:
    job, own = make_job(1), make_job(2)
    single.isolate([job], 7)
    single.isolate([own], 8)
    single.give_up(7, InternalError("the seat is lost"), [8, 9])
    single.attach(1, seat=9)
    assert dispatched(single, 0.0) == []
    single.attach(2, seat=8)
    assert dispatched(single, 0.0) == [(2, [job])]
    over(single, 2, [job], 0.0)
    assert dispatched(single, 0.0) == [(2, [own])]


def test_an_heir_that_dies_of_what_it_isolates_leaves_the_rest_to_its_next_instance(single, make_job) -> None:
    single.attach(1, seat=8)
    jobs = [make_job(number) for number in (1, 2)]
    single.isolate(jobs, 7)
    single.give_up(7, InternalError("the seat is lost"), [8])
    assert dispatched(single, 0.0) == [(1, jobs[:1])]
    single.detach(1)
    single.attach(2, seat=8)
    assert dispatched(single, 0.0) == [(2, jobs[1:])]


def test_an_heir_whose_credits_overlap_knows_its_end_afterwards(gpu, make_job) -> None:
    (first,) = enqueue(gpu, make_job(1))
    assert dispatched(gpu, 0.0) == [(1, [first])]
    job = make_job(2)
    gpu.isolate([job], 7)
    gpu.give_up(7, InternalError("the seat is lost"), [0])
    over(gpu, 1, [first], 0.010)
    assert dispatched(gpu, 0.010) == [(1, [job])]
    over(gpu, 1, [job], 0.020)
    (later,) = enqueue(gpu, make_job(3))
    assert dispatched(gpu, 0.020) == [(1, [later])]


def test_an_instance_that_is_gone_is_forgotten_whatever_it_was_doing(gpu, make_job) -> None:
    (first,) = enqueue(gpu, make_job(1))
    dispatched(gpu, 0.0)
    gpu.detach(1)
    enqueue(gpu, make_job(2))
    assert gpu.next_action(math.inf) is WAIT
    over(gpu, 1, [first], 0.010)


def test_an_instance_that_dies_before_it_is_dismissed_is_gone(single) -> None:
    """As when a server has no more time in the turn in which its last batch is over."""
    single.attach(1)
    single.leave(1)
    assert single.dismissed == [1]
    single.detach(1)
    assert single.dismissed == []


def test_an_instance_leaves_when_its_sequences_are_over(make_job) -> None:
    class Sequences(DefaultScheduler):
        binds = True

        def release(self, instance: int) -> bool:
            return not self.binds

    core = Sequences()
    dispatcher = Dispatcher(core, stateful=True)
    dispatcher.attach(1)
    assert not dispatcher.leave(1, sequences_first=True)
    dispatcher.next_action(0.0)
    assert dispatcher.dismissed == []
    core.binds = False
    dispatcher.next_action(1.0)
    assert dispatcher.dismissed == [1]


def test_a_core_that_has_failed_is_told_nothing(make_job) -> None:
    class Broken(DefaultScheduler):
        def instance_idle(self, instance: int, spare: bool = False) -> None:
            raise AssertionError("the core has failed")

        instance_paused = instance_gone = instance_idle

    dispatcher = Dispatcher(DefaultScheduler())
    dispatcher.attach(1)
    (job,) = enqueue(dispatcher, make_job(1))
    dispatched(dispatcher, 0.0)
    dispatcher.core = Broken()
    dispatcher.core_failed = True
    dispatcher.leave(1, sequences_first=True)
    over(dispatcher, 1, [job], 1.0, in_place=True)
    assert dispatcher.dismissed == [1]
    dispatcher.detach(1)


@pytest.mark.parametrize("in_place", [False, True])
def test_an_instance_that_serves_on_when_the_core_has_failed_is_not_told_of_either(single, make_job, in_place) -> None:
    class Broken(DefaultScheduler):
        def instance_idle(self, instance: int, spare: bool = False) -> None:
            raise AssertionError("the core has failed")

    single.attach(1)
    (job,) = enqueue(single, make_job(1))
    dispatched(single, 0.0)
    single.core = Broken()
    single.core_failed = True
    over(single, 1, [job], 1.0, in_place=in_place)
    single.end_rest()
    assert single.leave(1)
    assert single.dismissed == [1]


def test_answers_keep_to_the_instance_that_jobs_were_given_to(make_job) -> None:
    order = OrderedByInstance()
    dispatcher = Dispatcher(DefaultScheduler(), order=order)
    dispatcher.attach(1, 2)
    first, second = enqueue(dispatcher, make_job(1), make_job(2))
    dispatched(dispatcher, 0.0)
    assert order.settle(second, None, True) == []
    assert [job for job, _, _ in order.settle(first, None, True)] == [first, second]
