"""Random histories: the dynamic batcher keeps its promises, and does exactly what a naive reading of the rules does."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.engine.config.model import DynamicBatching, QueuePolicy, TimeoutAction
from trireme.engine.errors import CancelledError, ErrorKind, UnavailableError
from trireme.engine.job import Job
from trireme.engine.scheduling.core import Dispatch, Reject, Wait, WaitUntil
from trireme.engine.scheduling.formation import Compatibility
from trireme.engine.scheduling.queueing import DynamicBatcher

TICK_US = 125_000
TICK_S = TICK_US / 1_000_000  # exact in binary, so histories often meet a deadline to the instant

policies = st.builds(
    QueuePolicy,
    st.sampled_from(TimeoutAction),
    st.sampled_from((0, 0, 0, 3 * TICK_US, 20 * TICK_US)),
    st.booleans(),
    st.sampled_from((0, 0, 0, 0, 4)),
)


@st.composite
def configurations(draw: st.DrawFn) -> tuple[DynamicBatching, int]:
    """(dynamic_batching, max_batch_size), as validation would let them pass."""
    max_batch_size = draw(st.integers(0, 9))
    preferred = draw(st.sets(st.integers(1, max_batch_size), max_size=3)) if max_batch_size else set()
    levels = draw(st.sampled_from((0, 1, 3, 3)))
    return (
        DynamicBatching(
            preferred_batch_sizes=tuple(sorted(preferred)),
            max_queue_delay_us=draw(st.sampled_from((0, TICK_US, 4 * TICK_US))),
            priority_levels=levels,
            default_priority_level=draw(st.integers(1, levels)) if levels else 0,
            default_queue_policy=draw(policies),
            priority_queue_policy={1: draw(policies)} if levels and draw(st.booleans()) else {},
        ),
        max_batch_size,
    )


arrivals = st.tuples(
    st.just("arrive"),
    st.sampled_from((1, 1, 1, 2, 3, 10)),  # rows
    st.integers(0, 4),  # priority
    st.sampled_from((0, 0, TICK_US, 2 * TICK_US, 5 * TICK_US)),  # timeout
    st.sampled_from((1, 1, 1, 1, 1, 1, 2)),  # shape
)
events = st.one_of(
    arrivals,
    arrivals,
    arrivals,
    st.tuples(st.just("idle")),
    st.tuples(st.just("wait"), st.integers(1, 5)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("gone"), st.integers(0, 3)),
)
histories = st.lists(events, max_size=10) | st.lists(events, min_size=15, max_size=60)  # short ones, and eventful ones
endings = st.sampled_from(("stop", "drop_all", "go on"))


@dataclass
class Reference:
    """Everything a batcher should know, kept and searched without any cleverness."""

    batching: DynamicBatching
    max_batch_size: int
    fresh: list[Job] = field(default_factory=list)
    late: list[Job] = field(default_factory=list)  # expired under DELAY, in the order of their expiry
    out: list[tuple[Job, ErrorKind]] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    deadlines: dict[Job, float] = field(default_factory=dict)
    draining: bool = False

    def level(self, job: Job) -> int:
        priority, levels = job.request.priority, self.batching.priority_levels
        return self.batching.default_priority_level if priority == 0 or priority > levels else priority

    def accepts(self, job: Job) -> bool:
        limit = self.batching.policy(self.level(job)).max_queue_size
        peers = [other for other in self.fresh + self.late if self.level(other) == self.level(job)]
        return not self.draining and not (limit and len(peers) >= limit)

    def enqueue(self, job: Job, now: float) -> None:
        policy = self.batching.policy(self.level(job))
        timeout_us = policy.default_timeout_us
        if policy.allow_timeout_override and job.request.timeout_us:
            timeout_us = min(timeout_us, job.request.timeout_us)
        if timeout_us:
            self.deadlines[job] = now + timeout_us / 1_000_000
        self.fresh.append(job)

    def cancel(self, job: Job) -> None:
        for lane in (self.fresh, self.late):
            if job in lane:
                lane.remove(job)
                self.out.append((job, ErrorKind.CANCELLED))

    def expire(self, now: float) -> None:
        expired = [job for job in self.fresh if self.deadlines.get(job, now + 1) <= now]
        for job in sorted(expired, key=lambda job: (self.deadlines[job], job.arrival)):
            self.fresh.remove(job)
            if self.batching.policy(self.level(job)).timeout_action is TimeoutAction.DELAY:
                self.late.append(job)
            else:
                self.out.append((job, ErrorKind.UNAVAILABLE))

    def queue(self) -> list[Job]:
        """The jobs in the order of their execution (docs/reference/scheduling.md#queue-policies)."""
        levels = sorted({self.level(job) for job in self.fresh + self.late})
        return [job for level in levels for lane in (self.fresh, self.late) for job in lane if self.level(job) == level]

    def batch_or_wake(self, now: float) -> list[Job] | float:
        """docs/reference/scheduling.md#forming-a-batch, word by word: the batch to send, or until when to wait."""
        most = max(1, self.max_batch_size)
        preferred = set(self.batching.preferred_batch_sizes) or {most}
        delay_s = self.batching.max_queue_delay_us / 1_000_000
        size, pending, best, send_now = 0, list[Job](), None, False
        for job in self.queue():
            if pending:
                if size + job.rows > max(preferred) and best is None:
                    best = len(pending)
                if size + job.rows > most:
                    send_now = True
                    break
                if job.inputs["IN"].shape[1:] != pending[0].inputs["IN"].shape[1:]:
                    send_now = True
                    break
            pending.append(job)
            size += job.rows
            if size in preferred:
                best = len(pending)
        ripe_s = min(job.enqueued_s for job in pending) + delay_s
        delay_exceeded = delay_s != 0 and now >= ripe_s
        if best is not None and not delay_exceeded:
            return pending[:best]
        if send_now or size >= max(preferred) or delay_exceeded or delay_s == 0 or self.draining:
            return pending
        return ripe_s

    def next_action(self, now: float) -> Dispatch | Reject | WaitUntil | Wait:
        """The action expected; of a Reject only the job and the kind count, of a Dispatch not the reason."""
        self.expire(now)
        if self.out:
            job, kind = self.out.pop(0)
            return Reject(job, CancelledError("") if kind is ErrorKind.CANCELLED else UnavailableError(""))
        wakes = [self.deadlines[job] for job in self.fresh if job in self.deadlines]
        if self.idle and (self.fresh or self.late):
            batch = self.batch_or_wake(now)
            if isinstance(batch, list):
                self.fresh = [job for job in self.fresh if job not in batch]
                self.late = [job for job in self.late if job not in batch]
                return Dispatch(self.idle.pop(0), batch, None)  # pyright: ignore[reportArgumentType]
            wakes.append(batch)
        return WaitUntil(min(wakes)) if wakes else Wait()


class Driver:
    """Feeds a batcher and the reference with the same events, compares them, and keeps a ledger of its own."""

    def __init__(self, batching: DynamicBatching, max_batch_size: int) -> None:
        self.batching = batching
        self.max_batch_size = max_batch_size
        self.core = DynamicBatcher(batching, max_batch_size, Compatibility(("IN",)))
        self.reference = Reference(batching, max_batch_size)
        self.now = 0.0
        self.jobs: list[Job] = []
        self.waiting: list[Job] = []
        self.idle: list[int] = []
        self.instances = 0
        self.stopped = False

    def arrive(self, job: Job) -> None:
        accepted = self.reference.accepts(job)
        if not accepted:
            with pytest.raises(UnavailableError):
                self.core.enqueue(job, self.now)
            return
        self.core.enqueue(job, self.now)
        self.reference.enqueue(job, self.now)
        self.jobs.append(job)
        self.waiting.append(job)

    def make_idle(self) -> None:
        instance = self.instances % 4
        self.instances += 1
        for idle in (self.idle, self.reference.idle):
            idle.append(instance)
        self.core.instance_idle(instance)

    def gone(self, instance: int) -> None:
        self.core.instance_gone(instance)
        self.idle = [other for other in self.idle if other != instance]
        self.reference.idle = list(self.idle)

    def cancel(self, number: int) -> None:
        if number < len(self.jobs):
            self.core.cancel(self.jobs[number])
            self.reference.cancel(self.jobs[number])

    def settle(self) -> Wait | WaitUntil:
        """Take actions until there is none, checking each."""
        while True:
            action, expected = self.core.next_action(self.now), self.reference.next_action(self.now)
            assert type(action) is type(expected)
            if isinstance(action, Dispatch) and isinstance(expected, Dispatch):
                assert (action.instance, list(action.jobs)) == (expected.instance, list(expected.jobs))
                self.check_dispatch(action)
            elif isinstance(action, Reject) and isinstance(expected, Reject):
                assert action.job is expected.job
                assert action.error.kind is expected.error.kind
                self.check_reject(action)
            else:
                assert action == expected
                assert isinstance(action, (Wait, WaitUntil))
                self.check_rest(action)
                return action

    def check_dispatch(self, action: Dispatch) -> None:
        jobs = list(action.jobs)
        assert action.instance == self.idle.pop(0)
        assert jobs
        assert len(jobs) == 1 or sum(job.rows for job in jobs) <= max(1, self.max_batch_size)
        for job in jobs:
            self.waiting.remove(job)  # fails if it had left before
            assert not job.cancelled
            assert job.deadline_s is None or self.now < job.deadline_s
        assert [job.level for job in jobs] == sorted(job.level for job in jobs)
        for job in jobs:
            for other in self.waiting:
                assert other.level >= job.level or other.cancelled, "a higher level was passed over"
                overtaken = other.level == job.level and other.arrival < job.arrival
                expired = self.reference.deadlines.get(other, self.now + 1) <= self.now
                assert not overtaken or expired or other.cancelled, "an unexpired job was overtaken in its level"

    def check_reject(self, action: Reject) -> None:
        self.waiting.remove(action.job)
        expired = self.reference.deadlines.get(action.job, self.now + 1) <= self.now
        assert action.job.cancelled if isinstance(action.error, CancelledError) else expired

    def check_rest(self, action: Wait | WaitUntil) -> None:
        assert self.core.queued == len(self.waiting)
        assert self.core.next_action(self.now) == action, "asking again gives the same answer"
        self.reference.next_action(self.now)
        if self.idle and self.waiting:
            delay_s = self.batching.max_queue_delay_us / 1_000_000
            assert delay_s, "without a delay, an idle instance takes what is there"
            assert not self.stopped, "a stopped batcher waits for no delay"
            assert all(self.now < job.enqueued_s + delay_s for job in self.waiting)
        if isinstance(action, WaitUntil):
            assert action.when_s > self.now

    def wait(self, ticks: int) -> None:
        """Let time pass as an actor would: waking whenever the batcher asked for it."""
        until = self.now + ticks * TICK_S
        while True:
            action = self.settle()
            if not isinstance(action, WaitUntil) or action.when_s > until:
                break
            self.now = action.when_s
        self.now = until

    def finish(self) -> None:
        """Give instances until everything has left."""
        for _ in range(len(self.waiting) + 1):
            self.make_idle()
            self.wait(40)
        assert self.waiting == []
        assert self.core.queued == 0


@settings(max_examples=200, deadline=None)
@given(configuration=configurations(), history=histories, ending=endings)
def test_random_histories(make_job, configuration, history, ending):
    driver = Driver(*configuration)
    for event in history:
        match event:
            case ("arrive", rows, priority, timeout_us, shape):
                driver.arrive(make_job(rows=rows, priority=priority, timeout_us=timeout_us, shape=(shape,)))
            case ("idle",):
                driver.make_idle()
            case ("wait", ticks):
                driver.wait(ticks)
            case ("cancel", number):
                driver.cancel(number)
            case ("gone", instance):
                driver.gone(instance)
        driver.settle()
    if ending == "stop":
        driver.stopped = driver.reference.draining = True
        driver.core.stop()
        driver.settle()
    elif ending == "drop_all":
        assert driver.core.drop_all() == sorted(driver.waiting, key=lambda job: job.arrival)
        assert driver.core.queued == 0
        driver.waiting = []
        driver.reference.fresh, driver.reference.late, driver.reference.out = [], [], []
    driver.finish()


@settings(max_examples=60, deadline=None)
@given(configuration=configurations(), bursts=st.lists(st.lists(events, min_size=5, max_size=15), max_size=8))
def test_events_may_come_in_bursts(make_job, configuration, bursts):
    """The batcher need not be asked after every event: what counts is what it knows when it is asked."""
    driver = Driver(*configuration)
    for burst in bursts:
        for event in burst:
            match event:
                case ("arrive", rows, priority, timeout_us, shape):
                    driver.arrive(make_job(rows=rows, priority=priority, timeout_us=timeout_us, shape=(shape,)))
                case ("idle",):
                    driver.make_idle()
                case ("cancel", number):
                    driver.cancel(number)
                case ("wait", ticks):
                    driver.now += ticks * TICK_S
        driver.settle()
    driver.finish()
