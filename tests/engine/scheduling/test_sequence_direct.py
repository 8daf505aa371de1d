"""The direct strategy (docs/reference/sequences.md#direct-strategy): a slot is a row."""

from __future__ import annotations

import numpy as np
import pytest
from sequence_world import World, make_plan, sequence_job, value

from trireme.engine.config.sequence import DirectStrategy, SequenceBatching
from trireme.engine.errors import InternalError
from trireme.engine.job import SealReason
from trireme.engine.scheduling.sequence.strategies import NullJob

DIRECT = SequenceBatching()


def patient(utilization: float, delay_us: int = 500_000) -> SequenceBatching:
    return SequenceBatching(DirectStrategy(delay_us, utilization))


def test_a_batch_has_a_row_for_each_slot_up_to_the_last_one_ready():
    """Slots 0, 1, 2 have sequences and only the last one has work: null, null, real; slot 3 is not padded."""
    world = World.of(make_plan(DIRECT))
    for key in (10, 11, 12, 13):
        world.ask(key, "s", f"{key}a")
    world.run()
    world.ask(12, "", "12b")
    world.run()
    world.ask(13, "", "13b")
    world.ask(10, "", "10b")
    world.run()
    assert world.names == [["10a", "11a", "12a", "13a"], ["-", "-", "12b"], ["10b", "-", "-", "13b"]]


def test_null_jobs_say_that_they_are_none():
    world = World.of(make_plan(DIRECT))
    world.ask(1, "s")
    world.ask(2, "s")
    world.run()
    world.ask(2, "e", shape=(3,))
    world.run()
    null, real = world.batches[-1].jobs
    assert isinstance(null, NullJob)
    assert [value(null, name) for name in ("READY", "START", "END", "CORRID")] == [False, 0, 0.0, 0]
    assert [value(real, name) for name in ("READY", "START", "END", "CORRID")] == [True, 0, 2.0, 2]
    assert null.inputs["IN"].shape == (1, 3)
    assert not null.inputs["IN"].array.any(), "not what another client sent"
    assert null.inputs.keys() == real.inputs.keys()


def test_a_null_job_is_not_answered():
    world = World.of(make_plan(DIRECT))
    null = NullJob(sequence_job(1), make_plan(DIRECT).controls)
    assert null.reply.deliver(InternalError("no"), True) is False
    assert world.core.queued == 0


def test_a_row_of_its_own_for_each_of_a_sequences_requests_in_order():
    world = World.of(make_plan(DIRECT))
    for name in "abc":
        world.ask(1, "s" if name == "a" else "", f"1{name}")
    world.ask(2, "s", "2a")
    world.run()
    assert world.names == [["1a", "2a"], ["1b"], ["1c"]]


def test_no_batch_while_the_previous_one_is_executed():
    world = World.of(make_plan(DIRECT))
    world.core.instance_idle(0)  # a second credit
    world.ask(1, "s", "1a")
    world.act()
    world.ask(2, "s", "2a")
    world.act()
    assert world.names == [["1a"]]
    world.settle(idle=False)
    world.act()
    assert world.names == [["1a"], ["-", "2a"]]


def test_requests_of_other_shapes_wait_and_leave_a_gap():
    world = World.of(make_plan(DIRECT))
    for key, length in ((1, 2), (2, 3), (3, 2), (4, 3)):
        world.ask(key, "s", str(key), shape=(length,))
    world.run()
    assert world.names == [["1", "-", "3", "-"], ["-", "2", "-", "4"]]
    assert world.batches[0].jobs[1].inputs["IN"].shape == (1, 2)


def test_controls_of_a_request_that_was_left_out_are_those_of_its_own_place():
    world = World.of(make_plan(DIRECT))
    world.ask(1, "s", "1", shape=(1,))
    world.ask(2, "s", "2", shape=(2,))
    world.run()
    left_out = world.batches[1].jobs[1]
    assert (value(left_out, "START"), value(left_out, "CORRID")) == (1, 2)


def test_without_a_batch_dimension_there_is_one_slot():
    world = World.of(make_plan(DIRECT, max_batch_size=0, dims=(1,)))
    world.ask(1, "s", "1a")
    world.ask(2, "s", "2a")
    world.ask(1, "e", "1b")
    world.run()
    assert world.names == [["1a"], ["1b"], ["2a"]]
    assert world.batches[0].jobs[0].inputs["CORRID"].shape == (1,)


def test_slots_fill_up_lowest_number_first_over_all_instances():
    world = World.of(make_plan(DIRECT, 2), instances=3)
    for key in range(1, 7):
        world.ask(key, "s", str(key))
    world.act()
    assert [(batch.instance, batch.names) for batch in world.batches] == [
        (0, ["1", "4"]),
        (1, ["2", "5"]),
        (2, ["3", "6"]),
    ]


def test_a_freed_slot_goes_to_the_next_sequence_before_higher_ones():
    world = World.of(make_plan(DIRECT))
    for key in (1, 2, 3):
        world.ask(key, "s", str(key))
    world.run()
    world.ask(1, "e", "1e")
    world.run()
    world.ask(9, "s", "9")
    world.run()
    assert world.names[-1] == ["9"]


@pytest.mark.parametrize("ready", [1, 2])
def test_too_few_ready_slots_wait_for_the_delay(ready):
    world = World.of(make_plan(patient(0.75)))
    for key in range(1, ready + 1):
        world.ask(key, "s", str(key))
        world.wait(0.125)
    world.wait(1.0)
    assert [(batch.at_s, batch.reason) for batch in world.batches] == [(0.5, SealReason.DELAY)]


def test_enough_ready_slots_go_at_once():
    world = World.of(make_plan(patient(0.75)))
    for key in (1, 2, 3):
        world.ask(key, "s", str(key))
    world.act()
    assert [(batch.at_s, batch.names, batch.reason) for batch in world.batches] == [
        (0.0, ["1", "2", "3"], SealReason.PREFERRED)
    ]


@pytest.mark.parametrize(("utilization", "rows", "needed"), [(0.6, 5, 3), (0.1, 10, 1), (0.7, 10, 7), (1.0, 3, 3)])
def test_utilization_is_counted_in_single_precision(utilization, rows, needed):
    """0.6 as a float32 is more than three fifths of a double."""
    world = World.of(make_plan(patient(float(np.float32(utilization))), rows))
    for key in range(1, needed + 1):
        world.act()
        assert not world.batches
        world.ask(key, "s", str(key))
    world.act()
    assert len(world.batches) == 1


@pytest.mark.parametrize("batching", [patient(0.0), patient(0.9, delay_us=0)])
def test_delay_needs_both_settings(batching):
    world = World.of(make_plan(batching))
    world.ask(1, "s")
    world.act()
    assert [batch.reason for batch in world.batches] == [SealReason.IDLE]


def test_stopping_ends_the_delay():
    world = World.of(make_plan(patient(0.9)))
    world.ask(1, "s")
    world.act()
    world.core.stop()
    world.act()
    assert [batch.reason for batch in world.batches] == [SealReason.DRAIN]


def test_a_batch_of_all_slots_is_full():
    world = World.of(make_plan(DIRECT, 2))
    world.ask(1, "s")
    world.ask(2, "s")
    world.run()
    assert [batch.reason for batch in world.batches] == [SealReason.FULL]
