"""Random histories: whatever happens, sequences stay in order and in place, and no job and no slot gets lost.

A ledger watches from outside. It knows which sequence a request belongs to, what became of it, and when the rules leave
the batcher no choice; it knows nothing of slots, backlog or strategies.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sequence_world import Executed, World, make_plan, real, value

from trireme.engine.config.sequence import DirectStrategy, OldestStrategy, SequenceBatching
from trireme.engine.errors import CancelledError, ErrorKind, FailureReason, InvalidArgumentError, UnavailableError
from trireme.engine.job import Job
from trireme.engine.scheduling.sequence.strategies import NullJob

TICK_S = 0.125  # exact in binary, so histories often meet a deadline to the instant
IDLE_S = 8 * TICK_S


@dataclass(eq=False)
class Story:
    """What the ledger knows of one sequence.

    Attributes:
        waiting: its requests that are queued.
        done: those that were executed or rejected.
        out: its request in execution.
        instance, row: where its first request was executed, which binds the others.
        over: it certainly got its last request.
        asked_s: when its last request came.
        limited: a request limited its time in the backlog.
        unsure: it may have ended by what happened to another one in the same place, or with its instance.
    """

    id: object
    waiting: list[Job] = field(default_factory=list)
    out: Job | None = None
    instance: int | None = None
    row: int | None = None
    over: bool = False
    asked_s: float = 0.0
    limited: bool = False
    unsure: bool = False


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Conflicts are warned of, and here there are many."""
    caplog.set_level(logging.ERROR, "trireme.sequence")


class Ledger(RuleBasedStateMachine):
    """Feeds a batcher with events, and keeps the books."""

    batching = SequenceBatching()
    exact_rows = True

    @initialize(
        rows=st.integers(1, 3),
        instances=st.integers(1, 2),
        credit=st.integers(1, 2),
        candidates=st.integers(0, 4),
        data=st.data(),
    )
    def begin(self, rows: int, instances: int, credit: int, candidates: int, data: st.DataObject) -> None:
        strategy = self.strategy(data, rows, candidates)
        batching = SequenceBatching(strategy, round(IDLE_S * 1e6), (), (), self.batching.iterative)
        self.rows = rows
        self.slots = candidates or rows if isinstance(strategy, OldestStrategy) else rows
        self.world = World.of(make_plan(batching, rows), instances)
        if credit == 2:
            self.world.core.instance_idle(0)
        self.alive = list(range(instances))
        self.born = instances
        self.known: dict[object, Story] = {}
        self.stories: dict[Job, Story] = {}
        self.seen = 0
        self.rejected = 0
        self.names = 0
        self.by_name: dict[str, Job] = {}
        self.stopped = False

    def strategy(self, data: st.DataObject, rows: int, candidates: int) -> DirectStrategy | OldestStrategy:
        raise AssertionError("each strategy has a test of its own")

    # Events

    @rule(
        key=st.integers(1, 6),
        flags=st.sampled_from(["", "", "s", "s", "e", "se"]),
        limit=st.sampled_from([0, 0, 2, 5]),
        length=st.sampled_from([1, 1, 1, 2]),
    )
    def ask(self, key: int, flags: str, limit: int, length: int) -> None:
        world, story = self.world, self.known.get(key)
        self.names += 1
        timeout_us = round(limit * TICK_S * 1e6)
        surely_known = story is not None and not (
            story.over or story.limited or story.unsure or world.now >= story.asked_s + IDLE_S
        )
        try:
            job = world.ask(key, flags, str(self.names), timeout_us=timeout_us, shape=(length,))
        except UnavailableError:
            assert self.stopped
            assert "s" in flags
            return
        except InvalidArgumentError:
            assert "s" not in flags
            assert not surely_known
            self.known.pop(key, None)
            return
        assert not (self.stopped and "s" in flags)
        assert "s" in flags or (story is not None and not story.over), "joined a sequence that ended"
        self.by_name[job.id] = job
        self.book(job, story, flags, surely_known)

    def book(self, job: Job, story: Story | None, flags: str, surely_known: bool) -> None:
        """Write a request into the books. A START begins a new story in any case; it may have to share the place."""
        if story is None or "s" in flags:
            follows = story if story is not None and surely_known else None
            story = Story(job.request.correlation_id)
            if follows is not None and follows.row is not None:
                story.instance, story.row = follows.instance, follows.row
            if follows is not None:
                follows.over = True
        story.waiting.append(job)
        story.asked_s = self.world.now
        story.limited = story.limited or bool(job.request.timeout_us)
        story.over = "e" in flags
        self.stories[job] = story
        self.known[story.id] = story

    @rule(count=st.integers(2, 6))
    def burst(self, count: int) -> None:
        """Several sequences at once."""
        for key in range(1, count + 1):
            self.ask(key, "s", 0, 1)

    @rule(key=st.integers(1, 6), flags=st.lists(st.sampled_from(["", "", "s", "e"]), min_size=2, max_size=5))
    def chain(self, key: int, flags: list[str]) -> None:
        """Several requests of one sequence at once."""
        for flag in flags:
            self.ask(key, flag, 0, 1)

    @rule(key=st.sampled_from(["x", "y"]))
    def string_id(self, key: str) -> None:
        with pytest.raises(InvalidArgumentError, match="data-type is 'BYTES'"):
            self.world.ask(key, "s")

    @rule()
    def act(self) -> None:
        self.world.act()
        self.read_news()

    @rule(ticks=st.integers(1, 9))
    def wait(self, ticks: int) -> None:
        self.world.wait(ticks * TICK_S)
        self.read_news()

    @rule(number=st.integers(0, 3), again=st.lists(st.booleans(), min_size=4, max_size=4))
    @precondition(lambda self: any(self.world.running.values()))
    def settle(self, number: int, again: list[bool]) -> None:
        busy = sorted(instance for instance, batches in self.world.running.items() if batches)
        instance = busy[number % len(busy)]
        batch = self.world.running[instance][0]
        chosen: list[Job] = []
        if self.batching.iterative:
            chosen = [job for job, picked in zip(real(batch.jobs), again, strict=False) if picked]
        for job in real(batch.jobs):
            story = self.stories[job]
            assert story.out is job
            story.out = None
            if job in chosen:
                story.waiting.insert(0, job)
            elif self.batching.iterative:
                story.over = True
        self.world.settle(instance, chosen)

    @rule(number=st.integers(0, 40))
    @precondition(lambda self: self.stories)
    def cancel(self, number: int) -> None:
        job = list(self.stories)[-1 - number % len(self.stories)]
        story = self.stories[job]
        self.world.core.cancel(job)
        if job in story.waiting:
            story.over = True
            if story.id in self.known:
                self.known[story.id].unsure = True

    @rule(number=st.integers(0, 3))
    @precondition(lambda self: len(self.alive) > 0)
    def die(self, number: int) -> None:
        instance = self.alive.pop(number % len(self.alive))
        for batch in self.world.running.get(instance, []):
            for job in real(batch.jobs):
                self.stories[job].out = None
        self.world.die(instance)
        for story in self.known.values():
            if story.instance == instance:
                story.over = True
            story.unsure = True

    @rule(number=st.integers(0, 30))
    @precondition(lambda self: self.world.slots.alive)
    def slot_dies(self, number: int) -> None:
        self.world.slots.die(number, self.world.now)
        for story in self.known.values():
            story.unsure = True

    @rule()
    @precondition(lambda self: len(self.alive) < 2)
    def birth(self) -> None:
        self.world.core.instance_idle(self.born)
        self.alive.append(self.born)
        self.born += 1

    @rule()
    @precondition(lambda self: self.names > 8)
    def stop(self) -> None:
        self.world.core.stop()
        self.stopped = True

    # Books

    def read_news(self) -> None:
        for batch in self.world.batches[self.seen :]:
            self.check_batch(batch)
        self.seen = len(self.world.batches)
        for name, error in self.world.rejected[self.rejected :]:
            job = self.by_name[name]
            story = self.stories[job]
            story.waiting.remove(job)  # fails if it had left before
            story.over = True
            if error.kind is ErrorKind.CANCELLED:
                assert isinstance(error, CancelledError)
            elif error.reason is FailureReason.REJECTED:
                assert story.limited or story.instance is None, "time limits have no effect in a slot"
            else:
                assert error.reason is FailureReason.BACKEND
                assert "is lost" in error.message
        self.rejected = len(self.world.rejected)

    def check_batch(self, batch: Executed) -> None:
        assert batch.instance in self.alive
        assert 0 < len(batch.jobs) <= self.rows
        assert not isinstance(batch.jobs[-1], NullJob) or self.exact_rows
        assert len({job.inputs["IN"].shape for job in batch.jobs}) == 1
        for row, job in enumerate(batch.jobs):
            if isinstance(job, NullJob):
                assert self.exact_rows, "only the direct strategy pads"
                assert not value(job, "READY")
                continue
            story = self.stories[job]
            if self.exact_rows:
                assert len(self.world.running[batch.instance]) <= 1, "a row is the slot's only if batches take turns"
            assert story.waiting[0] is job, "out of order, or not waiting any more"
            assert story.out is None, "two requests of one sequence at a time"
            assert story.instance in (None, batch.instance), "moved to another instance"
            story.waiting.pop(0)
            story.out = job
            story.instance = batch.instance
            if self.exact_rows:
                assert story.row in (None, row), "moved to another row"
                story.row = row
            assert value(job, "START") == job.request.sequence_start
            assert value(job, "CORRID") == story.id

    @invariant()
    def what_is_queued_is_what_waits(self) -> None:
        if self.stories:
            waiting = sum(len(story.waiting) for story in set(self.stories.values()))
            assert self.world.core.queued == waiting

    def teardown(self) -> None:
        """Faults stop: everything queued is executed, every slot becomes free, and all of them serve again."""
        world = self.world
        self.read_news()
        if not self.alive:
            self.birth()
        for _ in range(2 * len(self.stories) + 2):  # idle sequences make room for the backlog, one after another
            world.wait(IDLE_S)
            self.read_news()
            while any(world.running.values()):
                self.settle(0, [False] * 4)
                world.act()
                self.read_news()
            if not world.core.queued and not world.core.active:
                break
        assert world.core.queued == 0
        assert not any(story.waiting or story.out for story in self.stories.values())
        assert world.core.active == 0
        if self.stopped:
            return
        total = self.slots * len(self.alive)
        for key in range(100, 100 + total + 1):
            world.ask(key, "s", "fresh")
        world.core.stop()  # no delays
        count = len(world.batches)
        world.act()
        while any(world.running.values()):
            for instance in sorted(world.running):
                if world.running[instance]:
                    world.settle(instance)
            world.act()
        executed = [job for batch in world.batches[count:] for job in real(batch.jobs)]
        if not self.batching.iterative:
            assert len(executed) == total, "a slot was lost, or given away twice"


class DirectLedger(Ledger):
    def strategy(self, data: st.DataObject, rows: int, candidates: int) -> DirectStrategy:
        return DirectStrategy(*data.draw(st.sampled_from([(0, 0.0), (250_000, 0.75), (500_000, 1.0)])))


class OldestLedger(Ledger):
    exact_rows = False

    def strategy(self, data: st.DataObject, rows: int, candidates: int) -> OldestStrategy:
        preferred = data.draw(st.sampled_from([(), (1,), (rows,)]))
        return OldestStrategy(candidates, preferred, data.draw(st.sampled_from([0, 250_000])))


class IterativeDirectLedger(DirectLedger):
    batching = SequenceBatching(iterative=True)


class IterativeOldestLedger(OldestLedger):
    batching = SequenceBatching(iterative=True)


FEW = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestDirect, TestOldest = DirectLedger.TestCase, OldestLedger.TestCase
TestIterativeDirect, TestIterativeOldest = IterativeDirectLedger.TestCase, IterativeOldestLedger.TestCase
TestDirect.settings = TestOldest.settings = TestIterativeDirect.settings = TestIterativeOldest.settings = FEW
