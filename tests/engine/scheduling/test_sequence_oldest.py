"""The oldest strategy (docs/reference/sequences.md#oldest-strategy): candidates' requests are batched as they come."""

from __future__ import annotations

from sequence_world import World, make_plan, value

from trireme.engine.config.sequence import OldestStrategy, SequenceBatching
from trireme.engine.job import SealReason


def oldest(candidates: int = 0, preferred: tuple[int, ...] = (), delay_us: int = 0) -> SequenceBatching:
    return SequenceBatching(OldestStrategy(candidates, preferred, delay_us))


def test_one_request_of_a_sequence_at_a_time_and_no_null_jobs():
    world = World.of(make_plan(oldest(), 4))
    for name in "abc":
        world.ask(1, "s" if name == "a" else "", f"1{name}")
    world.ask(2, "s", "2a")
    world.run()
    assert world.names == [["1a", "2a"], ["1b"], ["1c"]]


def test_order_in_the_batch_is_that_of_readiness_not_of_slots():
    world = World.of(make_plan(oldest(), 4))
    world.ask(1, "s", "1a")
    world.ask(2, "s", "2a")
    world.run()
    world.ask(2, "", "2b")
    world.ask(1, "", "1b")
    world.run()
    assert world.names == [["1a", "2a"], ["2b", "1b"]]


def test_more_candidates_than_rows():
    world = World.of(make_plan(oldest(5), 2))
    for key in range(1, 6):
        world.ask(key, "s", str(key))
    world.run()
    assert world.names == [["1", "2"], ["3", "4"], ["5"]]
    assert [batch.reason for batch in world.batches] == [SealReason.FULL, SealReason.FULL, SealReason.IDLE]


def test_one_candidate_at_a_time_is_one_request_at_a_time():
    """Five sequences of one request each: the slot is free at once, but its last request is still out."""
    world = World.of(make_plan(oldest(1), 8))
    for key in range(1, 6):
        world.ask(key, "se", str(key))
    world.run()
    assert world.names == [["1"], ["2"], ["3"], ["4"], ["5"]]


def test_a_sequence_that_gets_a_slot_at_its_predecessors_end_leaves_the_backlog():
    """From then on the time limit of its request has no effect."""
    world = World.of(make_plan(oldest(1), 8))
    world.ask(1, "se", "1")
    world.ask(2, "s", "2", timeout_us=250_000)
    world.act()
    world.wait(0.5)
    assert world.rejected == []
    world.run()
    assert world.names == [["1"], ["2"]]


def test_preferred_sizes_and_delay_as_the_dynamic_batcher():
    world = World.of(make_plan(oldest(6, (4,), 250_000), 8))
    for key in (1, 2):
        world.ask(key, "s", str(key))
    world.wait(0.5)
    world.settle()
    for key in (1, 2, 3, 4, 5, 6):
        world.ask(key, "" if key < 3 else "s", f"{key}b")
    world.act()
    world.settle()
    world.wait(0.5)
    assert [(batch.at_s, batch.names) for batch in world.batches] == [
        (0.25, ["1", "2"]),
        (0.5, ["1b", "2b", "3b", "4b"]),
        (0.75, ["5b", "6b"]),
    ]


def test_delay_counts_from_when_a_request_may_go():
    """The second request of a sequence waited for the first one; that is not its delay."""
    world = World.of(make_plan(oldest(2, (2,), 250_000), 2))
    world.ask(1, "s", "a")
    world.ask(1, "", "b")
    world.wait(0.5)
    world.settle()
    world.wait(0.125)
    assert world.names == [["a"]]
    world.wait(0.125)
    assert (world.batches[-1].at_s, world.batches[-1].names) == (0.75, ["b"])


def test_incompatible_shapes_close_a_batch():
    world = World.of(make_plan(oldest(), 4))
    for key, length in ((1, 1), (2, 2), (3, 2), (4, 1)):
        world.ask(key, "s", str(key), shape=(length,))
    world.run()
    assert world.names == [["1"], ["2", "3"], ["4"]]
    assert world.batches[0].reason is SealReason.SHAPE


def test_two_batches_of_one_instance_never_hold_one_sequence():
    world = World.of(make_plan(oldest(), 4))
    world.core.instance_idle(0)  # a second credit
    world.ask(1, "s", "1a")
    world.act()
    world.ask(1, "", "1b")
    world.ask(2, "s", "2a")
    world.act()
    assert world.names == [["1a"], ["2a"]]


def test_controls():
    world = World.of(make_plan(oldest(), 4))
    world.ask(3, "s")
    world.ask(3)
    world.ask(3, "e")
    world.run()
    told = [[value(batch.jobs[0], name) for name in ("START", "END", "READY", "CORRID")] for batch in world.batches]
    assert told == [[1, 0.0, True, 3], [0, 0.0, True, 3], [0, 2.0, True, 3]]


def test_a_slot_whose_last_request_is_still_out_is_free_already():
    """So the lowest number can be a busy one, and a later sequence be faster in the next slot, as with Triton."""
    world = World.of(make_plan(oldest(4), 0, dims=(1,)))
    for key in range(1, 6):
        world.ask(key, "se", str(key))
        world.act()
    world.run()
    assert world.names == [["1"], ["3"], ["5"], ["2"], ["4"]]


def test_sequences_that_come_in_one_turn_get_slots_of_their_own():
    world = World.of(make_plan(oldest(4), 0, dims=(1,)))
    for key in range(1, 6):
        world.ask(key, "se", str(key))
    world.run()
    assert world.names == [["1"], ["2"], ["3"], ["4"], ["5"]]


def test_of_slots_with_one_number_the_longest_free_is_taken():
    """The sequence does not wait behind another one's last request while an instance has nothing to do."""
    world = World.of(make_plan(oldest(1), 1), instances=2)
    world.ask(1, "se", "1")
    world.act()
    world.ask(2, "se", "2")
    world.act()
    assert [batch.instance for batch in world.batches] == [0, 1]
