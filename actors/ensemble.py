"""The ensemble actor: carries out what the requests of one ensemble want of its members (docs/reference/ensembles.md).

A shell around `engine.ensemble.EnsembleCore`, and to its model what a scheduler is to another: jobs come in through the
same door. Members are asked through their own doors, past the server-wide budget: the request to the ensemble has paid
for its steps, and a step that waited for room which only the end of its own request can make would wait for ever.

Rules:
 1. A member's answer leaves word; the core is told, and asked what follows, in this actor's own task (or in that of a
    front end that attends to what it has submitted). So a defect here costs the ensemble, not its member.
 2. A decoupled member is held back while its answers cannot go on: while what follows from them waits at a gate, and
    while the client of the ensemble does not take its answers.
 3. What waits at a gate may need the very instance that is held back: a model that is a member twice, or resources that
    two models share. So when nothing has come from the members of a run for `STUCK_S`, those that are held back because
    of a gate are let go. The gate's limit holds; only answers may pile up.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from ..engine.answer_window import AnswerWindow
from ..engine.clock import Clock
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
from ..engine.errors import TriremeError
from ..engine.execution import ExecutionBatch, Phase
from ..engine.job import Job, Outcome
from ..engine.log_context import about
from ..engine.request import InferenceRequest
from ..engine.statistics import ModelStatistics
from ..engine.tracing.following import TracedReply
from .mailbox import Mailbox
from .messages import QUEUE_CHANGED, QueueChanged
from .recursion import refuse_recursion
from .reply import WINDOW
from .scheduler_statistics import SchedulerStatistics

if TYPE_CHECKING:
    from .model import Model

logger = logging.getLogger("trireme.ensemble")

STUCK_S = 300.0
"""See rule 3; as long as Triton waits."""

FindMember = Callable[[InferenceRequest], "Model"]


class Ensemble:
    """One ensemble version at work.

    Args:
        plan: its graph.
        find: the model that answers the request of a step; raises `TriremeError` if there is none.
    """

    prompt = False  # see `Scheduler`
    full = False  # its members may be

    def __init__(self, plan: EnsemblePlan, find: FindMember, clock: Clock, statistics: ModelStatistics) -> None:
        self.name = plan.name
        self.mailbox: Mailbox[QueueChanged] = Mailbox(f"ensemble {plan.name}", 1)
        self.inflight = 0
        self._core = EnsembleCore(plan)
        self._find = find
        self._clock = clock
        self._statistics = statistics
        self._runs: dict[Job, EnsembleRun] = {}
        self._steps: dict[StepCall, _Step] = {}
        self._windowed: dict[StepCall, _Step] = {}  # those of them that rule 2 is for
        self._news: list[tuple[_Step, Outcome, bool]] = []
        self._started_ns: dict[EnsembleRun, int] = {}
        self._moved_s: dict[EnsembleRun, float] = {}  # with a gate: when a member was heard last
        self._looks_s = math.inf  # when to look again whether anything has moved
        self._word_left = False
        self._idle = trio.lowlevel.ParkingLot()

    # The door, as a scheduler's.

    def submit(self, job: Job, *, attended: bool = False) -> None:
        """Take a job in. See `Scheduler.submit`.

        Raises:
            UnavailableError: stopping.
        """
        job.enqueued_ns = self._clock.now_ns()
        self._runs[job] = self._core.start(job)
        self.inflight += 1
        if not attended:
            self._leave_word()

    def attend(self) -> None:
        """Do at once what is to be done about jobs that were submitted as `attended`."""
        if not self._word_left:
            self._act()

    def cancel(self, job: Job) -> None:
        """The job's client gave up."""
        job.cancelled = True
        run = self._runs.get(job)
        if run is not None:
            self._core.cancel(run)
            self._leave_word()

    def stop(self) -> None:
        """Refuse new jobs, finish those that are there."""
        self._core.stop()

    def fail_queued(self, error: TriremeError) -> None:
        """Answer everything with `error`. Members that are still at work do so for nobody."""
        for call in list(self._steps):
            self._cancel_step(call)
        for job in self._core.drop_all():
            self._end(job, error)

    async def drained(self) -> None:
        """Wait until every accepted job has its final answer."""
        while self.inflight:
            await self._idle.park()

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(0, self.inflight, 0, self.mailbox.statistics())

    # The task.

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            if self._looks_s == math.inf:
                await self._hear_word()
            else:
                with trio.move_on_at(self._looks_s):
                    await self._hear_word()
            self._act()

    async def _hear_word(self) -> None:
        await self.mailbox.get_all()
        self._word_left = False

    def _leave_word(self) -> None:
        if not self._word_left:
            self._word_left = True
            self.mailbox.put_nowait(QUEUE_CHANGED)

    def _act(self) -> None:
        """Tell the core what the members have answered, and do what it says."""
        core = self._core
        while True:
            news, self._news = self._news, []
            for step, outcome, final in news:
                self._tell(step, outcome, final)
            while (action := core.next_action()) is not None:
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
            if not self._news:
                break
        self._looks_s = math.inf
        for step in self._windowed.values():
            step.make_room()
            if self._moved_s and step.is_held_back:
                self._look_whether_stuck(step)

    def _look_whether_stuck(self, step: _Step) -> None:
        """Rule 3."""
        run = step.call.run
        moved_s = self._moved_s.get(run)
        if moved_s is None or not self._core.is_congested(step.call):
            return  # its answers are on their way here, or wait for the client
        if self._clock.now_s() < moved_s + STUCK_S:
            self._looks_s = min(self._looks_s, moved_s + STUCK_S)
            return
        text = (
            "ensemble '%s': for %g s nothing has moved while '%s' was held back by max_inflight_requests; it may go on"
        )
        logger.error(text, self.name, STUCK_S, step.call.step.model_name, extra=about(self.name, run.job.id))
        step.let_go()

    def _tell(self, step: _Step, outcome: Outcome, final: bool) -> None:
        if final:
            self._forget(step.call)
        if self._core.plan.max_inflight_requests and step.call.run.job in self._runs:
            self._moved_s[step.call.run] = self._clock.now_s()
        if isinstance(outcome, TriremeError):
            self._core.step_failed(step.call, outcome, final)
        else:
            self._core.step_response(step.call, outcome, final)

    # Members.

    def _submit(self, call: StepCall, action: Submit) -> None:
        request = action.request
        try:
            model = self._find(request)
            inputs, rows = model.validator.check(request)
            if request.callers:
                refuse_recursion(request, model)
            nbytes = sum(tensor.nbytes for tensor in inputs.values())
            step = _Step(self, call, call.step.decoupled)
            now_ns = self._clock.now_ns()
            step.job = Job(request, inputs, rows, model.name, model.version, step, now_ns, nbytes)
            step.job.window = step.window
            traced = None
            if call.run.job.request.trace is not None:
                request.trace = call.run.job.request.trace.step()
                traced = TracedReply(request.trace, step.job, self._clock)
            step.give_up = model.scheduler.cancel
            self._steps[call] = step
            if step.window is not None:
                self._windowed[call] = step
            model.scheduler.submit(step.job)
            if traced is not None:
                traced.begin()
        except TriremeError as error:
            self._forget(call)
            self._core.step_failed(call, error)

    def _forget(self, call: StepCall) -> None:
        self._steps.pop(call, None)
        self._windowed.pop(call, None)

    def _cancel_step(self, call: StepCall) -> None:
        step = self._steps.get(call)
        if step is not None and step.job is not None and step.give_up is not None:
            step.let_go()
            step.give_up(step.job)

    def hear(self, step: _Step, outcome: Outcome, final: bool) -> None:
        """A member has answered."""
        if final and not isinstance(outcome, TriremeError) and step.job is not None and step.job.batch is not None:
            run = step.call.run
            marks = step.job.batch.marks_until(self._clock.now_ns())
            run.times.add(marks)
            started_ns = marks[Phase.COMPUTE_START]
            self._started_ns[run] = min(started_ns, self._started_ns.get(run, started_ns))
        self._news.append((step, outcome, final))
        self._leave_word()

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
            window.on_room = self._leave_word
            window.enter()
        if final:
            now_ns = self._clock.now_ns()
            started_ns = self._started_ns.get(run, now_ns)
            record_success(self._statistics, run.job, run.times, started_ns, now_ns, self._clock.wall_ms())
            # If this is a step of another ensemble, that one asks for the times.
            ExecutionBatch((run.job,), self.name, self._clock).marks = run.times.marks(started_ns)
            self._let_go(run.job, response)
        else:
            run.job.reply.deliver(response, False)

    def _end(self, job: Job, error: TriremeError) -> None:
        record_failure(self._statistics, job, self._clock.now_ns())
        self._let_go(job, error)

    def _let_go(self, job: Job, outcome: Outcome) -> None:
        job.answered = True
        run = self._runs.pop(job, None)
        if run is not None:
            self._started_ns.pop(run, None)
            self._moved_s.pop(run, None)
        if job.reply.deliver(outcome, True):
            job.batch = None
            self.inflight -= 1
            if not self.inflight:
                self._idle.unpark_all()

    def __repr__(self) -> str:
        return f"<Ensemble {self.name}: {self.inflight} in flight>"


class _Step:
    """A request to a member, and the reply to it.

    Attributes:
        window: holds a decoupled member back.
        give_up: cancels the job at its member.
    """

    __slots__ = ("_ensemble", "_taken", "call", "give_up", "job", "window")

    def __init__(self, ensemble: Ensemble, call: StepCall, many: bool) -> None:
        self._ensemble = ensemble
        self._taken = 0
        self.call = call
        self.job: Job | None = None
        self.give_up: Callable[[Job], None] | None = None
        self.window = AnswerWindow(WINDOW, threading.get_ident()) if many else None

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        """See `engine.job.Reply`."""
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
