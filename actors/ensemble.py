"""The ensemble actor: carries out what the requests of one ensemble want of its members (scheduling.md §7).

A shell around `engine.ensemble.EnsembleCore`, and to its model what a scheduler is to another: jobs come in through the
same door. Members are asked through their own doors, past the server-wide budget: the request to the ensemble has paid
for its steps, and a step that waited for room which only the end of its own request can make would wait for ever.

Rules:
 1. A member's answer leaves word; the core is told, and asked what follows, in this actor's own task (or in that of a
    front end that attends to what it has submitted). So a defect here costs the ensemble, not its member.
 2. A decoupled member is held back while its answers cannot go on: while requests of the same run wait at a gate, and
    while the client of the ensemble does not take its answers.
"""

from __future__ import annotations

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
from ..engine.request import InferenceRequest
from ..engine.statistics import ModelStatistics
from ..engine.tracing.following import TracedReply
from .mailbox import Mailbox
from .messages import QUEUE_CHANGED, QueueChanged
from .recursion import refuse_recursion
from .reply import WINDOW
from .scheduler import SchedulerStatistics

if TYPE_CHECKING:
    from .model import Model


FindMember = Callable[[InferenceRequest], "Model"]


class Ensemble:
    """One ensemble version at work.

    Args:
        plan: its graph.
        find: the model that answers the request of a step; raises `TriremeError` if there is none.
    """

    prompt = False  # see `Scheduler`

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
        self._news: list[tuple[_Step, Outcome, bool]] = []
        self._started_ns: dict[EnsembleRun, int] = {}
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
            await self.mailbox.get_all()
            self._word_left = False
            self._act()

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
        for step in self._steps.values():
            step.make_room()

    def _tell(self, step: _Step, outcome: Outcome, final: bool) -> None:
        if final:
            self._steps.pop(step.call, None)
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
            model.scheduler.submit(step.job)
            if traced is not None:
                traced.begin()
        except TriremeError as error:
            self._steps.pop(call, None)
            self._core.step_failed(call, error)

    def _cancel_step(self, call: StepCall) -> None:
        step = self._steps.get(call)
        if step is not None and step.job is not None and step.give_up is not None:
            if step.window is not None:
                step.window.open_up()
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

    def may_go_on(self, run: EnsembleRun) -> bool:
        """Rule 2."""
        window = run.job.window
        return not ((window is not None and window.crowded) or self._core.is_congested(run))

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
            if self.window is not None:
                self.window.open_up()
        return final

    def make_room(self) -> None:
        """Let the member answer more, if what it has answered could go on."""
        if self.window is not None and self._taken and self._ensemble.may_go_on(self.call.run):
            self.window.leave(self._taken)
            self._taken = 0
