"""The server, as a front end in another process knows it (`actors.facade.Facade`): what `api/` asks for becomes
messages to the engine, and what comes from there, replies.

Rules:
 1. A request is sent at once, or not at all: while the engine says that some of this front end's requests wait for room
    there, or while the link has none, `admit_nowait` gives None and `admit` waits. So what waits is bounded by what has
    been received. One whose lease has bytes of the engine's budget does not wait for those that wait for room: they may
    be waiting for these bytes.
 2. What must not be lost (cancellations, leases, answers taken) waits in order for room in the link. It is bounded by
    what is in flight: each request and each lease has a few such messages.
 3. A refusal is an answer to a request that was not accepted. Models are looked up here, so that requests for none go
    no further.
 4. An answer of many is sent when there is room for it here: the engine counts what has not been taken (`kinds.TAKEN`).
 5. A request that is given up is not known any more once its final answer has come; until then the engine has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import outcome
import trio

from ..actors.actor import Turn
from ..actors.budget import Lease
from ..actors.messages import Cancel
from ..actors.offload import Offload
from ..actors.reply import Reply
from ..actors.socket_readiness import Readiness
from ..engine.admission.client_bytes import ClientAccounts
from ..engine.clock import Clock, SystemClock
from ..engine.description import ModelDescription
from ..engine.errors import InvalidArgumentError, RefusalReason, TriremeError, UnavailableError
from ..engine.metrics.refusals import reason_to_count
from ..engine.options import ControlMode, ServerOptions
from ..engine.request import LATEST, InferenceRequest
from ..engine.tracing.record import Trace
from ..python_backend.child.codec import Payload
from . import kinds
from .access import RemoteAccess
from .arena import ArenaLender, gather, is_to_gather
from .borrower import NO_DESCRIPTOR
from .calls import RemoteLog, RemoteManagement, read_result
from .in_flight import ANSWERS_HERE, NO_HOLDER, AnswerCredit, InFlightCall, InFlightRequest
from .leases import RemoteBudget
from .link import NOTHING, LinkError, LinkHead
from .models import ModelMirror
from .refusals import RemoteRefusals
from .regions import RemoteRegions
from .requests import NO_DESCRIPTION, RequestWriter
from .responses import ResponseReader
from .slots import pack, packing_takes_long
from .traces import RemoteTracer
from .values import broken, read_bool, read_error, read_integer, read_list, write_error
from .waiting import WaitingLine

Send = Callable[[LinkHead, Payload], bool]
"""As `FrontEndLink.send`."""


_MOST_CALLS = 1_024
"""That are made at once. Others wait: the engine takes many more for a sign that the front end is broken."""


class RemoteServer:
    """A front end's server; see `Facade`. All but `management` is for the event loop's thread.

    Args:
        send: sends a message at the end of the turn; False if there is no room for it, of which `room` tells later.
        turn: in which messages are taken in (`received`).
        readiness, offload: of this process.
        options: `max_inflight_bytes`, `address_share` and `tensor_limits` count.
        front_ends: how many there are, which share what clients' bytes may take in memory.
        lender: of the link's segments, in which large inputs may lie (`arena`).
        ruled: the engine has access rules.
        log_settings: what the log's settings are made with, of their fields (`api.logging.LogSettings`).

    Attributes:
        ready_to_serve: the engine has told what there is.
        told: set with it.
        log: that of the engine (`api.logging.LogFacade`).
    """

    passes_on = False

    def __init__(
        self,
        send: Send,
        turn: Turn,
        readiness: Readiness,
        offload: Offload,
        options: ServerOptions,
        *,
        front_ends: int = 1,
        log_settings: Callable[..., Any] = SimpleNamespace,
        clock: Clock | None = None,
        lender: ArenaLender | None = None,
        ruled: bool = False,
    ) -> None:
        self.turn = turn
        self.readiness = readiness
        self.offload = offload
        self.options = options
        self.exiting = False
        on_demand = options.model_control_mode is ControlMode.ON_DEMAND
        self.models = ModelMirror(clock or SystemClock() if on_demand else None)
        self.shared_memory = RemoteRegions()
        self.tracer = RemoteTracer(clock or SystemClock(), self._tell)
        self.budget = RemoteBudget(self._tell)
        self.refusals = RemoteRefusals(self._tell_now)
        give_up = partial(self.refusals.count, RefusalReason.CLIENT_BYTES)
        self.client_accounts = ClientAccounts.of(
            options.max_inflight_bytes, options.address_share, give_up, processes=front_ends
        )
        self.management = RemoteManagement(self.ask, self.models.asked)
        self.log = RemoteLog(self.ask, log_settings)
        self.access = RemoteAccess(self.ask, self._tell, clock or SystemClock()) if ruled else None
        self.ready_to_serve = False
        self.told = trio.Event()
        self._send = send
        self._tell_later, self._cancel = self._tell, self._give_up  # bound once, and not for each request
        self._lender = lender
        self._writer = RequestWriter(lender)
        self._reader = ResponseReader()
        self._sent: dict[int, InFlightRequest] = {}
        self._calls: dict[int, InFlightCall] = {}
        self._unsent: deque[LinkHead] = deque()
        self._last = 0
        self._held = False
        self._full = False
        self._line = WaitingLine()
        self._leased_line = WaitingLine()
        self._calls_line = WaitingLine()

    # What `api/` asks: see `Facade`.

    def describe(self, name: str, version: int = LATEST) -> ModelDescription:
        return self.models.describe(name, version)

    def with_adapter(self, adapter: str) -> list[ModelDescription]:
        return self.models.with_adapter(adapter)

    def lease(self, name: str = "", version: int = LATEST, client: str = "") -> Lease:
        return self.budget.lease_for(name, version, client)

    def check_room(self, name: str, version: int = LATEST) -> None:
        """Only whether there is such a model: the engine refuses the request if there is no room."""
        if not self.exiting:
            self.models.describe(name, version)

    def admit_nowait(
        self, request: InferenceRequest, *, lease: Lease | None = None, model: ModelDescription | None = None
    ) -> Reply | None:
        leased = lease is not None and lease.nbytes > 0
        if self._full or (self._leased_line if leased else self._held or self._line):
            return None
        if packing_takes_long(request.inputs):
            return None
        if self._lender is not None and is_to_gather(self._lender, request):
            return None
        try:
            return self._admit(request, lease, model)
        except TriremeError:
            if lease is not None:
                lease.close()
            raise

    async def admit(
        self, request: InferenceRequest, lease: Lease | None = None, model: ModelDescription | None = None
    ) -> Reply:
        leased = lease is not None and lease.nbytes > 0
        with ExitStack() as undo:
            if lease is not None:
                undo.callback(lease.close)

            def attempt() -> Reply | None:
                return None if self._full or (self._held and not leased) else self._admit(request, lease, model)

            if packing_takes_long(request.inputs):
                await self.offload(pack, request.inputs)
            if self._lender is not None and is_to_gather(self._lender, request):
                await self.offload(gather, self._lender, request)
            reply = await (self._leased_line if leased else self._line).wait(attempt)
            undo.pop_all()
        return reply

    def _admit(self, request: InferenceRequest, lease: Lease | None, model: ModelDescription | None) -> Reply | None:
        """Send a request, whose model is known if that can be; None if there is no room."""
        if model is None:
            model = self.models.describe(request.model_name, request.model_version)
        number = self._last = self._last + 1
        description = self.models.numbers.get(model, NO_DESCRIPTION)
        trace = request.trace
        wish = None if trace is None else self.tracer.wish(trace)
        held = 0 if lease is None else self.budget.number_of(lease)
        head, payload = self._writer.write(number, request, description, held, wish)
        if not self._try(head, payload):
            self._writer.unsent()
            return None
        decoupled = model.config.decoupled
        holder: Any = NO_HOLDER if lease is None else lease
        reply = Reply(self.turn, holder, 0, ANSWERS_HERE if decoupled else 0)
        sent = self._sent[number] = InFlightRequest(number, request.id, reply, self._tell_later)
        if request.output_places is not None:
            sent.places = request.output_places
        if decoupled:
            reply.window = AnswerCredit(number, ANSWERS_HERE, self._tell_later)
        if trace is not None:
            sent.trace = trace
            self.tracer.sent(trace, number)
        if lease is not None:
            self.budget.move(lease)
        reply.attach(cast(Any, sent), self._cancel)
        return reply

    def _try(self, head: LinkHead, payload: Payload) -> bool:
        """Send a request.

        Raises:
            InvalidArgumentError: what it has beside its tensors is too long.
            UnavailableError: there is no memory for them.
        """
        try:
            sent = self._send(head, payload)
        except ValueError as error:
            self._writer.unsent()
            raise InvalidArgumentError(f"the request is too long: {error}") from None
        except OSError as error:
            self._writer.unsent()
            raise UnavailableError(f"there is no memory for the request: {error.strerror}") from None
        except MemoryError:
            self._writer.unsent()
            raise UnavailableError("there is no memory for the request; try again later") from None
        self._full = not sent
        return sent

    def _give_up(self, cancel: Cancel) -> None:
        sent: Any = cancel.job
        self._tell((kinds.CANCEL, sent.number))

    # See `calls`.

    async def ask(self, name: str, arguments: list[Any], payload: Payload) -> Any:
        """Make a call; what comes of it. Cancelling this gives it up, and does not undo it.

        Raises:
            TriremeError: what the call raises; or it is too long.
        """
        call = InFlightCall()

        def attempt() -> int | None:
            if self._unsent or len(self._calls) >= _MOST_CALLS:
                return None
            number = self._last + 1
            if not self._try((kinds.CALL, number, name, arguments), payload):
                return None
            self._last = number
            self._calls[number] = call
            return number

        number = await self._calls_line.wait(attempt)
        if call.result is not None:  # it was faster than this task
            return call.result.unwrap()
        call.task = trio.lowlevel.current_task()

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._calls.pop(number, None)
            self._tell((kinds.GIVE_UP, number))
            self._calls_line.serve()
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(give_up)

    def note_refusal(self, why: TriremeError | RefusalReason, name: str = "", version: int | None = LATEST) -> None:
        """See `Admission.note_refusal`."""
        reason = reason_to_count(why)
        if reason is None:
            return
        if name and version is not None:
            with suppress(TriremeError):
                model = self.models.describe(name, version)
                self.refusals.tell(reason, model.name, model.version)
                return
        self.refusals.tell(reason)

    def _tell_now(self, head: LinkHead) -> bool:
        return not self._unsent and self._send(head, NOTHING)

    def _tell(self, head: LinkHead) -> None:
        """Send what must not be lost (rule 2)."""
        if self._unsent or not self._send(head, NOTHING):
            self._unsent.append(head)

    # What the link tells.

    def room(self) -> None:
        """There may be room again for what was refused."""
        while self._unsent:
            if not self._send(self._unsent[0], NOTHING):
                return
            self._unsent.popleft()
        self._full = False
        self.refusals.room()
        self._calls_line.serve()
        self._leased_line.serve()
        self._line.serve()

    def received(self, head: list[Any], payload: memoryview) -> None:
        """Take in a message, inside a turn.

        Raises:
            LinkError: it is none; then nothing that comes after it can be trusted.
        """
        kind = head[0]
        if kind == kinds.ANSWER:
            self._answered(head, payload)
            return
        take = _TAKE.get(kind) if kind.__class__ is int else None
        if take is None:
            raise broken("a kind of message", kind)
        take(self, head, payload)

    def lost(self, head: list[Any], payload: memoryview) -> None:
        """The same for a message without its payload, of which nothing is to be looked at: who waits for it gets an
        error instead.

        Raises:
            LinkError: it is for no request or call, so it must not be missed.
        """
        error = write_error(UnavailableError(NO_DESCRIPTOR))
        kind = head[0]
        if kind == kinds.ANSWER:
            number = read_integer(head[1] if len(head) > 1 else None)
            sent = self._sent.get(number)
            self._reader.read_answer(head, payload, "", None if sent is None else sent.places)  # fills its slot
            self._outcome([kinds.OUTCOME, number, True, True, error], payload)
        elif kind == kinds.OUTCOME:
            _, number, final, accepted, _ = read_list(head, 5, 5)
            self._outcome([kinds.OUTCOME, number, final, accepted, error], payload)
        elif kind == kinds.RESULT:
            _, number, _, _ = read_list(head, 4, 4)
            self._result([kinds.RESULT, number, 0, error], payload)
        else:
            raise LinkError(NO_DESCRIPTOR)

    def gone(self) -> None:
        """The engine is gone: everything in flight has failed."""
        self.exiting = True
        error = UnavailableError("the server has ended")
        for sent in list(self._sent.values()):
            sent.accepted = True
            sent.reply.deliver(error, True)
        self._sent.clear()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.end(outcome.Error(UnavailableError("the server has ended")))

    def _answered(self, head: list[Any], payload: memoryview) -> None:
        """The final answer, as most are."""
        number: Any = head[1] if len(head) > 1 else None
        sent = self._sent.pop(number, None) if number.__class__ is int else None
        if sent is None:
            raise broken("the number of a request", number)
        response = self._reader.read_answer(head, payload, sent.id, sent.places)
        sent.accepted = True
        if sent.trace is not None:
            self._note(sent.trace, True)
        sent.reply.deliver(response, True)

    def _outcome(self, head: list[Any], payload: memoryview) -> None:
        number = read_integer(read_list(head, 5, 5)[1])
        sent = self._sent.get(number)
        if sent is None:
            raise broken("the number of a request", number)
        answer = self._reader.read_outcome(head, payload, sent.places)
        if answer.final:
            del self._sent[number]
        if answer.accepted and not sent.accepted:
            sent.accept()
        if sent.trace is not None and answer.accepted:
            self._note(sent.trace, answer.outcome is not None)
        sent.reply.deliver(answer.outcome, answer.final)

    def _note(self, trace: Trace, has_response: bool) -> None:
        if trace.on_response is not None:
            trace.on_response(self.tracer.clock.now_ns(), has_response)

    def _accepted(self, head: list[Any], _payload: memoryview) -> None:
        sent = self._sent.get(read_integer(read_list(head, 2, 2)[1]))
        if sent is not None and not sent.accepted:
            sent.accept()

    def _holds(self, head: list[Any], _payload: memoryview) -> None:
        self._held = bool(read_integer(read_list(head, 2, 2)[1]))
        if not self._held:
            self._line.serve()

    def _granted(self, head: list[Any], _payload: memoryview) -> None:
        _, number, nbytes = read_list(head, 3, 3)
        self.budget.granted(number, nbytes)

    def _wanted(self, head: list[Any], _payload: memoryview) -> None:
        self.budget.others_wait(read_list(head, 2, 2)[1])

    def _result(self, head: list[Any], payload: memoryview) -> None:
        _, number, nbytes, error = read_list(head, 4, 4)
        call = self._calls.pop(read_integer(number), None)
        if call is None:
            return  # it was given up
        failed = None if error is None else read_error(error)
        call.end(outcome.Value(read_result(nbytes, payload)) if failed is None else outcome.Error(failed))
        self._calls_line.serve()

    def _models(self, head: list[Any], payload: memoryview) -> None:
        self.models.read(head, payload)

    def _regions(self, head: list[Any], payload: memoryview) -> None:
        self.shared_memory.read(head, payload)

    def _state(self, head: list[Any], _payload: memoryview) -> None:
        _, exiting, traces, contexts = read_list(head, 4, 4)
        self.exiting = read_bool(exiting)
        self.tracer.update(read_bool(traces), read_bool(contexts))
        self.ready_to_serve = True
        self.told.set()

    def _rules(self, head: list[Any], _payload: memoryview) -> None:
        if self.access is not None:
            self.access.update(head)

    def __repr__(self) -> str:
        state = "exiting" if self.exiting else "serving" if self.ready_to_serve else "starting"
        return f"<RemoteServer {state}: {len(self._sent)} in flight, {len(self._unsent)} messages wait>"


_TAKE: dict[int, Callable[[RemoteServer, list[Any], memoryview], None]] = {
    kinds.OUTCOME: RemoteServer._outcome,
    kinds.ACCEPTED: RemoteServer._accepted,
    kinds.HELD: RemoteServer._holds,
    kinds.GRANTED: RemoteServer._granted,
    kinds.WANTED: RemoteServer._wanted,
    kinds.RESULT: RemoteServer._result,
    kinds.MODELS: RemoteServer._models,
    kinds.REGIONS: RemoteServer._regions,
    kinds.STATE: RemoteServer._state,
    kinds.ACCESS: RemoteServer._rules,
}

__all__ = ["LinkError", "RemoteServer", "Send"]
