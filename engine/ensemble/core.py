"""All requests of one ensemble: what its actor holds (docs/reference/ensembles.md).

The actor feeds events (`start`, `step_answered`, `cancel`) and then calls `next_action` until it gives
None. Asking again without a new event gives None again.

Rules:
 1. The `EnsembleRun` of a request decides what happens to it.
 2. With ``max_inflight_requests``, a step never has more than so many calls in flight, over all requests. One that
    finds the *gate* of its step full waits, and goes when another is over, the one that has waited longest first. When
    its run fails or is cancelled, it is dropped.
 3. Once stopped, new jobs are refused and those that are there go on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ..job import Job, Outcome
from ..scheduling import refusals
from .plan import EnsemblePlan
from .run import EnsembleAction, EnsembleRun, RunState, StepCall, Submit


class EnsembleCore:
    """The requests in one ensemble.

    Args:
        plan: the ensemble's.
    """

    def __init__(self, plan: EnsemblePlan) -> None:
        self.plan = plan
        self._runs: dict[EnsembleRun, None] = {}
        self._to_ask: dict[EnsembleRun, None] = {}
        self._held: defaultdict[int, dict[StepCall, Submit]] = defaultdict(dict)  # by step: at the gate
        self._through: defaultdict[int, set[StepCall]] = defaultdict(set)  # by step: through it, and not over
        self._admitted: dict[StepCall, Submit] = {}  # those of them that were held, and not fetched yet
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

    def step_answered(self, call: StepCall, outcome: Outcome, final: bool = True) -> None:
        """A member has answered, or refused the request. See `EnsembleRun.step_answered`."""
        call.run.step_answered(call, outcome, final)
        self._told(call.run, call if final else None)

    def cancel(self, run: EnsembleRun) -> None:
        """The client of a job gave up. Fine for runs that have ended."""
        run.cancel()
        self._told(run, None)

    def next_action(self) -> EnsembleAction | None:
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
            elif not isinstance(action, Submit) or self._passes(action):
                if run.state is RunState.ENDED:
                    del self._runs[run], self._to_ask[run]
                return action

    def stop(self) -> None:
        """Refuse new jobs from now on."""
        self._stopping = True

    def drop_all(self) -> Sequence[Job]:
        """Forget every run, and give back the jobs, in the order in which they came, for someone else to answer."""
        jobs = [run.job for run in self._runs]
        for waiting in (self._runs, self._to_ask, self._held, self._through, self._admitted):
            waiting.clear()
        return jobs

    def is_congested(self, call: StepCall) -> bool:
        """Whether something that follows from this call's step waits at a gate, for the same job. The caller that feeds
        the answers of a decoupled member should hold them back until it is through: each would only make more wait.
        What waits at the step's own gate is no reason: it waits until the step has given all of its answers."""
        following = self.plan.following[call.step.index]
        return any(held.run is call.run for index in following for held in self._held.get(index, ()))

    @property
    def inflight(self) -> int:
        """Jobs that have not had their final answer."""
        return len(self._runs)

    def _told(self, run: EnsembleRun, ended: StepCall | None) -> None:
        """Something happened to a run: make room at the gate, and see what the run says to it."""
        if self.plan.max_inflight_requests:
            if ended is not None:
                self._leave(ended)
            if run.state is not RunState.RUNNING:
                for waiting in (*self._held.values(), self._admitted):
                    for call in [call for call in waiting if call.run is run]:
                        del waiting[call]
                        self._leave(call)
                        run.step_dropped(call)
        if run in self._runs:
            self._to_ask[run] = None

    def _passes(self, action: Submit) -> bool:
        """Rule 2. If not, it waits."""
        limit, call = self.plan.max_inflight_requests, action.call
        through = self._through[call.step.index]
        if limit and len(through) >= limit:
            self._held[call.step.index][call] = action
            return False
        if limit:
            through.add(call)
        return True

    def _leave(self, call: StepCall) -> None:
        """A call is over or given up: if it was through, another one goes in its place."""
        index = call.step.index
        held, through = self._held[index], self._through[index]
        if call in through:
            through.remove(call)
            if held:
                successor = next(iter(held))
                self._admitted[successor] = held.pop(successor)
                through.add(successor)

    def __repr__(self) -> str:
        held = sum(map(len, self._held.values()))
        return f"<EnsembleCore of {self.plan.name}: {len(self._runs)} in flight, {held} at the gate>"
