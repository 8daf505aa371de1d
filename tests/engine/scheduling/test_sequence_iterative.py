"""Iterative sequences (docs/reference/sequences.md#iterative-sequences): a request is executed again and again until it
is done."""

from __future__ import annotations

import pytest
from sequence_world import World, make_plan, value

from trireme.engine.config.sequence import DirectStrategy, OldestStrategy, SequenceBatching
from trireme.engine.errors import ErrorKind, TriremeError
from trireme.engine.scheduling.core import Wait

DIRECT = SequenceBatching(DirectStrategy(), iterative=True)
OLDEST = SequenceBatching(OldestStrategy(), iterative=True)
BOTH = pytest.mark.parametrize("batching", [DIRECT, OLDEST], ids=["direct", "oldest"])


def iterate(world: World, left: dict[str, int]) -> None:
    """Execute until nothing more happens; each request comes back as often as `left` says for its name."""
    world.act()
    while any(world.running.values()):
        for instance in sorted(world.running):
            if world.running[instance]:
                again = [job for job in world.running[instance][0].jobs if left.get(job.id, 0) > 0]
                for job in again:
                    left[job.id] -= 1
                world.settle(instance, again)
        world.act()


@BOTH
def test_flags_are_those_of_a_start_once_and_none_after(batching):
    """A request that needs three more rounds: START, then three times nothing, one id throughout."""
    world = World.of(make_plan(batching))
    world.ask(name="a")
    iterate(world, {"a": 3})
    told: list[list[object]] = []
    world = World.of(make_plan(batching))
    job = world.ask(name="a")
    for _ in range(4):
        world.act()
        told.append([value(job, name) for name in ("START", "END", "READY", "CORRID")])
        world.settle(rescheduled=[job] if len(told) < 4 else [])
    assert told == [[1, 0.0, True, 1], *[[0, 0.0, True, 1]] * 3]
    assert world.act() == Wait()
    assert (world.core.queued, world.core.active) == (0, 0)


@BOTH
def test_requests_without_an_id_are_numbered_and_lose_the_flags_they_gave(batching):
    world = World.of(make_plan(batching))
    jobs = [world.ask(0, flags) for flags in ("", "s", "e", "se")]
    assert [job.request.correlation_id for job in jobs] == [1, 2, 3, 4]
    assert all(job.request.sequence_start and not job.request.sequence_end for job in jobs)


@BOTH
def test_new_requests_join_the_batches_of_those_that_iterate(batching):
    """Continuous batching: rows come and go, and none waits for the longest."""
    world = World.of(make_plan(batching, 2))
    world.ask(name="long")
    world.ask(name="short")
    world.ask(name="next")
    iterate(world, {"long": 3, "short": 0, "next": 1})
    assert [set(names) for names in world.names] == [{"long", "short"}, *[{"long", "next"}] * 2, {"long"}]


@BOTH
def test_an_own_id_lives_until_its_request_does_not_come_back(batching):
    world = World.of(make_plan(batching))
    with pytest.raises(TriremeError, match="START flag"):
        world.ask(6)
    job = world.ask(6, "s", "a")
    world.act()
    world.settle(rescheduled=[job])
    world.act()
    world.settle()
    with pytest.raises(TriremeError, match="START flag"):
        world.ask(6)


@BOTH
def test_start_and_end_together_do_not_keep_a_request_from_coming_back(batching):
    """The slot is held although the sequence is over."""
    world = World.of(make_plan(batching, 1))
    world.ask(8, "se", "a")
    world.ask(9, "se", "b")
    iterate(world, {"a": 2})
    assert world.names == [["a"], ["a"], ["a"], ["b"]]


@BOTH
def test_a_request_that_comes_back_goes_before_its_successors(batching):
    world = World.of(make_plan(batching))
    world.ask(6, "s", "a")
    world.act()
    world.ask(6, "", "b")
    world.ask(6, "e", "c")
    iterate(world, {"a": 2, "b": 1})
    assert world.names == [["a"], ["a"], ["a"], ["b"], ["b"], ["c"]]


@BOTH
def test_a_long_iteration_is_not_idle(batching):
    world = World.of(make_plan(batching, 1))
    anonymous = world.ask(name="a")
    world.act()
    world.now = 10.0
    world.act()
    world.settle(rescheduled=[anonymous])
    world.ask(7, "s", "b")
    world.act()
    world.now = 20.0
    iterate(world, {"a": 1, "b": 2})
    assert world.names == [["a"], ["a"], ["a"], ["b"], ["b"], ["b"]]
    assert world.rejected == []


@BOTH
def test_a_cancelled_request_does_not_come_back_and_takes_its_successors_along(batching):
    world = World.of(make_plan(batching, 1))
    job = world.ask(6, "s", "a")
    world.act()
    world.ask(6, "", "b")
    world.ask(7, "s", "next")
    world.core.cancel(job)
    world.settle(rescheduled=[job])
    iterate(world, {})
    assert world.rejections == ["a", "b"]
    assert {error.kind for _, error in world.rejected} == {ErrorKind.CANCELLED}
    assert world.names == [["a"], ["next"]]


def test_slots_that_become_free_together_are_given_away_by_their_numbers():
    """Slot 1 is free at once, slot 0 when it has said which requests go with the cancelled one."""
    world = World.of(make_plan(DIRECT, 2))
    given_up = world.ask(6, "s", "a")
    world.ask(7, "se", "b")
    world.act()
    world.ask(6, "", "c")
    world.ask(8, "s", "next")
    world.core.cancel(given_up)
    world.settle(rescheduled=[given_up])
    iterate(world, {})
    assert world.names == [["a", "b"], ["next"]]


def test_a_sequence_that_gets_a_slot_waits_its_turn_behind_those_that_were_due_before():
    """The slot's former sequence was due first, but its request was cancelled and took what was queued along."""
    world = World.of(make_plan(SequenceBatching(OldestStrategy(2), iterative=True), 2))
    given_up = world.ask(6, "s", "a")
    world.ask(7, "s", "c")
    world.act()
    for key, flags, name in ((6, "", "b"), (7, "", "d"), (8, "s", "next")):
        world.ask(key, flags, name)
    world.core.cancel(given_up)
    world.settle(rescheduled=[given_up])
    iterate(world, {})
    assert world.names == [["a", "c"], ["d", "next"]]


@BOTH
def test_a_request_that_came_back_can_be_cancelled_while_it_waits(batching):
    world = World.of(make_plan(batching, 1))
    job = world.ask(name="a")
    world.act()
    world.settle(rescheduled=[job], idle=False)
    assert world.core.queued == 1
    world.core.cancel(job)
    world.act()
    assert world.rejections == ["a"]
    world.core.instance_idle(0)
    world.ask(name="b")
    world.act()
    assert world.names == [["a"], ["b"]]


@BOTH
def test_stopping_lets_requests_come_back_until_they_are_done(batching):
    world = World.of(make_plan(batching))
    world.ask(name="a")
    world.act()
    world.core.stop()
    with pytest.raises(TriremeError, match="Server is stopping"):
        world.ask(name="b")
    iterate(world, {"a": 2})
    assert world.names == [["a"]] * 3
