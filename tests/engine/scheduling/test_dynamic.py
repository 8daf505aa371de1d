"""The dynamic batcher keeps what docs/reference/scheduling.md#dynamic-batching says; the numbers are those observed on
the reference server."""

from __future__ import annotations

import pytest

from trireme.engine.config.model import DynamicBatching, ModelConfig, ModelInput
from trireme.engine.datatypes import FP32
from trireme.engine.errors import UnavailableError
from trireme.engine.job import SealReason
from trireme.engine.scheduling.core import WAIT, Dispatch, Wait, WaitUntil
from trireme.engine.scheduling.formation import Compatibility
from trireme.engine.scheduling.queueing import DynamicBatcher

DELAY_US = 300_000


def batcher(max_batch_size=8, compatibility=None, **fields) -> DynamicBatcher:
    return DynamicBatcher(DynamicBatching(**fields), max_batch_size, compatibility)


def burst(make_job, count, at_s=0.0):
    return [(at_s, make_job(n)) for n in range(count)]


# ----------------------------------------------------------------------------------------------------- without delay


def test_idle_instance_starts_with_what_is_there_and_the_next_batches_grow(make_job, run):
    history = run(batcher(), burst(make_job, 13))
    assert history.sizes == [1, 8, 4]
    assert history.starts == [0.0, 1.0, 2.0]
    assert history.reasons == [SealReason.IDLE, SealReason.FULL, SealReason.IDLE]


@pytest.mark.parametrize(
    ("waiting", "sizes", "reasons"),
    [
        (5, [1, 4, 1], [SealReason.IDLE, SealReason.PREFERRED, SealReason.IDLE]),
        (3, [1, 3], [SealReason.IDLE, SealReason.IDLE]),
    ],
)
def test_preferred_size_is_cut_off_but_never_waited_for_without_delay(make_job, run, waiting, sizes, reasons):
    history = run(batcher(preferred_batch_sizes=(4,)), burst(make_job, 1 + waiting))
    assert history.sizes == sizes
    assert history.reasons == reasons


def test_larger_preferred_size_replaces_a_smaller_one(make_job, run):
    history = run(batcher(preferred_batch_sizes=(2, 4)), burst(make_job, 1 + 7))
    assert history.sizes == [1, 4, 2, 1]


def test_batches_count_rows_not_requests(make_job, run):
    arrivals = [(0.0, make_job(n, rows=rows)) for n, rows in enumerate([1, 5, 3, 4, 4, 1])]
    history = run(batcher(), arrivals)
    assert history.ids == [["0"], ["1", "2"], ["3", "4"], ["5"]]


def test_batch_that_missed_every_preferred_size_is_cut_before_passing_the_largest(make_job, run):
    """4 is passed from 3 to 6 rows without being met, so the cut is at 3, though 6 rows would be allowed."""
    history = run(batcher(preferred_batch_sizes=(4,)), [(0.0, make_job(n, rows=3)) for n in range(4)])
    assert history.sizes == [1, 1, 1, 1]
    assert history.reasons[1] is SealReason.FULL


def test_request_larger_than_max_batch_size_is_executed_alone(make_job, run):
    """Validation refuses such requests; the batcher must not get stuck on one all the same."""
    assert run(batcher(max_batch_size=4), [(0.0, make_job(n, rows=9)) for n in range(2)]).sizes == [1, 1]


def test_model_without_batch_dimension_executes_one_request_at_a_time(make_job, run):
    core = DynamicBatcher(DynamicBatching(max_queue_delay_us=DELAY_US), 0)
    history = run(core, burst(make_job, 3))
    assert history.sizes == [1, 1, 1]
    assert history.starts == [0.0, 1.0, 2.0]


# -------------------------------------------------------------------------------------------------------- with delay


@pytest.mark.parametrize(
    ("arrivals", "sizes", "starts", "reasons"),
    [
        (2, [2], [0.3], [SealReason.DELAY]),
        (4, [4], [0.0], [SealReason.PREFERRED]),
        (6, [4, 2], [0.0, 0.3], [SealReason.PREFERRED, SealReason.DELAY]),
    ],
)
def test_delay_waits_for_a_preferred_size(make_job, run, arrivals, sizes, starts, reasons):
    core = batcher(preferred_batch_sizes=(4,), max_queue_delay_us=DELAY_US)
    history = run(core, burst(make_job, arrivals), busy_s=0.01)
    assert (history.sizes, history.starts, history.reasons) == (sizes, starts, reasons)


def test_request_above_the_largest_preferred_size_is_not_delayed(make_job, run):
    core = batcher(preferred_batch_sizes=(4,), max_queue_delay_us=DELAY_US)
    history = run(core, [(0.0, make_job(rows=5))])
    assert history.starts == [0.0]


def test_delay_counts_from_the_oldest_request(make_job, run):
    core = batcher(max_queue_delay_us=DELAY_US)
    history = run(core, [(0.0, make_job("a")), (0.2, make_job("b")), (0.29, make_job("c"))])
    assert history.batches == [(0.3, ["a", "b", "c"], SealReason.DELAY)]


def test_arrival_that_completes_a_preferred_size_ends_the_delay(make_job, run):
    core = batcher(preferred_batch_sizes=(3,), max_queue_delay_us=DELAY_US)
    history = run(core, [(0.0, make_job("a")), (0.1, make_job("b")), (0.2, make_job("c"))])
    assert history.batches == [(0.2, ["a", "b", "c"], SealReason.PREFERRED)]


def test_once_the_delay_is_over_a_batch_takes_all_that_waits_up_to_max_batch_size(make_job, run):
    """What the reference server merges out of several formed batches, late binding takes at once."""
    core = batcher(preferred_batch_sizes=(4,), max_queue_delay_us=DELAY_US)
    arrivals = [(0.0, make_job(n)) for n in range(4)]
    arrivals += [(0.1, make_job(n)) for n in range(4, 7)] + [(0.35, make_job(n)) for n in range(7, 14)]
    history = run(core, arrivals)
    assert history.sizes == [4, 8, 2]
    assert history.reasons == [SealReason.PREFERRED, SealReason.FULL, SealReason.DELAY]


def test_before_the_delay_is_over_a_free_instance_takes_only_the_preferred_size(make_job, run):
    core = batcher(preferred_batch_sizes=(4,), max_queue_delay_us=DELAY_US)
    arrivals = [(0.0, make_job(n)) for n in range(4)] + [(0.1, make_job(n)) for n in range(4, 10)]
    history = run(core, arrivals, busy_s=0.25)
    assert history.batches[1] == (0.25, ["4", "5", "6", "7"], SealReason.PREFERRED)
    assert history.batches[2] == (0.5, ["8", "9"], SealReason.DELAY)


def test_full_batch_is_not_delayed(make_job, run):
    core = batcher(max_batch_size=2, max_queue_delay_us=DELAY_US)
    history = run(core, burst(make_job, 4), busy_s=0.01, instances=2)
    assert history.starts == [0.0, 0.0]
    assert history.reasons == [SealReason.FULL, SealReason.FULL]


def test_incompatible_successor_ends_the_delay(make_job, run):
    core = batcher(compatibility=Compatibility(("IN",)), max_queue_delay_us=DELAY_US)
    history = run(core, [(0.0, make_job("a", shape=(1,))), (0.1, make_job("b", shape=(2,)))], instances=2)
    assert history.batches == [(0.1, ["a"], SealReason.SHAPE), (0.4, ["b"], SealReason.DELAY)]


# ------------------------------------------------------------------------------------------------------------ shapes


def test_requests_of_other_shapes_do_not_overtake(make_job, run):
    config = ModelConfig("m", max_batch_size=8, input=(ModelInput("IN", FP32, (-1,)),))
    core = batcher(compatibility=Compatibility.of(config))
    shapes = [(9,), (1,), (2,), (2,), (1,)]
    history = run(core, [(0.0, make_job(n, shape=shape)) for n, shape in enumerate(shapes)])
    assert history.ids[1:] == [["1"], ["2", "3"], ["4"]]
    assert history.reasons[1:] == [SealReason.SHAPE, SealReason.SHAPE, SealReason.IDLE]


def test_preferred_size_before_an_incompatible_request_is_the_cut(make_job, run):
    core = batcher(compatibility=Compatibility(("IN",)), preferred_batch_sizes=(2, 8))
    shapes = [(9,), (1,), (1,), (1,), (2,)]
    history = run(core, [(0.0, make_job(n, shape=shape)) for n, shape in enumerate(shapes)])
    assert history.ids[1:] == [["1", "2"], ["3"], ["4"]]


# ------------------------------------------------------------------------------------------- instances, stop and drop


def test_instance_idle_longest_gets_the_batch(make_job, run):
    history = run(batcher(), [(n / 10, make_job(n)) for n in range(6)], busy_s=0.05, instances=3)
    assert history.instances == [0, 1, 2, 0, 1, 2]


def test_instance_that_is_gone_gets_nothing(make_job):
    core = batcher()
    for instance in (0, 1, 0):
        core.instance_idle(instance)
    core.instance_gone(0)
    core.instance_gone(5)
    core.enqueue(make_job(1), 0.0)
    action = core.next_action(0.0)
    assert isinstance(action, Dispatch)
    assert action.instance == 1
    core.enqueue(make_job(2), 0.0)
    assert core.next_action(0.0) is WAIT


def test_instance_with_two_credits_gets_two_batches(make_job):
    core = batcher(max_batch_size=1)
    core.instance_idle(3)
    core.instance_idle(3)
    jobs = [make_job(n) for n in range(3)]
    for job in jobs:
        core.enqueue(job, 0.0)
    assert core.next_action(0.0) == Dispatch(3, jobs[:1], SealReason.FULL)
    assert core.next_action(0.0) == Dispatch(3, jobs[1:2], SealReason.FULL)
    assert core.next_action(0.0) is WAIT


def test_stopping_refuses_new_requests_and_drains_without_delay(make_job):
    core = batcher(max_queue_delay_us=DELAY_US)
    job = make_job("in")
    core.instance_idle(0)
    core.enqueue(job, 0.0)
    assert isinstance(core.next_action(0.0), WaitUntil)
    core.stop()
    with pytest.raises(UnavailableError) as refusal:
        core.enqueue(make_job("out"), 0.0)
    assert refusal.value.message == (
        "[request id: out] Server is stopping, scheduler for model has stopped accepting new inference requests"
    )
    assert core.next_action(0.0) == Dispatch(0, [job], SealReason.DRAIN)


def test_drop_all_gives_back_every_job_in_arrival_order(make_job):
    core = DynamicBatcher(DynamicBatching(priority_levels=3, default_priority_level=2), 8)
    jobs = [make_job(n, priority=priority) for n, priority in enumerate((3, 1, 2, 1))]
    for job in jobs:
        core.enqueue(job, 0.0)
    core.cancel(jobs[1])
    assert core.queued == 4, "a cancelled job counts until its Reject is fetched"
    assert core.drop_all() == jobs
    assert core.queued == 0
    core.instance_idle(0)
    assert isinstance(core.next_action(0.0), Wait)


def test_batcher_goes_on_after_drop_all(make_job):
    core = batcher()
    core.enqueue(make_job(1), 0.0)
    core.drop_all()
    job = make_job(2)
    core.enqueue(job, 0.0)
    core.instance_idle(0)
    assert core.next_action(0.0) == Dispatch(0, [job], SealReason.IDLE)


# ------------------------------------------------------------------------------------------------------------- work


class CountingCompatibility(Compatibility):
    """Counts how often a job is looked at."""

    __slots__ = ("looks",)

    def __init__(self):
        super().__init__(("IN",))
        self.looks = 0

    def signature(self, job):
        self.looks += 1
        return ""


def test_a_long_queue_is_not_walked_again_for_every_batch(make_job):
    counting = CountingCompatibility()
    core = batcher(compatibility=counting)
    for n in range(1000):
        core.enqueue(make_job(n), 0.0)
        core.next_action(0.0)
    for _ in range(125):
        core.instance_idle(0)
        core.next_action(0.0)
    assert core.queued == 0
    assert counting.looks == 1000


def test_a_growing_batch_is_not_walked_again_for_every_arrival(make_job):
    counting = CountingCompatibility()
    core = batcher(max_batch_size=64, compatibility=counting, max_queue_delay_us=DELAY_US)
    core.instance_idle(0)
    for n in range(63):
        core.enqueue(make_job(n), 0.0)
        assert isinstance(core.next_action(0.0), WaitUntil)
    assert counting.looks == 63
