"""Each invariant, on histories written by hand: what it lets pass, and what it complains of."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from trireme.simulations.events import (
    DONE,
    NEVER_NS,
    BatchSealed,
    CancelHeard,
    Event,
    ExecutionEnded,
    FaultStruck,
    InstanceAttached,
    InstanceDetached,
    ModelStateChanged,
    ReplyDelivered,
    RequestAnswered,
    RequestQueued,
    RequestRefused,
    RequestRejected,
    RequestSubmitted,
    SchedulerStopped,
    ServerStopping,
    StateUsed,
)
from trireme.simulations.graphs import Graphs
from trireme.simulations.history import Recorder
from trireme.simulations.invariants import Violation, WorldWatch
from trireme.simulations.invariants.state import WorldState
from trireme.simulations.plan import ModelPlan, Plan, PolicyPlan, ResourcePlan, SequencesPlan

PLAIN = ModelPlan("m", instances=1, max_batch_size=8)
DYNAMIC = ModelPlan("m", max_batch_size=8, dynamic=True)
PATIENT = ModelPlan("m", max_batch_size=8, dynamic=True, preferred=(4,), delay_us=100)
LEVELS = ModelPlan(
    "m", max_batch_size=8, dynamic=True, levels=2, default_level=2, policies=(PolicyPlan(2, delay=True, timeout_us=1),)
)
STATEFUL = ModelPlan("m", instances=2, max_batch_size=2, sequences=SequencesPlan())

UP = (
    ModelStateChanged(0, "m", 1, "LOADING"),
    InstanceAttached(0, "m", "m_0"),
    ModelStateChanged(0, "m", 1, "READY"),
)


class Tape:
    """Feeds events to all invariants, telling them of each instant that is over."""

    def __init__(self, model: ModelPlan, ready: Callable[[], bool] | None = None) -> None:
        self.now = 0
        state = WorldState([model.config()])
        recorder = Recorder(self)
        view = state.models["m"]

        def alive() -> bool:
            return view.ready and len(view.instances) == view.count

        self.watch = WorldWatch(
            state,
            recorder,
            lambda _name: (ready or alive)(),
            Graphs(Plan(1, (model,), (), 0)),
            max_inflight=5,
            demands={"m": {each.name: each.count for each in model.demands}},
            pools={"R": 3} if model.demands else {},
        )
        recorder.listen(state.handlers())
        self._record = recorder.record

    def now_ns(self) -> int:
        return self.now

    def play(self, events: Iterable[Event]) -> Violation | None:
        for event in events:
            if event.at_ns > self.now:
                self.watch.instant_over(self.now)
                self.now = event.at_ns
            self._record(event)
        self.watch.instant_over(self.now)
        return self.watch.violation


def asked(at_ns: int, request: int, rows: int = 1, level: int = 0, deadline_ns: int = NEVER_NS) -> list[Event]:
    return [
        RequestSubmitted(at_ns, request, "m", rows, level, 0),
        RequestQueued(at_ns, request, "m", rows, level, deadline_ns),
    ]


def told(at_ns: int, request: int, sequence: int, start: bool = False, end: bool = False) -> list[Event]:
    return [
        RequestSubmitted(at_ns, request, "m", 1, 0, 0, sequence, start, end),
        RequestQueued(at_ns, request, "m", 1, 0, NEVER_NS),
    ]


def refused(at_ns: int, request: int, error: str, model: str = "m", priority: int = 0) -> list[Event]:
    return [
        RequestSubmitted(at_ns, request, model, 1, priority, 0),
        RequestRefused(at_ns, request, error),
        RequestAnswered(at_ns, request, error),
    ]


def sealed(
    at_ns: int, batch: int, *requests: int, rows: int = 0, reason: str = "instance idle", to: str = "m_0"
) -> BatchSealed:
    return BatchSealed(at_ns, batch, "m", 1, to, reason, requests, rows or len(requests))


def done(at_ns: int, batch: int, *requests: int) -> list[Event]:
    return [
        ExecutionEnded(at_ns, batch, DONE),
        *(ReplyDelivered(at_ns, request, "", True, False) for request in requests),
    ]


SHARING = ModelPlan("m", instances=2, dynamic=True, demands=(ResourcePlan("R", 2),))

GOOD: dict[str, tuple[ModelPlan, list[Event]]] = {
    "one by one": (
        PLAIN,
        [
            *asked(1, 1),
            sealed(1, 1, 1, reason="no batching"),
            *asked(2, 2),
            *done(5, 1, 1),
            sealed(5, 2, 2, reason="no batching"),
        ],
    ),
    "a batch of all that waits": (DYNAMIC, [*asked(1, 1), *asked(1, 2), sealed(1, 1, 1, 2), *done(5, 1, 1, 2)]),
    "a delay that is waited for": (
        PATIENT,
        [*asked(1, 1), *asked(50_000, 2), sealed(100_001, 1, 1, 2, reason="delay over"), *done(200_000, 1, 1, 2)],
    ),
    "a level before another": (
        LEVELS,
        [*asked(1, 1, level=2), *asked(1, 2, level=1), sealed(1, 1, 2, 1), *done(3, 1, 2, 1)],
    ),
    "one whose time is over, behind": (
        LEVELS,
        [
            *asked(1, 9, level=1),
            sealed(1, 1, 9),
            *asked(2, 1, level=2, deadline_ns=3),
            *asked(4, 2, level=2, deadline_ns=99),
            *done(5, 1, 9),
            sealed(5, 2, 2, 1),
        ],
    ),
    "one that gave up": (
        DYNAMIC,
        [
            *asked(1, 1),
            sealed(1, 1, 1),
            *asked(2, 2),
            CancelHeard(3, 2, False),
            RequestRejected(3, 2, "Cancelled"),
            ReplyDelivered(3, 2, "Cancelled", True, False),
            *done(5, 1, 1),
        ],
    ),
    "an end while stopping": (
        DYNAMIC,
        [
            *asked(1, 1),
            sealed(1, 1, 1),
            *asked(2, 2),
            SchedulerStopped(3, "m"),
            *done(5, 1, 1),
            sealed(5, 2, 2, reason="drain"),
        ],
    ),
    "one after the other with a resource": (
        SHARING,
        [
            InstanceAttached(0, "m", "m_1"),
            *asked(1, 1),
            sealed(1, 1, 1),
            *asked(1, 2),
            *done(9, 1, 1),
            sealed(9, 2, 2, to="m_1"),
        ],
    ),
    "a sequence on its instance, then another life of it": (
        STATEFUL,
        [
            InstanceAttached(0, "m", "m_1"),
            *told(1, 1, 7, start=True),
            sealed(1, 1, 1),
            StateUsed(2, 1, 0, 5),
            *done(2, 1, 1),
            *told(3, 2, 7, end=True),
            sealed(3, 2, 2),
            StateUsed(4, 2, 5, 8),
            *done(4, 2, 2),
            *told(5, 3, 7, start=True),
            sealed(5, 3, 0, 3, to="m_1"),
            StateUsed(6, 3, 0, 1),
        ],
    ),
}

LIMITS = "batches are within their limits"

BAD: dict[str, tuple[str, ModelPlan, list[Event]]] = {
    "too many rows": (
        LIMITS,
        DYNAMIC,
        [*asked(1, 1, 5), *asked(1, 2, 5), sealed(1, 1, 1, 2, rows=10)],
    ),
    "two without batching": (
        LIMITS,
        PLAIN,
        [*asked(1, 1), *asked(1, 2), sealed(1, 1, 1, 2, reason="no batching")],
    ),
    "no batch at all": (LIMITS, DYNAMIC, [*asked(1, 1), sealed(1, 1)]),
    "not full": (LIMITS, DYNAMIC, [*asked(1, 1), sealed(1, 1, 1, reason="full")]),
    "not preferred": (
        LIMITS,
        PATIENT,
        [*asked(1, 1), sealed(1, 1, 1, reason="preferred size")],
    ),
    "delay not over": (
        LIMITS,
        PATIENT,
        [*asked(1, 1), sealed(99_000, 1, 1, reason="delay over")],
    ),
    "no drain": (LIMITS, DYNAMIC, [*asked(1, 1), sealed(1, 1, 1, reason="drain")]),
    "overtaken": ("no request is overtaken", DYNAMIC, [*asked(1, 1), *asked(1, 2), sealed(1, 1, 2)]),
    "priority inverted": (
        "no request is overtaken",
        LEVELS,
        [*asked(1, 1, level=2), *asked(1, 2, level=1), sealed(1, 1, 1)],
    ),
    "executed though given up": (
        "no request is overtaken",
        DYNAMIC,
        [*asked(1, 1), CancelHeard(1, 1, False), sealed(1, 1, 1)],
    ),
    "more than a level may hold": (
        "queue limits and deadlines hold",
        ModelPlan("m", dynamic=True, policies=(PolicyPlan(max_queue_size=1),)),
        [*asked(1, 1), *asked(1, 2)],
    ),
    "refused with room left": (
        "queue limits and deadlines hold",
        ModelPlan("m", dynamic=True, policies=(PolicyPlan(max_queue_size=1),)),
        refused(1, 1, "Exceeds maximum queue size"),
    ),
    "rejected too early": (
        "queue limits and deadlines hold",
        ModelPlan("m", dynamic=True, policies=(PolicyPlan(timeout_us=9),)),
        [
            *asked(1, 9),
            sealed(1, 1, 9),
            *asked(1, 1, deadline_ns=9_000),
            RequestRejected(2, 1, "Request timeout expired"),
        ],
    ),
    "not rejected": (
        "queue limits and deadlines hold",
        ModelPlan("m", dynamic=True, policies=(PolicyPlan(timeout_us=9),)),
        [*asked(1, 9), sealed(1, 1, 9), *asked(1, 1, deadline_ns=9_000), ServerStopping(20_000, 5)],
    ),
    "rejected, not let wait": (
        "queue limits and deadlines hold",
        LEVELS,
        [
            *asked(1, 9, level=1),
            sealed(1, 1, 9),
            *asked(1, 1, level=2, deadline_ns=2),
            RequestRejected(2, 1, "Request timeout expired"),
        ],
    ),
    "idle beside work": ("no instance is idle while work is due", DYNAMIC, asked(1, 1)),
    "idle after the delay": (
        "no instance is idle while work is due",
        PATIENT,
        [*asked(1, 1), ServerStopping(200_000, 5)],
    ),
    "idle at a preferred size": (
        "no instance is idle while work is due",
        PATIENT,
        [*asked(1, 1, 2), *asked(1, 2, 2)],
    ),
    "two batches at once": (
        "an instance has one batch at a time",
        PLAIN,
        [*asked(1, 1), sealed(1, 1, 1, reason="no batching"), *asked(1, 2), sealed(1, 2, 2, reason="no batching")],
    ),
    "to nobody": (
        "an instance has one batch at a time",
        PLAIN,
        [*asked(1, 1), sealed(1, 1, 1, reason="no batching", to="m_9")],
    ),
    "answered twice": (
        "each accepted request gets exactly one final reply",
        DYNAMIC,
        [*asked(1, 1), sealed(1, 1, 1), *done(2, 1, 1), ReplyDelivered(2, 1, "", True, True)],
    ),
    "executed after its answer": (
        "each accepted request gets exactly one final reply",
        DYNAMIC,
        [*asked(1, 1), ReplyDelivered(1, 1, "", True, False), sealed(1, 1, 1)],
    ),
    "told what was not given": (
        "each accepted request gets exactly one final reply",
        DYNAMIC,
        [*asked(1, 1), sealed(1, 1, 1), *done(2, 1, 1), RequestAnswered(2, 1, "sorry")],
    ),
    "over the budget": (
        "each accepted request gets exactly one final reply",
        DYNAMIC,
        [event for request in range(1, 7) for event in asked(1, request)],
    ),
    "answered out of order": (
        "answers leave in order where that was asked for",
        ModelPlan("m", dynamic=True, preserve_ordering=True),
        [*asked(1, 1), *asked(1, 2), sealed(1, 1, 1, 2), ReplyDelivered(2, 2, "", True, False)],
    ),
    "unknown though there": (
        "refusals say what is true",
        DYNAMIC,
        refused(1, 1, "Request for unknown model: 'm' is not found"),
    ),
    "stopping though not": (
        "refusals say what is true",
        DYNAMIC,
        refused(1, 1, "Server is stopping, scheduler for model has stopped accepting new inference requests"),
    ),
    "answered without being queued": ("refusals say what is true", DYNAMIC, refused(1, 1, "")),
    "died of a defect": (
        "nothing dies but of faults",
        DYNAMIC,
        [*asked(1, 1), sealed(1, 1, 1), ExecutionEnded(2, 1, "AssertionError")],
    ),
    "gone without a reason": ("nothing dies but of faults", DYNAMIC, [InstanceDetached(1, "m", "m_0")]),
    "given up too early": (
        "nothing dies but of faults",
        DYNAMIC,
        [FaultStruck(1, "start fails", "m", 0), ModelStateChanged(1, "m", 1, "UNAVAILABLE")],
    ),
    "more of a resource than there is": (
        "no resource is oversubscribed",
        SHARING,
        [InstanceAttached(0, "m", "m_1"), *asked(1, 1), sealed(1, 1, 1), *asked(1, 2), sealed(1, 2, 2, to="m_1")],
    ),
    "a sequence out of order": (
        "sequences are executed in order on one instance",
        STATEFUL,
        [InstanceAttached(0, "m", "m_1"), *told(1, 1, 7, start=True), *told(1, 2, 7), sealed(1, 1, 2)],
    ),
    "a sequence on two instances": (
        "sequences are executed in order on one instance",
        STATEFUL,
        [
            InstanceAttached(0, "m", "m_1"),
            *told(1, 1, 7, start=True),
            *told(1, 2, 7),
            sealed(1, 1, 1),
            sealed(1, 2, 2, to="m_1"),
        ],
    ),
    "two of a sequence in a batch": (
        "sequences are executed in order on one instance",
        STATEFUL,
        [InstanceAttached(0, "m", "m_1"), *told(1, 1, 7, start=True), *told(1, 2, 7), sealed(1, 1, 1, 2)],
    ),
    "a slot with two owners": (
        "sequences are executed in order on one instance",
        STATEFUL,
        [
            InstanceAttached(0, "m", "m_1"),
            *told(1, 1, 7, start=True),
            *told(1, 2, 7),
            *told(1, 3, 8, start=True),
            sealed(1, 1, 1),
            *done(2, 1, 1),
            sealed(2, 2, 3),
            *done(3, 2, 3),
            sealed(3, 3, 2),
        ],
    ),
    "a state of another sequence": (
        "a sequence's state is its own",
        STATEFUL,
        [
            *told(1, 1, 7, start=True),
            sealed(1, 1, 1),
            StateUsed(2, 1, 0, 5),
            *done(2, 1, 1),
            *told(3, 2, 8, start=True),
            sealed(3, 2, 0, 2),
            StateUsed(4, 2, 5, 6),
        ],
    ),
    "a state that is forgotten": (
        "a sequence's state is its own",
        STATEFUL,
        [
            *told(1, 1, 7, start=True),
            *told(1, 2, 7),
            sealed(1, 1, 1),
            StateUsed(2, 1, 0, 5),
            *done(2, 1, 1),
            sealed(3, 2, 2),
            StateUsed(4, 2, 0, 6),
        ],
    ),
    "a sequence that never began": (
        "sequences are executed in order on one instance",
        STATEFUL,
        [InstanceAttached(0, "m", "m_1"), *told(1, 1, 7)],
    ),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_good_history_passes(case: str) -> None:
    model, events = GOOD[case]
    assert Tape(model).play([*UP, *events]) is None


@pytest.mark.parametrize("case", BAD)
def test_a_bad_history_is_complained_of(case: str) -> None:
    invariant, model, events = BAD[case]
    violation = Tape(model).play([*UP, *events])
    assert violation is not None
    assert violation.invariant == invariant, violation.text


def test_what_was_never_answered_is_missed_at_the_end() -> None:
    tape = Tape(DYNAMIC)
    assert tape.play([*UP, *asked(1, 1), sealed(1, 1, 1), ExecutionEnded(2, 1, DONE)]) is None
    tape.watch.finish()
    assert tape.watch.violation == Violation(
        "each accepted request gets exactly one final reply", "never answered: requests [1]"
    )


@pytest.mark.parametrize("answer", [True, False])
def test_readiness_is_compared_with_what_is_alive(answer: bool) -> None:
    """Alive and ready, then dead: a server that always says the same is wrong once."""
    tape = Tape(PLAIN, lambda: answer)
    dead = [*asked(1, 1), sealed(1, 1, 1, reason="no batching"), ExecutionEnded(2, 1, "InstanceCrash")]
    reply = ReplyDelivered(2, 1, "crashed", True, False)
    violation = tape.play([*UP, *dead, reply, InstanceDetached(2, "m", "m_0")])
    assert violation is not None
    assert violation.invariant == "a model is ready if and only if all of it is alive"
    assert f"at {2 if answer else 0} ns" in violation.text


def test_the_first_complaint_counts() -> None:
    tape = Tape(DYNAMIC)
    first = tape.play([*UP, *asked(1, 1), *asked(1, 2), sealed(1, 1, 2)])
    assert tape.play([sealed(2, 2, 1, rows=99)]) == first
