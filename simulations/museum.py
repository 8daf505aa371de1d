"""A museum of scheduler bugs that servers have had: one small plan each, with everything checked.

An exhibit says what once went wrong, in which situation; which rare things must happen for the situation to be there;
and by which planted bug it can be brought back, so that a test can see that it would be noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .plan import (
    Change,
    ChangePlan,
    Fault,
    Manner,
    ModelPlan,
    Plan,
    PolicyPlan,
    RequestPlan,
    ResourcePlan,
    SequencesPlan,
    StepPlan,
)

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A bug that should not come back.

    Attributes:
        story: what went wrong.
        reached: what must be counted (see `coverage`) when the plan is played.
        bug: the name, in `planted.PLANTED`, under which it comes back.
    """

    story: str
    plan: Plan
    reached: tuple[str, ...]
    bug: str


def _stream(model: str, first: int, count: int, every_ns: int) -> tuple[RequestPlan, ...]:
    """Requests one after the other."""
    return tuple(RequestPlan(first + index, model, (index + 1) * every_ns) for index in range(count))


UNKNOWN_MODEL = Exhibit(
    "A server that was told to stop unloaded its idle models at once and answered requests for them with 'unknown "
    "model', as if they had never been there. Clients gave up on the model instead of asking another server.",
    Plan(
        1,
        (ModelPlan("busy", fixed_ns=80 * MS), ModelPlan("idle")),
        (*_stream("busy", 1, 30, 7 * MS), *_stream("idle", 31, 30, 11 * MS)),
        calm_ns=0,
        stop_ns=150 * MS,
    ),
    ("refused: stopping", "stopped with work in flight"),
    "unknown-while-stopping",
)

HEALTHY_CORPSE = Exhibit(
    "An instance hung and was lost, and the server went on saying that the model was ready: readiness looked at the "
    "model, not at what executes it. The load balancer kept sending.",
    Plan(
        1,
        (ModelPlan("m", instances=2, failing_starts=(3, 4)),),
        tuple(
            RequestPlan(number, "m", number * 9 * MS, fault=Fault.HANG if number == 4 else Fault.NONE)
            for number in range(1, 100)
        ),
        calm_ns=2_000 * MS,
        hang_limit_s=0.05,
    ),
    ("fault: instance hangs", "fault: start fails", "an instance restarted"),
    "healthy-corpse",
)

HELD_FOR_EVER = Exhibit(
    "Answers left in order of arrival. A client gave up while its request was queued; the request kept its place in "
    "the order, and every later answer was held behind it for ever.",
    Plan(
        1,
        (ModelPlan("m", instances=2, dynamic=True, max_batch_size=2, preserve_ordering=True),),
        (
            RequestPlan(1, "m", MS, extra_ns=15 * MS),
            *(
                RequestPlan(number, "m", number * MS, give_up_ns=3 * MS if number in (7, 9) else 0)
                for number in range(2, 16)
            ),
        ),
        calm_ns=0,
    ),
    ("rejected: cancelled", "an answer waited for its turn"),
    "held-for-ever",
)

REFUSED_IN_ONE_BREATH = Exhibit(
    "A burst reached an idle server, which refused part of it as 'queue full': the queue's limit was looked at before "
    "the idle instance had been given what it could take.",
    Plan(
        1,
        (ModelPlan("m", dynamic=True, policies=(PolicyPlan(max_queue_size=2),)),),
        tuple(RequestPlan(number, "m", 5 * MS) for number in range(1, 7)),
        calm_ns=0,
    ),
    ("refused: queue full", "sealed: instance idle"),
    "refused-in-one-breath",
)

LOST_WITH_ITS_NEIGHBOUR = Exhibit(
    "A client vanished while its batch was executed, and a request beside it in the batch never got its answer.",
    Plan(
        1,
        (ModelPlan("m", dynamic=True, delay_us=5_000),),
        (
            RequestPlan(1, "m", MS),
            RequestPlan(2, "m", 2 * MS, give_up_ns=8 * MS),
            RequestPlan(3, "m", 3 * MS, manner=Manner.WAITS),
        ),
        calm_ns=0,
    ),
    ("cancelled in execution", "sealed: delay over"),
    "lost-reply",
)


def _sequence(number: int, first: int, begin_ns: int, every_ns: int, length: int) -> tuple[RequestPlan, ...]:
    """The requests of a sequence, each some time after the answer to the one before."""
    return tuple(
        RequestPlan(
            first + turn,
            "m",
            every_ns if turn else begin_ns,
            after=first + turn - 1 if turn else 0,
            sequence=number,
            start=turn == 0,
            end=turn == length - 1,
        )
        for turn in range(length)
    )


SLOT_RELEASED_TWICE = Exhibit(
    "The slot of a sequence was given back when its END was executed, and once more when its idle time was over. Two "
    "sequences got it after that, and each went on with the state of the other.",
    Plan(
        1,
        (ModelPlan("m", max_batch_size=3, fixed_ns=5 * MS, sequences=SequencesPlan(idle_us=100_000, sums=True)),),
        tuple(
            request for number in range(1, 9) for request in _sequence(number, number * 10, number * 4 * MS, 9 * MS, 4)
        ),
        calm_ns=0,
    ),
    ("a batch with padding",),
    "slot-released-twice",
)

REAPER_NEVER_RESTS = Exhibit(
    "A reaper ended sequences that had been silent for too long. When the last one was gone it found nothing to wait "
    "for, and looked again at once, for ever; the server did nothing else.",
    Plan(
        1,
        (ModelPlan("m", sequences=SequencesPlan(idle_us=20_000)),),
        (
            RequestPlan(1, "m", MS, sequence=7, start=True),
            RequestPlan(2, "m", 200 * MS, sequence=7),
            RequestPlan(3, "m", 300 * MS, sequence=7, start=True, end=True),
        ),
        calm_ns=0,
    ),
    ("refused: no START",),
    "reaper-never-rests",
)

BLOCKED_BY_THE_DEAD = Exhibit(
    "Instances shared a resource. One of them died while it held it, and the resource was gone with it: what came "
    "to the head of the line for it stayed there, and held up all behind it.",
    Plan(
        1,
        tuple(ModelPlan(name, demands=(ResourcePlan("R", 1),)) for name in ("a", "b")),
        tuple(
            RequestPlan(number, "ab"[number % 2], number * 4 * MS, fault=Fault.CRASH if number == 3 else Fault.NONE)
            for number in range(1, 12)
        ),
        calm_ns=500 * MS,
        resources=(ResourcePlan("R", 1),),
    ),
    ("fault: instance crashes", "an instance restarted"),
    "resource-dies-with-its-holder",
)

BLOCKED_BY_THE_IDLE = Exhibit(
    "An instance stood first in the line for a resource that it needed all of. Its request expired; the instance "
    "stayed where it was, without anything to do, and no instance behind it got the part that was free.",
    Plan(
        1,
        (
            ModelPlan("small", instances=2, demands=(ResourcePlan("R", 1),)),
            ModelPlan("all", dynamic=True, policies=(PolicyPlan(timeout_us=5_000),), demands=(ResourcePlan("R", 2),)),
        ),
        (
            RequestPlan(1, "small", MS, extra_ns=80 * MS),
            RequestPlan(2, "all", 2 * MS),
            RequestPlan(3, "small", 20 * MS),
        ),
        calm_ns=0,
        resources=(ResourcePlan("R", 2),),
    ),
    ("rejected: expired",),
    "stays-in-line",
)

STUCK_BY_A_LATE_FAILURE = Exhibit(
    "Two steps of an ensemble were carried out side by side, and both failed. With the first failure the ensemble had "
    "stopped listening, so the second one went unheard: the request waited for it for ever.",
    Plan(
        1,
        (
            ModelPlan("quick", fixed_ns=5 * MS),
            ModelPlan("slow", fixed_ns=20 * MS, dynamic=True),
            ModelPlan("both", inputs=2),
            ModelPlan("e", steps=(StepPlan("quick"), StepPlan("slow"), StepPlan("both", (1, 2)))),
        ),
        (
            RequestPlan(1, "e", 10 * MS, fault=Fault.RAISE),
            RequestPlan(2, "slow", 10 * MS, fault=Fault.CRASH),
            RequestPlan(3, "e", 400 * MS),
        ),
        calm_ns=600 * MS,
    ),
    ("a step failed after another one", "an ensemble answered"),
    "late-failure",
)

STATE_OF_ALL = Exhibit(
    "The state of a sequence was written where it was found. A sequence that had just begun had found what all begin "
    "with; so every later one began with the sum of those before it.",
    Plan(
        1,
        (ModelPlan("m", fixed_ns=5 * MS, sequences=SequencesPlan(sums=True)),),
        (*_sequence(1, 10, MS, 2 * MS, 3), *_sequence(2, 20, 60 * MS, 2 * MS, 3)),
        calm_ns=0,
    ),
    ("a state kept", "a state found"),
    "state-written-in-place",
)

HELD_BY_ITS_OWN_ORDER = Exhibit(
    "A model that answers any number of times was held back while its answers waited for a client. Answers also left "
    "in order of arrival; so those of the second request in a batch waited for the first one's last, the model waited "
    "until a client took them, and never got to the first one's last.",
    Plan(
        1,
        (ModelPlan("m", max_batch_size=2, dynamic=True, delay_us=5_000, decoupled=True, preserve_ordering=True),),
        (RequestPlan(1, "m", 0, answers=2, answer_ns=8 * MS), RequestPlan(2, "m", MS, answers=9, answer_ns=MS)),
        calm_ns=0,
        window=4,
    ),
    ("two requests answered in turns",),
    "order-holds-the-model",
)

UNLOAD_DURING_LOAD = Exhibit(
    "A model was to be unloaded while it was still being loaded. The two did not wait for each other: one took away "
    "what the other was at work on, and the server fell over.",
    Plan(
        1,
        (ModelPlan("m", dynamic=True),),
        _stream("m", 1, 40, 5 * MS),
        calm_ns=0,
        changes=(
            ChangePlan(20 * MS, "m", Change.UNLOAD),
            ChangePlan(60 * MS, "m", Change.LOAD),
            ChangePlan(70 * MS, "m", Change.UNLOAD),
            ChangePlan(75 * MS, "m", Change.RELOAD),
        ),
        load_ns=4 * MS,
    ),
    ("a model loaded again", "a model unloaded", "a model changed twice at once", "refused: unloaded"),
    "locks-nothing",
)

LOST_WHILE_DRAINED = Exhibit(
    "A model was replaced, and the old one still had requests in its queue. Its last instance died; it was not "
    "started again, so no instance was left to execute them, and they were not answered either.",
    Plan(
        1,
        (ModelPlan("m"),),
        (*(RequestPlan(n, "m", n * MS, fault=Fault.CRASH if n == 1 else Fault.NONE) for n in range(1, 6)),),
        calm_ns=100 * MS,
        changes=(ChangePlan(8 * MS, "m"),),
    ),
    ("a model loaded again", "fault: instance crashes", "executed by what was replaced"),
    "drained-without-end",
)

WAITS_FOR_ITSELF = Exhibit(
    "An ensemble let a model work on the answers of that same model, one request at a time. The model was held back "
    "until its answers had been worked on, by the only instance, which was held back.",
    Plan(
        1,
        (
            ModelPlan("many", decoupled=True),
            ModelPlan("e", steps=(StepPlan("many"), StepPlan("many", (1,))), max_inflight=1),
        ),
        (RequestPlan(1, "e", MS, answers=5),),
        calm_ns=0,
        window=3,
    ),
    ("a member held back by its ensemble", "an ensemble answered again"),
    "never-let-go",
)


EXHIBITS: Mapping[str, Exhibit] = {
    "unknown-model-while-stopping": UNKNOWN_MODEL,
    "dead-instance-behind-readiness": HEALTHY_CORPSE,
    "slot-released-twice": SLOT_RELEASED_TWICE,
    "state-of-all-sequences": STATE_OF_ALL,
    "idle-reaper-loops-for-ever": REAPER_NEVER_RESTS,
    "rate-limiter-blocked-at-the-head": BLOCKED_BY_THE_IDLE,
    "resource-gone-with-its-holder": BLOCKED_BY_THE_DEAD,
    "ensemble-stuck-by-a-late-failure": STUCK_BY_A_LATE_FAILURE,
    "answers-held-behind-a-cancelled-one": HELD_FOR_EVER,
    "member-waits-for-itself": WAITS_FOR_ITSELF,
    "unload-during-load": UNLOAD_DURING_LOAD,
    "lost-while-drained": LOST_WHILE_DRAINED,
    "model-held-by-the-order-of-its-answers": HELD_BY_ITS_OWN_ORDER,
    "burst-refused-by-an-idle-server": REFUSED_IN_ONE_BREATH,
    "reply-lost-with-its-neighbour": LOST_WITH_ITS_NEIGHBOUR,
}
