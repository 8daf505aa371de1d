"""Instances that are to leave a sequence batcher (rule 10): no new sequence for them, and none of theirs is cut off."""

from __future__ import annotations

import pytest
from sequence_world import World, make_plan

from trireme.engine.config.sequence import DirectStrategy, OldestStrategy, SequenceBatching
from trireme.engine.errors import TriremeError

BOTH = pytest.mark.parametrize(
    "batching", [SequenceBatching(DirectStrategy()), SequenceBatching(OldestStrategy())], ids=["direct", "oldest"]
)


@BOTH
def test_an_instance_without_sequences_is_free_at_once(batching: SequenceBatching) -> None:
    world = World.of(make_plan(batching, 1), instances=2)
    assert world.core.release(1)
    assert world.core.release(99), "no sequence binds an unknown one"


@BOTH
def test_its_sequences_are_finished_and_no_other_comes(batching: SequenceBatching) -> None:
    world = World.of(make_plan(batching, 1), instances=2)
    world.ask(1, "s", "1a")
    world.ask(2, "s", "2a")
    world.run()
    leaving = world.batches[0].instance
    assert not world.core.release(leaving)
    world.ask(3, "s", "3a")
    world.run()
    assert world.names == [["1a"], ["2a"]], "the third one waits: the free place is not for it"
    world.ask(1, "", "1b")
    world.ask(1, "e", "1c")
    world.run()
    assert world.core.release(leaving)
    assert world.names[2:] == [["1b"], ["1c"]]
    world.core.instance_gone(leaving)
    world.ask(2, "e", "2b")
    world.run()
    assert world.names[4:] == [["2b"], ["3a"]]
    assert world.batches[-1].instance != leaving


@BOTH
def test_a_sequence_that_falls_silent_frees_it(batching: SequenceBatching) -> None:
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.run()
    assert not world.core.release(0)
    world.wait(10.0)
    assert world.core.release(0)


@BOTH
def test_a_last_request_that_is_not_in_a_batch_yet_binds_it(batching: SequenceBatching) -> None:
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.act()
    world.ask(1, "e", "1b")
    assert not world.core.release(0)
    world.run()
    assert world.core.release(0)
    assert world.names == [["1a"], ["1b"]]


@BOTH
def test_it_knows_which_sequences_go_on(batching: SequenceBatching) -> None:
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s")
    world.ask(2, "s")
    assert [world.core.continues(key) for key in (1, 2, 3)] == [True, True, False]
    world.ask(1, "e")
    assert not world.core.continues(1)
    assert world.core.active == 1


@BOTH
def test_when_no_client_can_continue_them_the_backlog_does_not_wait_for_silent_sequences(
    batching: SequenceBatching,
) -> None:
    """Rule 9. What was accepted is executed, in order, and each sequence keeps its place until then."""
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.run()
    for sequence in (2, 3):
        for flags, name in (("s", "a"), ("", "b")):
            world.ask(sequence, flags, f"{sequence}{name}")
    world.act()
    assert world.names == [["1a"]], "the others wait for the only slot"
    world.core.stop()
    world.core.end_sequences()
    assert world.core.active == 0
    world.run()
    assert world.names == [["1a"], ["2a"], ["2b"], ["3a"], ["3b"]]
    assert world.core.release(0)
    with pytest.raises(TriremeError, match="must specify the START flag"):
        world.ask(1)


@BOTH
def test_a_sequence_that_is_executing_when_no_client_can_continue_it_is_over_afterwards(
    batching: SequenceBatching,
) -> None:
    world = World.of(make_plan(batching, 1))
    world.ask(1, "s", "1a")
    world.ask(1, "", "1b")
    world.ask(2, "s", "2a")
    world.act()
    world.core.end_sequences()
    world.run()
    assert world.names == [["1a"], ["1b"], ["2a"]]
    assert world.core.release(0)
