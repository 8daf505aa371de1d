"""The ensemble actor: carries out what the requests of one ensemble want of its members (docs/reference/ensembles.md).

A shell around `engine.ensemble.EnsembleCore`, and to its model what a scheduler is to another: jobs come as the same
messages. Members are asked through their own doors, past the server-wide budget: the request to the ensemble has paid
for its steps, and a step that waited for room which only the end of its own request can make would wait for ever.

Rules:
 1. A member's answer is a message; the core is told, and asked what follows, in this actor's own turn. So a defect here
    costs the ensemble, not its member.
 2. A decoupled member is held back while its answers cannot go on: while what follows from them waits at a gate, and
    while the client of the ensemble does not take its answers.
 3. What waits at a gate may need the very instance that is held back: a model that is a member twice, or resources that
    two models share. So when nothing has come from the members of a run for `STUCK_S`, those that are held back because
    of a gate are let go. The gate's limit holds; only answers may pile up.
 4. An ensemble was planned for the configurations that its members had when it was loaded, so those very versions of
    them carry out its steps until its last request is answered, whatever is loaded or unloaded under their names
    meanwhile. When its members change the repository loads the ensemble again; the old one then drains and lets the old
    members go.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ..engine.clock import Clock
from ..engine.config.ensemble import ensemble_scheduling
from ..engine.config.model import ModelConfig
from ..engine.ensemble import (
    CancelSteps,
    EnsembleCore,
    EnsemblePlan,
    EnsembleRun,
    Fail,
    Respond,
    StepCall,
    Submit,
    record_failure,
    record_success,
)
from ..engine.errors import RefusalReason, TriremeError, UnavailableError
from ..engine.instances.answer_window import AnswerWindow
from ..engine.job import ExecutionBatch, Job, Outcome, Phase
from ..engine.logs.request_lines import about
from ..engine.metrics.refusals import count_refusal
from ..engine.metrics.statistics import ModelStatistics
from ..engine.repository.catalog import ModelVersion
from ..engine.request import InferenceRequest
from ..engine.tracing.tracer import TracedReply
from ..engine.validation import RequestValidator
from .actor import Mailbox, Turn
from .door import Door
from .instance import ReadinessCheck
from .messages import Cancel, DoorMessage, Hold, LetGo, Stop
from .reply import ANSWER_WINDOW

logger = logging.getLogger("trireme.ensemble")

STUCK_S = 300.0
"""See rule 3; as long as Triton waits."""


class Member(ModelVersion, Protocol):
    """What ensembles use of a model (`model.Model`, which says more)."""

    labels: Mapping[str, tuple[str, ...]]

    @property
    def serving(self) -> bool: ...
    @property
    def trouble(self) -> str: ...
    @property
    def has_sequences(self) -> bool: ...
    @property
    def scheduler(self) -> Door[Any]: ...
    @property
    def validator(self) -> RequestValidator: ...

    def own_checks(self) -> list[ReadinessCheck]: ...
    def fingerprint(self) -> str: ...
    def tell(self, message: Hold | LetGo) -> None: ...


FindModel = Callable[[str, int], Member]
FindContinuing = Callable[[Sequence[str], InferenceRequest, int], Member | None]


class Members:
    """Holds the model of each step; raises `TriremeError` if one is not there.

    Args:
        config: the ensemble's.
        find: the ready version of a model that answers.
        continuing: of the models with these ids, the version that has the sequence which a request continues.

    Attributes:
        steps: the models, in the order of the steps; one that has several steps is there several times.
    """

    def __init__(self, config: ModelConfig, find: FindModel, continuing: FindContinuing) -> None:
        self._find = find
        self._continuing = continuing
        names = [(step.model_name, step.model_version) for step in ensemble_scheduling(config).steps]
        self.steps = [find(*name) for name in names]
        self._by_name = dict(zip(names, self.steps, strict=True))
        for model in self._by_name.values():
            model.tell(Hold())

    def find(self, request: InferenceRequest) -> Member:
        """The model that answers the request of a step.

        Raises:
            TriremeError: it serves no more, and nor does another one of its name.
        """
        model = self._by_name[request.model_name, request.model_version]
        if not model.serving:
            model = self._find(request.model_name, request.model_version)
        if model.stateful and not model.continues(request):
            return self._continuing([model.id], request, request.model_version) or model
        return model

    @property
    def trouble(self) -> str:
        """What is wrong with one of them; empty if nothing is."""
        for model in self.steps:
            if not model.serving:
                return f"its member '{model.name}' version {model.version} is not serving"
            if model.trouble:
                return f"its member '{model.name}' version {model.version}: {model.trouble}"
        return "" if self.steps else "its members are not there"

    def own_checks(self) -> list[ReadinessCheck]:
        """Of every one, once."""
        return [check for model in dict.fromkeys(self.steps) for check in model.own_checks()]

    def let_go(self) -> None:
        """The ensemble asks nothing more of them."""
        for model in self._by_name.values():
            model.tell(LetGo())
        self._by_name = {}
        self.steps = []


def refuse_recursion(request: InferenceRequest, model: Member) -> None:
    """Refuse a request that all instances of its model wait for, because they made it or what it was made for: it could
    never be executed, whether a model makes it or an ensemble that a model asks. To be called for requests with
    `callers`.

    Args:
        model: which is to execute the request.

    Raises:
        UnavailableError: none of its instances could.
    """
    waiting = {instance for caller, instance in request.callers if caller == (model.name, model.version)}
    if waiting and len(waiting) >= model.actor_statistics().instances:
        raise UnavailableError(
            f"all {len(waiting)} instances of model '{model.name}' wait for the answer to this very request, so that "
            "it could never be executed",
            refusal=RefusalReason.INVALID,
        )


FindMember = Callable[[InferenceRequest], Member]


@dataclass(slots=True, eq=False)
class StepAnswered:
    """To an ensemble: a member has answered."""

    step: _Step
    outcome: Outcome
    final: bool


@dataclass(slots=True, eq=False)
class RoomMade:
    """To an ensemble: a client takes answers again."""


class Ensemble(Door[DoorMessage | StepAnswered | RoomMade]):
    """One ensemble version at work.

    Args:
        plan: its graph.
        find: the model that answers the request of a step; raises `TriremeError` if there is none.
    """

    answer_window: ClassVar[int] = ANSWER_WINDOW
    stuck_s: ClassVar[float] = STUCK_S

    def __init__(
        self, plan: EnsemblePlan, find: FindMember, clock: Clock, turn: Turn, statistics: ModelStatistics
    ) -> None:
        super().__init__(plan.name, "ensemble", turn, statistics)
        self._core = EnsembleCore(plan)
        self._find = find
        self._clock = clock
        self._runs: dict[Job, EnsembleRun] = {}
        self._steps: dict[StepCall, _Step] = {}
        self._windowed: dict[StepCall, _Step] = {}  # those of them that rule 2 is for
        self._started_ns: dict[EnsembleRun, int] = {}
        self._moved_s: dict[EnsembleRun, float] = {}  # with a gate: when a member was heard last

    # What comes in.

    def receive(self, message: DoorMessage | StepAnswered | RoomMade) -> None:
        if isinstance(message, StepAnswered):
            self._tell(message.step, message.outcome, message.final)
        elif isinstance(message, Job):
            try:
                self.admit(message)
            except TriremeError as error:
                self.refuse(message, error)
        elif isinstance(message, Cancel):
            self.cancel(message.job)
        elif isinstance(message, Stop):
            self.stop()

    def admit(self, job: Job) -> None:
        job.enqueued_ns = job.enqueued_ns or self._clock.now_ns()
        self._runs[job] = self._core.start(job)
        self._inflight += 1
        job.accept()

    def cancel(self, job: Job) -> None:
        """The job's client gave up."""
        if not job.answered:
            job.cancelled = True
        run = self._runs.get(job)
        if run is not None:
            self._core.cancel(run)

    def stop(self) -> None:
        """Refuse new jobs, finish those that are there."""
        self._core.stop()

    def fail_held(self, error: TriremeError) -> None:
        for call in list(self._steps):
            self._cancel_step(call)
        for job in self._core.drop_all():
            self._end(job, error)

    def receive_last(self, message: DoorMessage | StepAnswered | RoomMade) -> None:
        """What members answer is not waited for any more."""

    # What goes out.

    def act(self) -> None:
        """Do what the core says until it has nothing more to say."""
        while (action := self._core.next_action()) is not None:
            match action:
                case Submit(call, _):
                    self._submit(call, action)
                case CancelSteps(calls):
                    for call in calls:
                        self._cancel_step(call)
                case Respond(run, response, final):
                    self._respond(run, response, final)
                case Fail(run, error):
                    self._end(run.job, error)
        self.deadline_s = math.inf
        for step in self._windowed.values():
            step.make_room()
            if self._moved_s and step.is_held_back:
                self._look_whether_stuck(step)
        self._notify_watchers()

    def _look_whether_stuck(self, step: _Step) -> None:
        """Rule 3."""
        run = step.call.run
        moved_s = self._moved_s.get(run)
        if moved_s is None or not self._core.is_congested(step.call):
            return  # its answers are on their way here, or wait for the client
        if self._clock.now_s() < moved_s + self.stuck_s:
            self.deadline_s = min(self.deadline_s, moved_s + self.stuck_s)
            return
        text = (
            "ensemble '%s': for %g s nothing has moved while '%s' was held back by max_inflight_requests; it may go on"
        )
        logger.error(text, self.name, self.stuck_s, step.call.step.model_name, extra=about(self.name, run.job.id))
        step.let_go()

    def _tell(self, step: _Step, outcome: Outcome, final: bool) -> None:
        if final:
            self._forget(step.call)
        if self._core.plan.max_inflight_requests and step.call.run.job in self._runs:
            self._moved_s[step.call.run] = self._clock.now_s()
        self._core.step_answered(step.call, outcome, final)

    # Members.

    def _submit(self, call: StepCall, action: Submit) -> None:
        request = action.request
        refused = self._statistics.refused
        try:
            model = self._find(request)
            refused = model.statistics.refused
            inputs, rows = model.validator.check(request)
            if request.callers:
                refuse_recursion(request, model)
            nbytes = sum(tensor.nbytes for tensor in inputs.values())
            step = _Step(self, call, call.step.decoupled)
            now_ns = self._clock.now_ns()
            step.job = Job(request, inputs, rows, model.name, model.version, step, now_ns, nbytes)
            step.job.window = step.window
            if call.run.job.request.trace is not None:
                request.trace = call.run.job.request.trace.step()
                TracedReply(request.trace, step.job, self._clock)
            step.door = model.scheduler.mailbox
            self._steps[call] = step
            if step.window is not None:
                self._windowed[call] = step
            step.door.send_nowait(step.job)
        except TriremeError as error:
            count_refusal(refused, error)
            self._forget(call)
            self._core.step_answered(call, error)

    def _forget(self, call: StepCall) -> None:
        self._steps.pop(call, None)
        self._windowed.pop(call, None)

    def _cancel_step(self, call: StepCall) -> None:
        step = self._steps.get(call)
        if step is not None and step.job is not None and step.door is not None:
            step.let_go()
            step.door.send_nowait(Cancel(step.job))

    def hear(self, step: _Step, outcome: Outcome, final: bool) -> None:
        """A member has answered."""
        if final and not isinstance(outcome, TriremeError) and step.job is not None and step.job.batch is not None:
            run = step.call.run
            marks = step.job.batch.marks_until(self._clock.now_ns())
            run.times.add(marks)
            started_ns = marks[Phase.COMPUTE_START]
            self._started_ns[run] = min(started_ns, self._started_ns.get(run, started_ns))
        self.mailbox.send_nowait(StepAnswered(step, outcome, final))

    def may_go_on(self, call: StepCall) -> bool:
        """Rule 2."""
        window = call.run.job.window
        return not ((window is not None and window.crowded) or self._core.is_congested(call))

    # Clients.

    def _respond(self, run: EnsembleRun, response: Outcome, final: bool) -> None:
        job = run.job
        if not job.responded and response is not None:
            job.responded = True
            self._statistics.record_first_response(job.received_ns, self._clock.now_ns())
        window = job.window
        if window is not None:
            window.on_room = self._room_made
            window.enter()
        if final:
            now_ns = self._clock.now_ns()
            started_ns = self._started_ns.get(run, now_ns)
            record_success(self._statistics, run.job, run.times, started_ns, now_ns, self._clock.wall_ms())
            if self._statistics.tap.watched:
                self._statistics.tap.note_request(job.received_ns, now_ns, None, started_ns, self.name)
            # If this is a step of another ensemble, that one asks for the times.
            ExecutionBatch((run.job,), self.name, self._clock).marks = run.times.marks(started_ns)
            self._let_go(run.job, response)
        else:
            run.job.reply.deliver(response, False)

    def _room_made(self) -> None:
        self.mailbox.send_nowait(RoomMade())

    def _end(self, job: Job, error: TriremeError) -> None:
        now_ns, run = self._clock.now_ns(), self._runs.get(job)
        record_failure(self._statistics, job, now_ns)
        if self._statistics.tap.watched:
            started_ns = -1 if run is None else self._started_ns.get(run, -1)
            self._statistics.tap.note_request(job.received_ns, now_ns, error, started_ns, self.name)
        self._let_go(job, error)

    def _let_go(self, job: Job, outcome: Outcome) -> None:
        job.answered = True
        run = self._runs.pop(job, None)
        if run is not None:
            self._started_ns.pop(run, None)
            self._moved_s.pop(run, None)
        if job.reply.deliver(outcome, True):
            job.batch = None
            self._inflight -= 1

    def __repr__(self) -> str:
        return f"<Ensemble {self.name}: {self._inflight} in flight>"


class _Step:
    """A request to a member, at whose door it was handed in, and the reply to it. `window` holds a decoupled member
    back."""

    __slots__ = ("_ensemble", "_taken", "call", "door", "job", "window")

    def __init__(self, ensemble: Ensemble, call: StepCall, many: bool) -> None:
        self._ensemble = ensemble
        self._taken = 0
        self.call = call
        self.job: Job | None = None
        self.door: Mailbox[Any] | None = None
        self.window = AnswerWindow(ensemble.answer_window, threading.get_ident()) if many else None

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        """See `engine.job.ReplyTarget`."""
        if self.job is None:
            return False
        self._taken += 1
        self._ensemble.hear(self, outcome, final)
        if final:
            self.job = None
            self.let_go()
        return final

    @property
    def is_held_back(self) -> bool:
        return self.window is not None and self.window.crowded

    def let_go(self) -> None:
        """Hold the member back no more."""
        if self.window is not None:
            self.window.open_up()

    def make_room(self) -> None:
        """Let the member answer more, if what it has answered could go on."""
        if self.window is not None and self._taken and self._ensemble.may_go_on(self.call):
            self.window.leave(self._taken)
            self._taken = 0
