"""The sequence batcher's rules that do not depend on the strategy."""

from __future__ import annotations

import pytest
from sequence_world import World, make_plan

from trireme.engine.config.sequence import DirectStrategy, OldestStrategy, SequenceBatching
from trireme.engine.errors import ErrorKind, FailureReason, TriremeError
from trireme.engine.scheduling.core import Wait, WaitUntil
from trireme.engine.scheduling.sequence.slot import SlotState

DIRECT = SequenceBatching(DirectStrategy())
OLDEST = SequenceBatching(OldestStrategy())
BOTH = pytest.mark.parametrize("batching", [DIRECT, OLDEST], ids=["direct", "oldest"])


def kinds(world: World) -> set[tuple[ErrorKind, str, FailureReason]]:
    return {(error.kind, error.message, error.reason) for _, error in world.rejected}


CANCELLED = {(ErrorKind.CANCELLED, "", FailureReason.CANCELED)}


# Backlog


@BOTH
def test_backlog_is_first_come_first_served_and_moves_with_all_its_requests(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.ask(2, "s", "2a")
    world.ask(3, "s", "3a")
    world.ask(2, "", "2b")
    world.ask(3, "e", "3b")
    world.run()
    assert world.names == [["1a"]], "no other has a slot"
    world.ask(1, "e", "1b")
    world.run()
    assert world.names == [["1a"], ["1b"], ["2a"], ["2b"]]
    world.ask(2, "e", "2c")
    world.run()
    assert world.names[4:] == [["2c"], ["3a"], ["3b"]]


@BOTH
def test_before_any_instance_is_there_all_wait_in_the_backlog(batching):
    world = World.of(make_plan(batching, 2), instances=0)
    for key in (1, 2, 3):
        world.ask(key, "se", str(key))
    assert isinstance(world.act(), Wait)
    world.core.instance_idle(7)
    world.run()
    assert world.names == [["1", "2"], ["3"]]


@BOTH
def test_an_ended_sequence_in_the_backlog_and_a_new_one_with_its_id_are_two(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.ask(2, "se", "first")
    world.ask(2, "s", "second")
    world.ask(2, "e", "third")
    world.ask(1, "e", "1b")
    world.run()
    assert world.names == [["1a"], ["1b"], ["first"], ["second"], ["third"]]


@BOTH
def test_backlog_timeout_rejects_the_whole_sequence_at_its_shortest_limit(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a", timeout_us=125_000)
    world.ask(2, "s", "2a", timeout_us=900_000)
    world.ask(2, "", "2b")
    world.ask(3, "s", "3a")
    world.wait(0.25)
    world.ask(2, "", "2c", timeout_us=250_000)
    assert world.act() == WaitUntil(0.5)
    world.wait(0.25)
    assert world.rejections == ["2a", "2b", "2c"]
    assert kinds(world) == {
        (
            ErrorKind.UNAVAILABLE,
            "timeout of the corresponding sequence has been expired",
            FailureReason.REJECTED,
        )
    }
    with pytest.raises(TriremeError, match="START flag"):
        world.ask(2)
    world.ask(1, "e", "1b")
    world.run()
    assert world.names == [["1a"], ["1b"], ["3a"]]


@BOTH
def test_timeouts_have_no_effect_in_a_slot(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.act()
    world.ask(1, "", "1b", timeout_us=1)
    world.wait(0.5)
    world.run()
    assert world.names == [["1a"], ["1b"]]


# Idle sequences


@BOTH
def test_an_idle_sequence_loses_its_slot_silently(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.ask(2, "s", "2a")
    world.run()
    world.wait(0.999)
    assert world.names == [["1a"]]
    world.wait(0.001)
    assert world.names == [["1a"], ["2a"]]
    assert world.rejected == []
    with pytest.raises(TriremeError, match="START flag"):
        world.ask(1)


@BOTH
def test_each_request_begins_the_idle_time_anew(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s")
    for _ in range(5):
        world.wait(0.75)
        world.ask(1)
        world.run()
    world.wait(1.0)
    with pytest.raises(TriremeError, match="START flag"):
        world.ask(1)


@BOTH
def test_the_reaper_comes_to_rest(batching):
    """However many sequences are idle: each is looked at once, and then nothing more wakes the batcher."""
    world = World.of(make_plan(batching, 8))
    for key in range(1, 9):
        world.ask(key, "s")
    world.run()
    assert (world.act(), world.slots.idle_s) == (Wait(), 1.0)
    world.now = 5.0
    assert world.act() == Wait()
    assert (world.core.active, world.slots.alive) == (0, {})


@BOTH
def test_what_is_queued_of_an_idle_sequence_is_executed_before_the_slot_is_free(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.ask(1, "", "1b")
    world.ask(2, "s", "2a")
    world.wait(1.5)
    with pytest.raises(TriremeError, match="START flag"):
        world.ask(1)
    world.run()
    assert world.names == [["1a"], ["1b"], ["2a"]]


@BOTH
def test_a_sequence_in_the_backlog_is_not_idle_and_has_all_its_time_once_it_has_a_slot(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.ask(2, "s", "2a")
    for _ in range(3):
        world.wait(0.75)
        world.ask(1, "", "1")
    world.ask(1, "e", "1z")
    world.run()
    world.wait(0.75)
    world.ask(2, "e", "2z")
    world.run()
    assert world.names[-2:] == [["2a"], ["2z"]]


# Cancellation


@BOTH
def test_cancelling_a_queued_request_cancels_its_successors_and_ends_the_sequence(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "a")
    world.act()
    world.ask(1, "", "b")
    gone = world.ask(1, "", "c")
    world.ask(1, "e", "d")
    world.ask(2, "s", "next")
    world.core.cancel(gone)
    world.core.cancel(gone)
    with pytest.raises(TriremeError, match="START flag"):
        world.ask(1)
    world.run()
    assert world.rejections == ["c", "d"]
    assert kinds(world) == CANCELLED
    assert world.names == [["a"], ["b"], ["next"]]


@BOTH
def test_cancelling_the_next_request_frees_the_slot(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "a")
    world.run()
    head = world.ask(1, "", "b")
    world.ask(2, "s", "next")
    world.core.cancel(head)
    world.run()
    assert world.rejections == ["b"]
    assert world.names == [["a"], ["next"]]


@BOTH
def test_cancelling_an_executing_request_is_for_the_backend(batching):
    world = World.of(make_plan(batching, 1))
    job = world.ask(1, "s", "a")
    world.act()
    world.core.cancel(job)
    assert job.cancelled
    world.ask(1, "e", "b")
    world.run()
    assert world.names == [["a"], ["b"]]


@BOTH
def test_cancelling_one_request_in_the_backlog_cancels_the_sequence_as_a_whole(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.ask(2, "s", "2a")
    last = world.ask(2, "", "2b")
    world.ask(3, "s", "3a")
    world.core.cancel(last)
    world.ask(1, "e", "1b")
    world.run()
    assert world.rejections == ["2a", "2b"]
    assert kinds(world) == CANCELLED
    assert world.names == [["1a"], ["1b"], ["3a"]]


@BOTH
def test_cancelling_spares_the_sequence_that_began_anew_behind(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "a")
    world.act()
    gone = world.ask(1, "", "b")
    world.ask(1, "", "c")
    world.ask(1, "s", "A")
    world.core.cancel(gone)
    world.ask(1, "e", "B")
    world.run()
    assert world.rejections == ["b", "c"]
    assert world.names == [["a"], ["A"], ["B"]]


def test_cancelling_a_request_that_waits_in_the_inner_batcher():
    """Issued, not executing: its successors go with it, and a START behind them goes on."""
    world = World.of(make_plan(OLDEST, 2))
    world.ask(1, "s", "busy")
    world.act()
    issued = world.ask(2, "s", "a")
    world.ask(2, "", "b")
    world.ask(2, "s", "A")
    world.act()
    world.core.cancel(issued)
    world.run()
    assert world.rejections == ["a", "b"]
    assert world.names == [["busy"], ["A"]]


@BOTH
def test_cancelling_a_request_that_left_is_no_matter(batching):
    world = World.of(make_plan(batching, 1))
    job = world.ask(1, "se", "a")
    world.run()
    world.core.cancel(job)
    assert world.act() == Wait()


# Instances


@BOTH
def test_sequences_of_a_dead_instance_end_and_live_on_nowhere_else(batching):
    world = World.of(make_plan(batching, 1), instances=2)
    world.ask(1, "s", "1a")
    world.ask(2, "s", "2a")
    world.act()
    world.ask(1, "", "1b", timeout_us=3)
    world.ask(7, "s", "xa")  # in the backlog
    world.die(0)
    world.act()
    assert world.rejections == ["1b"]
    (error,) = [error for _, error in world.rejected]
    assert (error.kind, error.reason) == (ErrorKind.UNAVAILABLE, FailureReason.BACKEND)
    assert error.message == (
        "[request id: 1b] sequence 1 to model 'm' is lost, because the model instance that it was bound to died; start "
        "the sequence again"
    )
    with pytest.raises(TriremeError, match="START flag"):
        world.ask(1)
    world.ask(2, "e", "2b")
    world.run()
    assert world.names == [["1a"], ["2a"], ["2b"], ["xa"]]
    assert {batch.instance for batch in world.batches[2:]} == {1}


@BOTH
def test_a_new_instance_brings_new_slots(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.act()
    world.ask(2, "s", "2a")
    world.die(0)
    assert isinstance(world.act(), Wait)
    world.core.instance_idle(1)
    world.run()
    assert [(batch.instance, batch.names) for batch in world.batches] == [(0, ["1a"]), (1, ["2a"])]


@BOTH
def test_a_settlement_after_the_death_is_ignored(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.act()
    jobs = world.running.pop(0)[0].jobs
    world.core.instance_gone(0)
    world.core.instance_gone(0)
    world.core.settle(jobs, world.now)
    world.core.settle(jobs, world.now, rescheduled=jobs)
    world.core.instance_idle(1)
    world.ask(1, "se", "again")
    world.run()
    assert world.rejections == ["1a"], "asked to be executed again, but there is no sequence for it any more"
    assert world.names[-1] == ["again"]


@BOTH
def test_a_settlement_that_is_told_twice_frees_the_slot_once(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "se", "1a")
    world.act()
    jobs = world.running[0][0].jobs
    world.ask(2, "s", "2a")
    world.ask(3, "s", "3a")
    world.settle()
    world.core.settle(jobs, world.now)
    world.act()
    world.core.settle(jobs, world.now)
    world.act()
    assert world.names == [["1a"], ["2a"]]
    world.ask(2, "", "2b")
    world.run()
    assert world.names == [["1a"], ["2a"], ["2b"]]


# The end


@BOTH
def test_drop_all_gives_back_what_is_queued_in_order_of_arrival_and_ends_all_sequences(batching):
    world = World.of(make_plan(batching, 1))
    first = world.ask(1, "s", "1a")
    world.act()
    kept = [world.ask(2, "s", "2a"), world.ask(1, "", "1b"), world.ask(3, "s", "3a")]
    world.core.cancel(kept[1])
    assert world.core.queued == 3
    assert list(world.core.drop_all()) == kept
    assert first not in kept
    assert (world.core.queued, world.core.active) == (0, 0)
    world.ask(5, "s", "5a")
    world.run()
    assert world.names == [["1a"], ["5a"]]
    assert (world.act(), world.slots.idle_s) == (Wait(), 1.0)


def test_drop_all_empties_the_inner_batcher():
    world = World.of(make_plan(OLDEST, 4), instances=0)
    world.core.instance_idle(0)
    world.ask(1, "s", "1a")
    world.act()
    jobs = [world.ask(2, "s", "2a"), world.ask(3, "se", "3a"), world.ask(2, "", "2b")]
    world.act()
    assert world.core.drop_all() == jobs
    world.run()
    assert world.names == [["1a"]]


@BOTH
def test_queued_counts_what_is_not_executing(batching):
    world = World.of(make_plan(batching, 1))
    jobs = [world.ask(1, "s", "1a"), world.ask(1, "", "1b"), world.ask(2, "s", "2a")]
    assert world.core.queued == 3
    world.act()
    assert world.core.queued == 2
    world.core.cancel(jobs[2])
    assert world.core.queued == 2, "its rejection was not fetched yet"
    world.act()
    assert world.core.queued == 1


@BOTH
def test_slots_of_what_is_dropped_are_gone_and_new_ones_take_their_places(batching):
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.run()
    world.ask(1, "", "1b")
    world.ask(2, "s", "2a")
    (slot,) = world.core._hosts[0].slots.values()
    assert [job.request.id for job in world.core.drop_all()] == ["1b", "2a"]
    assert slot.state is SlotState.GONE
    world.ask(3, "se", "3a")
    world.run()
    assert world.names == [["1a"], ["3a"]]
