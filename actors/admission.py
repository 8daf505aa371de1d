"""How requests get into the server: checked, admitted to the server-wide budget, queued at their model's scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial

from ..engine.admission.large_requests import (
    check_takes_long,
    is_large,
    read_regions_now,
    reads_little,
    strings_in_regions,
)
from ..engine.admission.shares import ModelShare
from ..engine.clock import Clock
from ..engine.description import ModelDescription
from ..engine.errors import ColdModelError, NotFoundError, RefusalReason, TriremeError, UnavailableError, request_prefix
from ..engine.job import Job
from ..engine.logs.request_lines import RequestLines, tell_queued
from ..engine.logs.request_recorder import RequestRecorder
from ..engine.metrics.refusals import Counts, RefusalCounts, reason_to_count
from ..engine.request import LATEST, InferenceRequest
from ..engine.scheduling.refusals import queue_full
from ..engine.tensor import Tensor
from ..engine.tracing.tracer import TracedReply
from .access_gate import LocalAccess
from .actor import Turn
from .budget import InflightBudget, Lease
from .ensemble import refuse_recursion
from .model import Model
from .offload import Offload
from .reply import HeldPlace, Reply
from .repository import Repository
from .residents import Residents
from .routes import Routes

_WITHOUT_ROOM = frozenset({RefusalReason.MODEL_SHARE, RefusalReason.BUDGET, RefusalReason.CALLER_LIMIT})


class Admission:
    """The part of `InferenceServer` that admits requests.

    Args:
        offload: for checks that take long.
        request_log: records what clients ask; None for no log.

    Attributes:
        exiting: only running sequences may go on.
        refusals: of requests and connections, as far as they are of no model.
        turn: in which jobs are handed in.
        routes: names for which models answer.
        access: decides who may make which call, and how often; None if anyone may.
        residents: which models are in memory; None if none are loaded on demand.
    """

    passes_on = False
    turn: Turn
    routes: Routes
    _repository: Repository
    _clock: Clock

    def __init__(
        self,
        budget: InflightBudget,
        on_request: Callable[[InferenceRequest, int], None] | None,
        offload: Offload,
        access: LocalAccess | None = None,
        request_log: RequestRecorder | None = None,
    ) -> None:
        self.exiting = False
        self.access = access
        self.residents: Residents | None = None
        self.offload = offload
        self._budget = budget
        self._on_request = on_request
        self._recorder = request_log
        self._lines = RequestLines()
        self.refusals = RefusalCounts()

    def note_refusal(
        self, why: TriremeError | RefusalReason, name: str = "", version: int | None = LATEST, times: int = 1
    ) -> None:
        """Count a request that is refused, unless the error says that it has been counted.

        Args:
            name, version: of the model, as asked for. They need not exist.
            times: so many such requests, if it is not one.
        """
        reason = reason_to_count(why)
        if reason is None:
            return
        of_model: Counts | None = None
        if name and version is not None and not self.routes.is_route(name, version):
            with suppress(TriremeError):
                statistics = self._repository.find(name, version).statistics
                of_model = statistics.refused
                if statistics.tap.watched:
                    now_ns = self._clock.now_ns()
                    statistics.tap.note_request(now_ns, now_ns, reason, times=times)
        self.refusals.count(reason, of_model, times)

    def describe(self, name: str, version: int = LATEST) -> ModelDescription:
        """A ready model version.

        Raises:
            TriremeError: there is none (docs/reference/errors.md#model-lookup).
        """
        try:
            return self._repository.describe(name, version)
        except NotFoundError:
            if self.residents is not None and self.residents.may_appear(name):
                raise ColdModelError(name) from None
            raise

    def with_adapter(self, adapter: str) -> list[ModelDescription]:
        """See `Facade`."""
        names = {model.name for model in self._repository.models() if model.ready and adapter in model.adapters}
        latest = [self._repository.describe(name) for name in sorted(names)]
        return [each for each in latest if adapter in each.adapters]

    def describe_known(self, name: str, version: int = LATEST) -> ModelDescription:
        """The same, of what the repositories held when they were looked at last."""
        return self._repository.describe(name, version)

    async def want(self, name: str, timeout_us: int = 0) -> None:
        """Wait until a model is in memory, if it is loaded on demand. It stays there for a moment.

        Args:
            timeout_us: how long to wait at most; 0 for as long as it takes.

        Raises:
            TriremeError: it cannot be loaded, or not in time.
        """
        if self.residents is not None:
            await self.residents.want(name, timeout_us)

    async def admit(
        self, request: InferenceRequest, lease: Lease | None = None, model: ModelDescription | None = None
    ) -> Reply:
        """Check a request and hand it to its model. Suspends only while the server-wide budget is used up, or its
        model's share. The request is not queued yet when this returns: that the model's queue is full, or the model
        stopping, is said by the reply (`Reply.admitted`, `Reply.accepted`).

        Args:
            lease: what the request has taken of the budget while it arrived. It is closed at the final answer, or by
                this call if that raises.
            model: what `describe` said of the model and version that the request names, which spares looking it up
                again, while it holds. It decides nothing.

        Raises:
            TriremeError: refused: no such model, invalid, stopping; its model has too much in flight, and the lease was
                not made for that model.
        """
        if self.residents is None:
            return await self._admit(request, lease, model)
        with ExitStack() as undo:
            if lease is not None:
                undo.callback(lease.close)
            visit = await self.residents.hold(partial(self.find, request, model), request, lease is not None)
            undo.pop_all()
        with visit:
            return await self._admit(request, lease, None)

    async def _admit(
        self, request: InferenceRequest, lease: Lease | None = None, model: ModelDescription | None = None
    ) -> Reply:
        """`admit`, when its model is in memory."""
        received_ns = self._clock.now_ns()
        with ExitStack() as undo:
            if lease is not None:
                undo.callback(lease.close)
            found = self.find(request, model)
            self._tell_if_refused(request, undo)
            if self._recorder is not None:
                undo.push(partial(self._log_refused, request))
            budget, share, readers = self._budget, found.share, found.region_readers
            large = is_large(request, found.validator)
            slow = large and not reads_little(request, found.validator, readers)
            if large and lease is None:
                lease = budget.lease(share)
                undo.callback(lease.close)
            if slow and lease is not None and check_takes_long(request, found.validator):
                await self._hold_strings(request, lease)
                inputs, rows = await self.offload(found.validator.check, request)
            else:
                inputs, rows = found.validator.check(request)
            nbytes = sum([tensor.nbytes for tensor in inputs.values()])
            holder = share if lease is None else lease

            def hand_in(waited: bool) -> Reply | None:
                """There is room. None if a thread has something to do first."""
                if slow and request.in_regions:
                    return None
                with ExitStack() as release:
                    release.callback(holder.release, nbytes)
                    tensors = read_regions_now(inputs, request, readers, large=large) if request.in_regions else inputs
                    again = found, tensors, rows
                    if (waited or large) and not found.ready:
                        again = self._check_again_now(found, request, tensors, rows)
                    release.pop_all()
                return None if again is None else self._hand_in(request, *again, nbytes, received_ns, holder)

            taking = budget.admit(lease, share, nbytes, hand_in) if lease else budget.take(share, nbytes, hand_in)
            reply = await taking
            if reply is None:
                if request.in_regions and slow:  # the holder is a lease, which is closed below
                    inputs = await self.offload(read_regions_now, inputs, request, readers)
                if not found.ready:
                    found, inputs, rows = await self._check_again(found, request, inputs, rows, holder, nbytes)
                reply = self._hand_in(request, found, inputs, rows, nbytes, received_ns, holder)
            undo.pop_all()
        return reply

    def admit_nowait(
        self, request: InferenceRequest, *, lease: Lease | None = None, model: ModelDescription | None = None
    ) -> Reply | None:
        """`admit`, except that nothing is done, and None returned, while the server-wide budget is used up, or if the
        check takes long; then the lease, which may have grown, is still the caller's.

        Raises:
            TriremeError: refused: no such model, invalid, its model has too much in flight, stopping.
        """
        try:
            received_ns = self._clock.now_ns()
            found = self.find(request, model)
            share, validator, budget = found.share, found.validator, self._budget
            large = False
            known = validator.recall(request)
            if known is not None:
                inputs, rows, nbytes = known
            else:
                if request.in_regions or validator.takes_strings:
                    large = is_large(request, validator)
                    if large and not reads_little(request, validator, found.region_readers):
                        return None  # a thread is to check it, or to read its inputs
                inputs, rows = validator.check(request)
                nbytes = sum([tensor.nbytes for tensor in inputs.values()])
            if found.scheduler.turns_away:
                self._turn_away(found, request, inputs, rows, received_ns)
            if not (budget.take_nowait(share, nbytes) if lease is None else budget.admit_nowait(lease, share, nbytes)):
                return None
            holder = share if lease is None else lease
            if request.in_regions:
                with ExitStack() as undo:
                    undo.callback(holder.release, nbytes)
                    inputs = read_regions_now(inputs, request, found.region_readers, large=large)
                    undo.pop_all()
            return self._hand_in(request, found, inputs, rows, nbytes, received_ns, holder)
        except ColdModelError:
            return None  # it waits for its model
        except Exception as error:
            if lease is not None:
                lease.close()
            if request.routing is not None:
                self.routes.refused(request, error)
            if self._recorder is not None:
                self._log_refused(request, None, error)
            raise

    def admit_inner(self, request: InferenceRequest, description: ModelDescription | None) -> Reply:
        """`admit_nowait`, for what a model asks while it serves a request: does not wait for room (`model_calls`).

        Raises:
            TriremeError: refused: invalid, stopping, or waiting for itself (`ensemble.refuse_recursion`).
        """
        received_ns = self._clock.now_ns()
        model = self.find(request, description)
        inputs, rows = model.validator.check(request)
        nbytes = sum([tensor.nbytes for tensor in inputs.values()])
        if request.callers:
            refuse_recursion(request, model)
        share = model.share
        self._budget.take_anyway(share, nbytes)
        return self._hand_in(request, model, inputs, rows, nbytes, received_ns, share, logged=False)

    def admit_copy(self, request: InferenceRequest, holder: ModelShare) -> Reply | None:
        """`admit_nowait`, for a copy of a request that was answered (`shadows`): `holder` stands in for the budget.
        None if the check takes long.

        Raises:
            TriremeError: refused: no such model, invalid, stopping.
        """
        received_ns = self._clock.now_ns()
        model = self.find(request)
        if is_large(request, model.validator) and check_takes_long(request, model.validator):
            return None
        inputs, rows = model.validator.check(request)
        nbytes = sum([tensor.nbytes for tensor in inputs.values()])
        return self._hand_in(request, model, inputs, rows, nbytes, received_ns, holder, logged=False)

    def watch_requests(self, watch: Callable[[InferenceRequest, int], None]) -> None:
        """Have something else called as `on_request` is."""
        before = self._on_request

        def both(request: InferenceRequest, rows: int) -> None:
            if before is not None:
                before(request, rows)
            watch(request, rows)

        self._on_request = watch if before is None else both

    def check_room(self, name: str, version: int = LATEST) -> None:
        """Look whether a model can take one more request, of which nothing is known yet but that.

        Raises:
            TriremeError: no such model; it has too much in flight, or its queue is full.
        """
        if self.exiting or self.routes.is_route(name, version):
            return  # whether it may still come depends on its sequence, or on which target it is for
        try:
            model = self._repository.find(name, version)
        except ColdModelError:
            return  # it waits for its model
        error = None
        if self._budget.full(model.share):
            error = model.share.refusal()
        elif model.scheduler.full:
            with self.turn:  # what stands in the queue may be about to go
                self.turn.post(model.scheduler)
            if model.scheduler.full:
                error = queue_full("")
        if error is not None:
            if self._recorder is not None and error.refusal is not None:
                self._recorder.turned_away(name, version, error.refusal.value)
            raise error

    def find(self, request: InferenceRequest, description: ModelDescription | None = None) -> Model:
        """The model that a request is for; looked for if the description does not hold any more."""
        model = None if description is None else self._repository.described.get(description)
        if model is not None and not self.exiting:
            return self._repository.answering(model, request, request.model_version) if model.stateful else model
        name, version = request.model_name, request.model_version
        if not self.exiting:
            return self.routes.find_for(request) or self._repository.find_for(request, name, version)
        model = self.routes.find_draining(request) or self._repository.find_draining(request, name, version)
        if model is None:
            raise UnavailableError(
                f"{request_prefix(request.id)}Server is stopping, scheduler for model has stopped accepting new "
                "inference requests",
                refusal=RefusalReason.STOPPING,
            )
        return model

    def _tell_if_refused(self, request: InferenceRequest, undo: ExitStack) -> None:
        """Have its route told if a request gets no further."""
        routing, routes = request.routing, self.routes
        if routing is not None:

            def tell(_kind: object, error: BaseException | None, _traceback: object) -> None:
                if isinstance(error, Exception):
                    routes.refused(request, error)

            undo.push(tell)

    def _log_refused(
        self, request: InferenceRequest, _kind: object, error: BaseException | None, _traceback: object = None
    ) -> None:
        """Log a request that there was no room for, or that its caller's limits did not let in."""
        if self._recorder is not None and isinstance(error, TriremeError) and error.refusal in _WITHOUT_ROOM:
            name, version = request.model_name, request.model_version
            self._recorder.turned_away(name, version, error.refusal.value, request.protocol)

    def _turn_away(
        self, model: Model, request: InferenceRequest, inputs: Mapping[str, Tensor], rows: int, received_ns: int
    ) -> None:
        """Refuse what its model's queue would refuse for certain, before anything is made of it. What is traced, logged
        or for a route goes all the way.

        Raises:
            UnavailableError: so it is.
        """
        if request.trace is None and request.routing is None and not self._lines.wanted:
            error = model.scheduler.turn_away(request)
            if error is not None:
                if self._on_request is not None:
                    self._on_request(request, rows)
                if self._recorder is not None:
                    group = self._recorder.arrived(request, model.config, inputs, rows, received_ns)
                    if group is not None:
                        self._recorder.refused(group, request, received_ns, error)
                self.turn.turned_away_in = self.turn.number
                try:
                    raise error
                finally:
                    del error  # its traceback leads to this frame: a cycle would be work for the garbage collector

    async def _check_again(
        self,
        model: Model,
        request: InferenceRequest,
        inputs: dict[str, Tensor],
        rows: int,
        holder: ModelShare | Lease,
        nbytes: int,
    ) -> tuple[Model, dict[str, Tensor], int]:
        """While the request waited for room, which it has got, its model was replaced; perhaps it is again, while this
        checks it. The model that it is for now, and the request's inputs and rows as that one sees them."""
        with ExitStack() as undo:
            undo.callback(holder.release, nbytes)
            while (again := self._check_again_now(model, request, inputs, rows)) is None:
                model = self.find(request)
                inputs, rows = await self.offload(_check_and_read, model, request)
            undo.pop_all()
        return again

    def _check_again_now(
        self, model: Model, request: InferenceRequest, inputs: dict[str, Tensor], rows: int
    ) -> tuple[Model, dict[str, Tensor], int] | None:
        """The same, if no thread has to do it."""
        found = self.find(request)
        if found is model:
            return model, inputs, rows
        if is_large(request, found.validator) and not reads_little(request, found.validator, found.region_readers):
            return None
        return found, *_check_and_read(found, request)

    async def _hold_strings(self, request: InferenceRequest, lease: Lease) -> None:
        """Take room for what is read before it is known whether the request is valid."""
        missing = strings_in_regions(request) - lease.nbytes if request.in_regions else 0
        if missing > 0:
            await lease.grow(missing)

    def _hand_in(
        self,
        request: InferenceRequest,
        model: Model,
        inputs: Mapping[str, Tensor],
        rows: int,
        nbytes: int,
        received_ns: int,
        holder: ModelShare | Lease,
        *,
        logged: bool = True,
    ) -> Reply:
        """Send a request, for which the budget has been taken, to its model's door.

        Args:
            logged: a client has sent it, which the request log is to tell.

        Raises:
            TriremeError: its caller is at a limit; the budget is given back.
        """
        caller = request.caller
        place: HeldPlace = holder
        if caller is not None and self.access is not None:
            place = self.access.admit(caller, nbytes, holder)
        if self.residents is not None:
            place = self.residents.visit(model.name, place)
        if self._on_request is not None:
            self._on_request(request, rows)
        reply = Reply(self.turn, place, nbytes, model.answer_window if model.config.decoupled else 0)
        job = Job(request, inputs, rows, model.name, model.version, reply, received_ns, nbytes)
        if self._recorder is not None and logged:
            group = self._recorder.arrived(request, model.config, inputs, rows, received_ns)
            if group is not None:
                self._recorder.follow(job, group)
        if self._lines.wanted:
            tell_queued(job)
        routing = request.routing
        if routing is not None and routing.choice is not None:
            self.routes.observe(job, routing.choice)
        if request.trace is not None:
            TracedReply(request.trace, job, self._clock)
        send = model.scheduler.mailbox.send_nowait
        reply.attach(job, send)
        send(job)
        return reply


def _check_and_read(model: Model, request: InferenceRequest) -> tuple[dict[str, Tensor], int]:
    """The inputs of a request, with their data, and its rows."""
    inputs, rows = model.validator.check(request)
    large = is_large(request, model.validator)
    return read_regions_now(inputs, request, model.region_readers, large=large), rows
