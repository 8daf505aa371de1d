"""What must sometimes happen.

Invariants say what must never be; they are worth nothing for states that no run reaches. So each run counts the rare
things that it saw, and `holes` says which of those that a run can reach were not reached.
"""

from __future__ import annotations

from collections import Counter

from ..engine.job import SealReason
from .client_memory import REACHABLE_MEMORY
from .coverage_answers import REACHABLE_ANSWERS, AnswerCoverage
from .coverage_gpus import REACHABLE_GPUS, GpuCoverage
from .events import (
    GIVEN_UP,
    BatchSealed,
    CancelHeard,
    ChangeAsked,
    ChangeDone,
    ExecutionEnded,
    FaultStruck,
    InstanceAttached,
    InstanceDetached,
    ModelStateChanged,
    RegionRead,
    ReplyDelivered,
    RequestAbandoned,
    RequestAnswered,
    RequestDropped,
    RequestIsolated,
    RequestQueued,
    RequestRejected,
    RequestRescheduled,
    RequestSubmitted,
    ServerStopped,
    ServerStopping,
    StateUsed,
    StepSubmitted,
)
from .failed_starts import NOT_STARTED
from .front_ends import REACHABLE_FRONT_ENDS
from .generations import model_of
from .graphs import is_step
from .history import Handlers
from .invariants.queueing import EXPIRED, FULL, TOO_LATE
from .invariants.serving import STOPPING, UNKNOWN
from .invariants.state import WorldState
from .oracle.observed import ToldSeatLost
from .plan import RESIZED_TO, Fault
from .reach import REACHABLE_SERVING
from .regions import LEFT, LOST_LATE, REACHABLE_REGIONS
from .texts import A_TEXT
from .traced import REACHABLE_TRACES
from .views import VIEWED

INHERITED = "a request to be executed alone passed to another instance"

REACHABLE = (
    *(f"sealed: {reason.value}" for reason in SealReason if reason is not SealReason.STRATEGY),  # which needs a package
    *(f"fault: {fault.value}" for fault in Fault if fault is not Fault.NONE),
    "fault: start fails",
    "fault: start on a sick GPU",
    "refused: queue full",
    "refused: stopping",
    "refused: unknown model",
    "refused: invalid",
    "refused: no START",
    "refused: would be late",
    "rejected: expired",
    "rejected: late",
    "rejected: cancelled",
    "rejected: sequence lost",
    "rejected: sequence too long in the backlog",
    "a batch with padding",
    "dropped from the queue",
    "cancelled in the queue",
    "cancelled in execution",
    "given up without a reply being held",
    "a later request went before an earlier one",
    "an expired request was let wait",
    "an answer waited for its turn",
    "an instance restarted",
    "a model without any instance",
    "an execution given up",
    "stopped with work in flight",
    "stopped in time",
    "stopped before it was drained",
    "the server-wide budget was used up",
    "a state kept",
    A_TEXT,
    NOT_STARTED,
    VIEWED,
    *REACHABLE_TRACES,
    "a state found",
    *REACHABLE_SERVING,
    *REACHABLE_ANSWERS,
    *REACHABLE_GPUS,
    *REACHABLE_FRONT_ENDS,
    *REACHABLE_REGIONS,
    *REACHABLE_MEMORY,
    "a model loaded again",
    "a model unloaded",
    "a model changed twice at once",
    "a model resized",
    INHERITED,
    "a change refused",
    "a load failed, and the old one served on",
    "executed by what was replaced",
    "executed by what was unloaded",
    "refused: unloaded",
    "an ensemble answered",
    "an ensemble failed with a step",
    "an ensemble cancelled amid its steps",
    "steps side by side",
    "a step of a step",
    "a step refused",
    "a step failed after another one",
    "a step for a later answer of a decoupled member",
    "an ensemble answered again",
    "a member held back by its ensemble",
)
"""All that a swarm run may see; each must come up in a thousand of them."""


class Coverage:
    """Counts. Must listen before the state does, as invariants do.

    Attributes:
        answers, gpus: listen as well.
    """

    def __init__(self, state: WorldState, max_inflight: int) -> None:
        self.counts: Counter[str] = Counter()
        self._state = state
        self._max_inflight = max_inflight
        self._open: set[int] = set()
        self._ended: dict[int, int] = {}  # when a request's execution ended
        self._batches: dict[int, BatchSealed] = {}
        self._parents: dict[int, int] = {}
        self._steps: dict[int, int] = {}  # by request to an ensemble, how many steps it has in flight
        self._failed: set[int] = set()  # those of them of which a step has failed
        self._alone: dict[int, tuple[str, int]] = {}  # by request to be executed alone, its model and seat
        self._is_stopping = False
        self._changing: Counter[str] = Counter()
        self.answers = AnswerCoverage(self.count)
        self.gpus = GpuCoverage(self.count)

    def handlers(self) -> Handlers:
        return {
            RequestRescheduled: self._rescheduled,
            RequestIsolated: self._isolated,
            ToldSeatLost: self._seat_lost,
            RequestSubmitted: self._submitted,
            StepSubmitted: self._step_submitted,
            RequestAnswered: self._answered,
            RequestAbandoned: self._abandoned,
            RequestQueued: self._queued,
            CancelHeard: self._cancelled,
            RequestRejected: self._rejected,
            RequestDropped: lambda _event: self.count("dropped from the queue"),
            BatchSealed: self._sealed,
            ReplyDelivered: self._delivered,
            ExecutionEnded: self._execution_ended,
            FaultStruck: lambda event: self.count(f"fault: {event.fault}"),
            StateUsed: self._state_used,
            RegionRead: lambda event: self.count(LOST_LATE if event.lost else LEFT),
            InstanceAttached: self._attached,
            InstanceDetached: self._detached,
            ModelStateChanged: self._changed,
            ChangeAsked: self._change_asked,
            ChangeDone: self._change_done,
            ServerStopping: self._stopping,
            ServerStopped: self._stopped,
        }

    def count(self, what: str) -> None:
        """It happened once more."""
        self.counts[what] += 1

    def _submitted(self, event: RequestSubmitted) -> None:
        if is_step(event.request):
            self.count("steps")
            return
        self.count("requests")
        if len(self._open) >= self._max_inflight:
            self.count("the server-wide budget was used up")

    def _step_submitted(self, event: StepSubmitted) -> None:
        self._parents[event.request] = event.parent
        inflight = self._steps[event.parent] = self._steps.get(event.parent, 0) + 1
        if inflight > 1:
            self.count("steps side by side")
        if is_step(event.parent):
            self.count("a step of a step")
        if any(event.iteration):
            self.count("a step for a later answer of a decoupled member")

    def _step_answered(self, event: RequestAnswered) -> None:
        parent = self._parents.pop(event.request)
        if parent not in self._steps:
            return  # dropped by a server that had no time left
        self._steps[parent] -= 1
        if event.error:
            if parent in self._failed:
                self.count("a step failed after another one")
            self._failed.add(parent)

    def _queued(self, event: RequestQueued) -> None:
        if not is_step(event.request):
            self._open.add(event.request)

    def _answered(self, event: RequestAnswered) -> None:
        asked = self._state.asked.get(event.request)
        if event.request in self._parents:
            self._step_answered(event)
            if asked is not None:
                self.count("a step refused")
        if asked is None or not event.error:
            return
        if event.error.endswith(FULL):
            self.count("refused: queue full")
        elif event.error.endswith(TOO_LATE):
            self.count("refused: would be late")
        elif STOPPING in event.error:
            self.count("refused: stopping")
        elif UNKNOWN in event.error:
            self.count(f"refused: {self._why_unknown(asked.model)}")
        else:
            self.count("refused: no START" if "must specify the START flag" in event.error else "refused: invalid")

    def _why_unknown(self, model: str) -> str:
        return "unloaded" if model in self._state.serving else "unknown model"

    def _change_asked(self, event: ChangeAsked) -> None:
        self._changing[event.model] += 1
        if self._changing[event.model] > 1:
            self.count("a model changed twice at once")

    def _change_done(self, event: ChangeDone) -> None:
        self._changing[event.model] -= 1
        if event.change.startswith(RESIZED_TO) and not event.error:
            self.count("a model resized")
        if event.error:
            self.count("a change refused")

    def _abandoned(self, event: RequestAbandoned) -> None:
        if event.request in self._state.asked:
            self.count("given up without a reply being held")

    def _rescheduled(self, event: RequestRescheduled) -> None:
        self._ended.pop(event.request, None)

    def _isolated(self, event: RequestIsolated) -> None:
        self._alone[event.request] = event.model, event.seat

    def _seat_lost(self, event: ToldSeatLost) -> None:
        if event.heirs and (event.core, event.seat) in self._alone.values():
            self.count(INHERITED)

    def _cancelled(self, event: CancelHeard) -> None:
        if self._steps.get(event.request):
            self.count("an ensemble cancelled amid its steps")
        else:
            self.count("cancelled in execution" if event.executing else "cancelled in the queue")

    def _rejected(self, event: RequestRejected) -> None:
        if event.error == EXPIRED:
            self.count("rejected: expired")
        elif event.error == TOO_LATE:
            self.count("rejected: late")
        elif "is lost, because" in event.error:
            self.count("rejected: sequence lost")
        elif "timeout of the corresponding sequence" in event.error:
            self.count("rejected: sequence too long in the backlog")
        else:
            self.count("rejected: cancelled")

    def _sealed(self, event: BatchSealed) -> None:
        self.count(f"sealed: {event.reason}")
        if 0 in event.requests:
            self.count("a batch with padding")
        view = self._state.models[event.model]
        line = view.line
        if view.stopping and not self._is_stopping:
            replaced = self._state.serving[view.config.name] is not view
            self.count(f"executed by what was {'replaced' if replaced else 'unloaded'}")
        first = next(iter(line.waiting), 0)
        if first not in event.requests:
            self.count("a later request went before an earlier one")
        if any(request in level.delayed for level in line.levels for request in event.requests):
            self.count("an expired request was let wait")
        self._batches[event.batch] = event
        for request in event.requests:
            self._alone.pop(request, None)

    def _execution_ended(self, event: ExecutionEnded) -> None:
        batch = self._batches.pop(event.batch)
        for request in batch.requests:
            self._ended[request] = event.at_ns
        if event.ending == GIVEN_UP:
            self.count("an execution given up")

    def _delivered(self, event: ReplyDelivered) -> None:
        if event.answer > 1 and event.request in self._steps:
            self.count("an ensemble answered again")
        if not event.final:
            return
        self._open.discard(event.request)
        self._alone.pop(event.request, None)
        if self._steps.pop(event.request, None) is not None:
            failed = event.request in self._failed
            self.count("an ensemble failed with a step" if failed else "an ensemble answered")
        ended_ns = self._ended.pop(event.request, event.at_ns)
        if ended_ns != event.at_ns:
            self.count("an answer waited for its turn")

    def _state_used(self, event: StateUsed) -> None:
        if event.found:
            self.count("a state found")
        if event.left != event.found:
            self.count("a state kept")
            if event.is_text:
                self.count(A_TEXT)

    def _attached(self, event: InstanceAttached) -> None:
        if self._state.models[event.model].ready:
            self.count("an instance restarted")

    def _detached(self, event: InstanceDetached) -> None:
        view = self._state.models[event.model]
        if view.ready and len(view.instances) == 1:
            self.count("a model without any instance")

    def _changed(self, event: ModelStateChanged) -> None:
        view = self._state.models.get(event.model)
        if view is None:
            if event.state == "LOADING" and model_of(event.model) in self._state.serving:
                self.count("a model loaded again")
            return
        serving = self._state.serving[view.config.name]
        if event.state == "UNAVAILABLE" and serving.ready and serving is not view and not view.served:
            self.count("a load failed, and the old one served on")
        elif event.state == "UNLOADING" and serving is view and not self._is_stopping:
            self.count("a model unloaded")

    def _stopping(self, _event: ServerStopping) -> None:
        self._is_stopping = True
        if self._open:
            self.count("stopped with work in flight")

    def _stopped(self, event: ServerStopped) -> None:
        self.count("stopped in time" if event.drained else "stopped before it was drained")


def holes(counts: Counter[str]) -> list[str]:
    """What could have been reached and was not."""
    return [what for what in REACHABLE if not counts[what]]
