"""Ten thousand sequences open at once over 64 slots: right sums, none starves, nothing is left in memory."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sequence_world import World, make_plan, real, value

from trireme.engine.config.sequence import DirectStrategy, ImplicitState, OldestStrategy, SequenceBatching
from trireme.engine.datatypes import INT32
from trireme.engine.job import Job
from trireme.engine.scheduling.sequence.backlog import Backlog
from trireme.engine.scheduling.sequence.initial_state import state_layout
from trireme.engine.scheduling.sequence.slot import Sequence
from trireme.engine.scheduling.sequence.state import SequenceState, keep_states
from trireme.engine.tensor import Tensor

SUM = ImplicitState("SUM_IN", "SUM_OUT", INT32, (1,))
BATCH_S = 0.001


def alive(*types: type) -> list[object]:
    """The objects of these types that there are."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) in types]


class Crowd:
    """Clients, each with a sequence of START, three more requests, END; each sends the next one when it is answered."""

    def __init__(self, world: World, count: int) -> None:
        self.world = world
        self.sums: dict[object, int] = {}
        for key in range(1, count + 1):
            world.ask(key, "s", "0")

    def answer(self, jobs: list[Job]) -> None:
        """A model that adds up the positions of the requests, and what the clients do then."""
        sums = np.concatenate([job.inputs["SUM_IN"].array + int(job.id) for job in jobs])
        keep_states(jobs, [Tensor("SUM_OUT", INT32, sums.shape, array=sums)], True)
        for job, total in zip(jobs, sums[:, 0].tolist(), strict=True):
            position = int(job.id)
            if position == 4:
                self.sums[value(job, "CORRID")] = total
            else:
                self.world.ask(job.request.correlation_id, "e" if position == 3 else "", str(position + 1))

    def live(self) -> None:
        world = self.world
        world.act()
        while any(world.running.values()):
            world.now += BATCH_S
            for instance in sorted(world.running):
                jobs = real(world.running[instance][0].jobs)
                world.settle(instance)
                self.answer(jobs)
                world.batches.clear()
            world.act()


@pytest.mark.parametrize(
    "strategy", [DirectStrategy(), OldestStrategy(max_candidate_sequences=64)], ids=["direct", "oldest"]
)
def test_ten_thousand_sequences_over_64_slots(strategy):
    """Most of them wait in the backlog for much longer than max_sequence_idle."""
    count = 10_000
    layout = state_layout((SUM,), True, Path("nowhere"))
    world = World.of(make_plan(SequenceBatching(strategy, 50_000), 64, layout, dims=(1,)))
    before = alive(Job, Sequence, SequenceState)
    crowd = Crowd(world, count)
    assert world.core.active == count
    crowd.live()
    assert crowd.sums == dict.fromkeys(range(1, count + 1), 0 + 1 + 2 + 3 + 4)
    assert (world.core.active, world.core.queued, world.rejected) == (0, 0, [])
    known = {id(each) for each in before}  # which other tests may have left
    assert Counter(type(each).__name__ for each in alive(Job, Sequence, SequenceState) if id(each) not in known) == {}


def test_deadlines_of_those_who_left_the_backlog_do_not_pile_up():
    """A thousand sequences, each with ever shorter limits, come and go while one stays."""
    backlog = Backlog()
    staying = Sequence(0, 0)
    backlog.add(staying)
    backlog.limit(staying, 1e9)
    for number in range(1, 1001):
        sequence = Sequence(number, number)
        backlog.add(sequence)
        for deadline_s in (3e9, 2e9, 1e9 + 1):
            backlog.limit(sequence, deadline_s)
        backlog.remove(sequence)
    assert len(backlog._deadlines) <= 70
    assert backlog.closest_deadline_s == 1e9
    assert backlog.expire(2e9) == [staying]
    assert backlog.closest_deadline_s is None
