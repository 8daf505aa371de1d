"""All requests of one ensemble: what its actor holds (docs/reference/ensembles.md).

The actor feeds events (`start`, `step_response`, `step_failed`, `cancel`) and then calls `next_action` until it gives
None. Asking again without a new event gives None again.

Rules:
 1. The `EnsembleRun` of a request decides what happens to it.
 2. With ``max_inflight_requests``, a submission passes the gate of its step first. One that waits there reaches its
    member when another request's is over; when its run fails or is cancelled, it is dropped.
 3. Once stopped, new jobs are refused and those that are there go on.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import TriremeError
from ..job import Job
from ..request import InferenceResponse
from ..scheduling import refusals
from .gate import StepGate
from .plan import EnsemblePlan
from .run import Action, EnsembleRun, RunState, StepCall, Submit


class EnsembleCore:
    """The requests in one ensemble.

    Args:
        plan: the ensemble's.
    """

    def __init__(self, plan: EnsemblePlan) -> None:
        self.plan = plan
        self._runs: dict[EnsembleRun, None] = {}
        self._to_ask: dict[EnsembleRun, None] = {}
        self._gate: StepGate[StepCall] | None = None
        if plan.max_inflight_requests:
            self._gate = StepGate(plan.max_inflight_requests)
        self._held: dict[StepCall, Submit] = {}  # at the gate
        self._admitted: dict[StepCall, Submit] = {}  # through it, and not fetched yet
        self._stopping = False

    def start(self, job: Job) -> EnsembleRun:
        """Take a job in.

        Raises:
            UnavailableError: stopping.
        """
        if self._stopping:
            raise refusals.stopping(job)
        run = EnsembleRun(self.plan, job)
        self._runs[run] = None
        run.start()
        self._to_ask[run] = None
        return run

    def step_response(self, call: StepCall, response: InferenceResponse | None, final: bool) -> None:
        """A member has answered. See `EnsembleRun.step_response`."""
        call.run.step_response(call, response, final)
        self._told(call.run, call if final else None)

    def step_failed(self, call: StepCall, error: TriremeError, final: bool = True) -> None:
        """A member has answered with an error, or refused the request. See `EnsembleRun.step_failed`."""
        call.run.step_failed(call, error, final)
        self._told(call.run, call if final else None)

    def cancel(self, run: EnsembleRun) -> None:
        """The client of a job gave up. Fine for runs that have ended."""
        run.cancel()
        self._told(run, None)

    def next_action(self) -> Action | None:
        """What to do now; None for nothing before the next event."""
        while True:
            if self._admitted:
                return self._admitted.pop(next(iter(self._admitted)))
            if not self._to_ask:
                return None
            run = next(iter(self._to_ask))
            action = run.next_action()
            if action is None:
                del self._to_ask[run]
            elif isinstance(action, Submit) and not self._passes(action):
                self._held[action.call] = action
            else:
                if run.state is RunState.ENDED:
                    del self._runs[run], self._to_ask[run]
                return action

    def stop(self) -> None:
        """Refuse new jobs from now on."""
        self._stopping = True

    def drop_all(self) -> Sequence[Job]:
        """Forget every run, and give back the jobs, in the order in which they came, for someone else to answer."""
        jobs = [run.job for run in self._runs]
        for waiting in (self._runs, self._to_ask, self._held, self._admitted):
            waiting.clear()
        if self._gate is not None:
            self._gate = StepGate(self._gate.limit)
        return jobs

    def is_congested(self, call: StepCall) -> bool:
        """Whether something that follows from this call's step waits at a gate, for the same job. The caller that feeds
        the answers of a decoupled member should hold them back until it is through: each would only make more wait.
        What waits at the step's own gate is no reason: it waits until the step has given all of its answers."""
        following = self.plan.following[call.step.index]
        return any(held.run is call.run and held.step.index in following for held in self._held)

    @property
    def inflight(self) -> int:
        """Jobs that have not had their final answer."""
        return len(self._runs)

    def _told(self, run: EnsembleRun, ended: StepCall | None) -> None:
        """Something happened to a run: make room at the gate, and see what the run says to it."""
        if self._gate is not None:
            if ended is not None:
                self._leave(self._gate, ended)
            if run.state is not RunState.RUNNING:
                for call in [call for call in (*self._held, *self._admitted) if call.run is run]:
                    self._leave(self._gate, call)
                    self._held.pop(call, None)
                    self._admitted.pop(call, None)
                    run.step_dropped(call)
        if run in self._runs:
            self._to_ask[run] = None

    def _passes(self, action: Submit) -> bool:
        return self._gate is None or self._gate.enter(action.call.step.index, action.call)

    def _leave(self, gate: StepGate[StepCall], call: StepCall) -> None:
        successor = gate.leave(call.step.index, call)
        if successor is not None:
            self._admitted[successor] = self._held.pop(successor)

    def __repr__(self) -> str:
        return f"<EnsembleCore of {self.plan.name}: {len(self._runs)} in flight, {len(self._held)} at the gate>"
