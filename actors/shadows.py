"""Asks shadows what clients have asked, compares their answers, and drops them (`engine.routing.shadowing` says when).

Rules:
 1. Whether a request may be copied is decided when it is admitted, and nothing else is done for its copy before its
    answer has been written, but for what lies in a client's shared memory, which is copied just before.
 2. A copy has no place in the server-wide budget: real requests neither wait for it nor are refused. Its bytes are
    bounded and told (`InflightBudget.may_spare`), and copies that wait are dropped when a request waits for memory.
 3. It has no client: no shared memory, no trace, no limits of a caller's, no priority and no timeout.
 4. What is compared is small, or it is compared on a thread, in pieces.
 5. When the server stops, copies are given up; a batch that executes one is not waited for (`InferenceServer.stop`).
 6. The first answer that differs is logged, and then at most one in `_LOG_EVERY_S`; all are counted.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Never

from ..engine.admission.shares import ModelShare
from ..engine.clock import Clock
from ..engine.datatypes import BYTES
from ..engine.errors import ErrorKind, TriremeError
from ..engine.job import Outcome
from ..engine.memory.tensors import RegionTensor
from ..engine.metrics.family import MetricFamily
from ..engine.metrics.shadows import CopyResult, ShadowRecord, shadow_families
from ..engine.request import InferenceRequest, InferenceResponse
from ..engine.routing.answers import Agreement, AnswersCompared, compare_answers
from ..engine.routing.route import Shadow
from ..engine.routing.shadowing import BeginCopy, CopyAction, CopyDropped, CopyQueue, GiveUpCopy, ShadowCopy
from ..engine.tensor import Tensor
from .actor import Actor
from .admission import Admission
from .budget import InflightBudget
from .piecework import next_piece
from .reply import Reply

logger = logging.getLogger("trireme.routes")

_BUDGET_PART = 64
"""Of the bytes of the server-wide budget, copies may hold so small a part beside it."""

_LATER_S = 0.001
_LOG_EVERY_S = 60.0
_SMALL_BYTES = 65_536
_NAP_S = 1e-5
_MOST_NO_MORE = 2
_TEXT_BYTES = 64
"""What a text takes that was not packed: an estimate."""


@dataclass(slots=True, eq=False)
class _Work:
    """What is to be asked, and compared.

    Attributes:
        outcomes: the target's.
        target_s: what the client waited for them.
        answers: the shadow's so far.
        reply: while it is in flight.
    """

    request: InferenceRequest
    outcomes: list[Outcome]
    target_s: float
    answers: list[Outcome] = field(default_factory=list)
    reply: Reply | None = None


class Shadows(Actor[Never]):
    """Implements `ShadowDoor`.

    Args:
        admission: lets copies in.
        start_soon: starts the actor's task, when there are shadows.
    """

    def __init__(
        self,
        admission: Admission,
        budget: InflightBudget,
        clock: Clock,
        start_soon: Callable[..., None],
    ) -> None:
        super().__init__("the shadows", admission.turn)
        self._admission = admission
        self._budget = budget
        self._clock = clock
        self._is_ready = admission.routes.is_ready
        self._start_soon: Callable[..., None] | None = start_soon
        self._records: dict[str, ShadowRecord] = {}
        self._queue = CopyQueue[_Work](budget.byte_limit // _BUDGET_PART, clock.now_s())
        self._holder = ModelShare("copies for shadows", lambda _share, _nbytes: None)  # rule 2
        self._traffic = False
        self._logged: dict[str, float] = {}

    # What its routes say.

    def routes_changed(self, shadows: Collection[tuple[str, Shadow]]) -> None:
        """See `ShadowDoor`."""
        before = self._records
        self._records = {}
        for route, shadow in shadows:
            old = before.get(route)
            if old is not None and old.shadow == shadow:
                self._records[route] = old
                old.shadow = shadow
            else:
                self._records[route] = ShadowRecord(route, shadow)
        if self._records and self._start_soon is not None:
            self._start_soon(self.run)
            self._start_soon = None
            self._admission.watch_requests(self._see_request)
        self._logged = {route: when_s for route, when_s in self._logged.items() if route in self._records}
        with self._turn:
            for action in self._queue.replace_lanes(list(self._records.values())):
                self._carry_out(action)
            self._settle()

    @property
    def busy(self) -> bool:
        """Whether a copy has begun, and is not over."""
        return self._queue.busy

    def readiness_changed(self, route: str) -> None:
        """See `ShadowDoor`."""
        record = self._records.get(route)
        if record is not None:
            self._shut(record)

    def status(self, route: str) -> dict[str, Any]:
        """See `ShadowDoor`."""
        record = self._records.get(route)
        if record is None:
            return {}
        self._shut(record)
        return record.shown(self._is_ready(route, record.shadow.target), self._queue.waiting(record))

    def families(self) -> Iterator[MetricFamily]:
        """See `ShadowDoor`."""
        if self._records:
            for record in self._records.values():
                self._shut(record)
            yield from shadow_families(self._records.values())

    def answered(
        self, route: str, request: InferenceRequest, shadow: Shadow, outcomes: Sequence[Outcome], latency_s: float
    ) -> None:
        """See `ShadowDoor`."""
        record = self._records.get(route)
        if record is None or record.shadow is not shadow:
            return
        keep = partial(self._keep, record, request, outcomes, latency_s)
        if any(isinstance(tensor, RegionTensor) for tensor in _tensors_of(request, outcomes)):
            keep()  # the client may write there when it is answered
        else:
            self._turn.afterwards(self, keep)

    def _see_request(self, _request: InferenceRequest, _rows: int) -> None:
        self._traffic = True

    def _keep(
        self, record: ShadowRecord, request: InferenceRequest, outcomes: Sequence[Outcome], latency_s: float
    ) -> None:
        try:
            reason = self._put(record, request, outcomes, latency_s)
        except Exception:
            logger.exception("unexpected failure of a copy for shadow '%s'", record.shadow.target)
            return
        if reason is not None:
            record.dropped[reason] += 1

    def _put(
        self, record: ShadowRecord, request: InferenceRequest, outcomes: Sequence[Outcome], latency_s: float
    ) -> CopyDropped | None:
        """Have a copy wait; or why not."""
        nbytes = sum([_bytes_of(tensor) for tensor in _tensors_of(request, outcomes)])
        if not self._budget.may_spare(nbytes):
            return CopyDropped.MEMORY
        try:
            copy = _copied(request, record.shadow)
            kept = [_kept_outcome(outcome) for outcome in outcomes]
        except _SharedMemoryError:
            return CopyDropped.SHARED_MEMORY
        now_s = self._clock.now_s()
        reason = self._queue.put(record, nbytes, _Work(copy, kept, latency_s), now_s)
        if reason is None:
            self._shut(record)
            self._budget.spare_bytes = self._queue.nbytes
            self.deadline_s = min(self.deadline_s, max(self._queue.next_s(), now_s + _LATER_S))
        return reason

    # In turns.

    def receive(self, message: Never) -> None:
        """There are none: it is called, and has deadlines."""

    def act(self) -> None:
        queue, now_s = self._queue, self._clock.now_s()
        if self._traffic or self._budget.busy:
            self._traffic = False
            queue.see_traffic(now_s)
        if self._budget.wanted:
            for action in queue.drop_all(CopyDropped.MEMORY):
                self._carry_out(action)
        while (action := queue.next_action(now_s)) is not None:
            self._carry_out(action)
        self._settle()

    def _settle(self) -> None:
        queue = self._queue
        for record in self._records.values():
            self._shut(record)
        self._budget.spare_bytes = queue.nbytes
        self.deadline_s = queue.next_s()

    def _shut(self, record: ShadowRecord) -> None:
        """See whether copies may be made, and count what could not be copied until now."""
        reason = self._queue.full(record)
        if reason is None and not self._is_ready(record.route, record.shadow.target):
            reason = CopyDropped.NOT_READY
        missed = self._admission.routes.shut_copies(record.route, reason is not None)
        if missed and record.shut is not None:
            record.dropped[record.shut] += missed
        record.shut = reason

    def _carry_out(self, action: CopyAction[_Work]) -> None:
        copy = action.copy
        record = copy.lane
        assert isinstance(record, ShadowRecord), "lanes are"
        if isinstance(action, BeginCopy):
            self._begin(copy, record)
        elif isinstance(action, GiveUpCopy):
            if record is self._records.get(record.route):
                record.results[CopyResult.TIMED_OUT] += 1
                text = f"no answer within {self._clock.now_s() - copy.begun_s:.0f} s"
                self._tell(record, text)
            if copy.work.reply is not None:
                copy.work.reply.cancel()
        else:
            record.dropped[action.reason] += 1

    def _begin(self, copy: ShadowCopy[_Work], record: ShadowRecord) -> None:
        work, traffic = copy.work, self._traffic
        reason = None
        try:
            reply = self._admission.admit_copy(work.request, self._holder)
            if reply is None:
                reason = CopyDropped.TOO_LARGE
            else:
                work.reply = reply
                reply.notify_each(partial(self._hear, copy, record))
        except TriremeError as error:
            if error.kind in (ErrorKind.UNAVAILABLE, ErrorKind.NOT_FOUND):
                reason = CopyDropped.NOT_READY
            else:
                self._count(record, copy, AnswersCompared(Agreement.FAILED, error.message))
            self._queue.ended(copy, 0.0, self._clock.now_s())
        else:
            if reason is not None:
                self._queue.ended(copy, 0.0, self._clock.now_s())
        if reason is not None:
            record.dropped[reason] += 1
        self._traffic = traffic

    def _hear(self, copy: ShadowCopy[_Work], record: ShadowRecord, reply: Reply) -> None:
        """The shadow has answered."""
        work = copy.work
        room = len(work.outcomes) + _MOST_NO_MORE - len(work.answers)
        work.answers += [outcome for outcome, _ in reply.take()][:room]
        if not reply.final:
            if len(work.answers) == len(work.outcomes) + _MOST_NO_MORE:
                reply.cancel()  # it differs, whatever else it says
            return
        work.reply = None
        if not reply.accepted and not copy.given_up:
            record.dropped[CopyDropped.REFUSED] += 1
            self._end(copy)
        elif copy.given_up:
            self._end(copy)
        elif copy.nbytes <= _SMALL_BYTES:
            self._turn.afterwards(self, partial(self._compare_now, copy, record))
        else:
            shadow_s = self._clock.now_s() - copy.begun_s
            compare = partial(_compare, work, record.shadow.tolerance, _next_piece)
            self._admission.offload.later(compare, partial(self._compared, copy, record, shadow_s), in_pieces=True)

    def _compare_now(self, copy: ShadowCopy[_Work], record: ShadowRecord) -> None:
        shadow_s = self._clock.now_s() - copy.begun_s
        self._compared(copy, record, shadow_s, _compare(copy.work, record.shadow.tolerance, lambda: None))

    def _compared(
        self, copy: ShadowCopy[_Work], record: ShadowRecord, shadow_s: float, compared: AnswersCompared
    ) -> None:
        if not copy.given_up:
            self._count(record, copy, compared, shadow_s)
        self._end(copy)

    def _count(
        self, record: ShadowRecord, copy: ShadowCopy[_Work], compared: AnswersCompared, shadow_s: float = 0.0
    ) -> None:
        record.add(compared, copy.work.target_s, shadow_s)
        if compared.why:
            request_id = copy.work.request.id
            self._tell(record, compared.why + (f" (request id '{request_id}')" if request_id else ""))

    def _tell(self, record: ShadowRecord, what: str) -> None:
        """Rule 6."""
        now_s = self._clock.now_s()
        record.last = what
        if now_s >= self._logged.get(record.route, -math.inf) + _LOG_EVERY_S:
            self._logged[record.route] = now_s
            text = "route '%s': shadow '%s' does not agree: %s; more of this is only counted for %g s"
            logger.warning(text, record.route, record.shadow.target, what, _LOG_EVERY_S)

    def _end(self, copy: ShadowCopy[_Work]) -> None:
        now_s = self._clock.now_s()
        self._queue.ended(copy, now_s - copy.begun_s, now_s)
        self._settle()


class _SharedMemoryError(Exception):
    """A tensor is in a client's shared memory, and too large to be copied."""


def _tensors_of(request: InferenceRequest, outcomes: Sequence[Outcome]) -> list[Tensor]:
    answers = [each for each in outcomes if isinstance(each, InferenceResponse)]
    return [*request.inputs, *[tensor for answer in answers for tensor in answer.outputs]]


def _bytes_of(tensor: Tensor) -> int:
    if tensor.datatype is BYTES and not tensor.has_buffer and not isinstance(tensor, RegionTensor):
        return tensor.element_count * _TEXT_BYTES
    return tensor.nbytes


def _kept_tensor(tensor: Tensor) -> Tensor:
    """The same with data that no client can change."""
    if not isinstance(tensor, RegionTensor):
        return tensor
    try:
        kept = tensor.kept(_SMALL_BYTES)
    except TriremeError:
        kept = None
    if kept is None:
        raise _SharedMemoryError
    return kept


def _kept_outcome(outcome: Outcome) -> Outcome:
    if not isinstance(outcome, InferenceResponse) or not any(
        isinstance(each, RegionTensor) for each in outcome.outputs
    ):
        return outcome
    outputs = [_kept_tensor(tensor) for tensor in outcome.outputs]
    return InferenceResponse(outcome.model_name, outcome.model_version, outcome.id, outputs)


def _copied(request: InferenceRequest, shadow: Shadow) -> InferenceRequest:
    """Rule 3."""
    return InferenceRequest(
        shadow.target.model,
        shadow.target.version,
        request.id,
        [_kept_tensor(tensor) for tensor in request.inputs],
        request.requested_outputs,
        dict(request.parameters),
        raw_input=request.raw_input,
    )


def _compare(work: _Work, tolerance: float, between: Callable[[], object]) -> AnswersCompared:
    try:
        return compare_answers(work.outcomes, work.answers, tolerance, between)
    except Exception as error:
        logger.exception("unexpected failure of a comparison")
        return AnswersCompared(Agreement.FAILED, f"they cannot be compared: {error}")


def _next_piece() -> None:
    next_piece(partial(threading.Event().wait, _NAP_S))  # which never comes: to sleep is all
