"""The clients of a swarm run: they send what the plan says, when it says so, and take their answers.

One task sends everything, as one front end would; a client needs a task of its own only to wait in it (`Manner.WAITS`),
or while the server-wide budget is used up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from functools import partial

import numpy as np
import trio

from ..actors import InferenceServer, Reply
from ..actors.budget import Lease
from ..engine.backends.services import Question
from ..engine.errors import TriremeError
from ..engine.request import InferenceRequest, InferenceResponse
from .changers import FromOutside, Inside
from .clock import JumpingClock
from .due_calls import DueCalls
from .entries import ARRIVING
from .events import ChangeAsked, ChangeDone, RequestAbandoned, RequestAnswered, RequestRefused, RequestSubmitted
from .front_ends import NOWHERE, VirtualFrontEnds
from .graphs import Graphs
from .history import Recorder, error_text
from .invariants.serving import UNKNOWN
from .plan import UNKNOWN_MODEL, Change, ChangePlan, Manner, Plan, ProbePlan, RequestPlan
from .plan_parts import RegionChange, ViewPlan
from .readers import Reader, record_taken, when_final
from .regions import is_left, is_lost_late, spoil
from .requests import RequestMaker
from .self_checks import Probes
from .services import ConnectionPoint, turns_of
from .traced import Traces
from .workloads import WayIn


class Driver:
    """Sends a plan's requests.

    Attributes:
        done: nothing is left to send, and every reply is final, whether or not anybody still waits for it.
        replies: those that may not have been taken, by request.
        misled: called with a text when a client has an answer that is not to its request.
        touch: changes a model's files, if the plan wants that.
        followed: waits until the server has followed them, if it does so by itself; why it could not.
        changing: changes of models that were not asked for, or are not done.
        probes: asks whether models are ready.
    """

    def __init__(
        self,
        plan: Plan,
        server: InferenceServer,
        clock: JumpingClock,
        recorder: Recorder,
        misled: Callable[[str], None],
        traces: Traces,
        touch: Callable[[ChangePlan], None],
        followed: Callable[[str], Awaitable[str]],
    ) -> None:
        self.done = trio.Event()
        self.replies: dict[int, Reply] = {}
        self._server = server
        self._attending = plan.attending
        self._plan = plan
        self._clock = clock
        self.front_ends: VirtualFrontEnds | None = None
        self._recorder = recorder
        self._misled = misled
        self.traces = traces
        self._graphs = Graphs(plan)
        self._requests = RequestMaker(plan)
        self._models = {model.name: model for model in plan.models}
        self._left: dict[int, InferenceRequest] = {}  # whose inputs are left where they are
        self._decoupled = self._graphs.decoupled
        self._next: dict[int, list[RequestPlan]] = {}
        self._numbered = {request.number: request for request in plan.requests}
        self._submissions: set[int] = set()
        self._refusals: dict[int, str] = {}  # by the engine, of what came from front ends
        self._calls = DueCalls(clock, self._turns)
        self._at = self._calls.at
        self._unfinished = dict.fromkeys(request.number for request in plan.requests)
        for request in plan.requests:
            if request.after:
                self._next.setdefault(request.after, []).append(request)
            else:
                self._at(request.at_ns / 1e9, partial(self._send, request))
        self._touch = touch
        self.changing = len(plan.changes)
        self._changes = 0  # that have begun, and are not over
        self._changed_otherwise = 0  # than by front ends, of which these hear when all is done
        for change in plan.changes:
            self._at(change.at_ns / 1e9, partial(self._start_change, change))
        self.probes: Probes | None = None
        self._followed = followed if plan.poll_ns else None
        self._probing = len(plan.probes) + len(plan.views) + len(plan.region_changes)
        for probe in plan.probes:
            self._at(probe.at_ns / 1e9, partial(self._probe, probe))
        for question in (*plan.views, *plan.region_changes):
            self._at(question.at_ns / 1e9, partial(self._view, question))
        self._look_whether_done()

    @property
    def unfinished(self) -> list[int]:
        """Requests that were not sent yet, or whose reply is not final."""
        return list(self._unfinished)

    def hang_up(self) -> None:
        """The server is gone; requests that are not complete never will be."""
        self._direct.entrance.hang_up()

    async def run(self) -> None:
        """Send until cancelled. The clock calls when something is due: this task is for what has to wait, and raises
        what a call has raised."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._direct = ConnectionPoint(self._plan, self._server, self._server.turn, self._clock, nursery)
            await self._calls.make()

    def _turns(self) -> AbstractContextManager[object]:
        return turns_of(self._services()) if self._attending else nullcontext()

    def _services(self) -> list[ConnectionPoint]:
        return [self._direct, *(self.front_ends.services() if self.front_ends is not None else ())]

    def _service(self, plan: RequestPlan) -> ConnectionPoint | None:
        """Where a request's client connects; None if nothing listens."""
        if self.front_ends is None or plan.entry is WayIn.INNER or (plan.region and not self._plan.region_changes):
            return self._direct
        return self.front_ends.service(int(plan.sequence) if plan.sequence else plan.number)

    def _send(self, plan: RequestPlan) -> None:
        service = self._service(plan)
        if service is None:
            if self.front_ends is not None:
                self.front_ends.count(NOWHERE)
            self._go_on(plan)
            self._settled(plan)
            return
        service.open[plan.number] = plan
        if plan.manner is Manner.WAITS:
            service.start_soon(self._ask, plan, service)
        elif plan.entry in ARRIVING:
            service.start_soon(self._arrive, plan, service)
        else:
            self._hand_over(plan, service)

    async def _arrive(self, plan: RequestPlan, service: ConnectionPoint) -> None:
        """Hand a request over whose body arrives in parts."""
        try:
            lease = await service.entrance.arrive(plan)
        except TriremeError as error:
            self._answered(plan, error_text(error))
            return
        with service.turn if self._attending else nullcontext():
            self._hand_over(plan, service, lease)

    def _hand_over(self, plan: RequestPlan, service: ConnectionPoint, lease: Lease | None = None) -> None:
        try:
            request = self._submitted(plan, service)
            self._check_room(plan, service)
            if plan.entry is WayIn.INNER:
                reply = self._ask_inside(plan, request)
            else:
                model = service.entrance.description(plan)
                reply = service.server.admit_nowait(request, lease=lease, model=model)
        except TriremeError as error:
            if lease is not None:
                lease.close()
            self._answered(plan, error_text(error))
            return
        if reply is None:
            service.start_soon(self._ask, plan, service, request, lease)
            return
        self._is_in(plan, request, reply, service)
        if plan.manner is Manner.VANISHES:
            self.replies[plan.number] = reply
            self._go_on(plan)
            reply.notify(partial(self._settled, plan))
        else:
            if plan.model in self._decoupled:
                at = partial(self._at_unless_gone, service)
                Reader(plan, reply, self._recorder, at, self._check, self._answered)
            elif plan.entry is not WayIn.INNER:  # which listens already
                heard = partial(self._heard, plan)
                wire = service.wires[plan.number % len(service.wires)]
                reply.notify(partial(wire.write, heard) if self._attending else heard)
            if plan.give_up_ns and not reply.final:
                give_up = partial(self._give_up, plan, reply)
                self._at_unless_gone(service, self._clock.now_s() + plan.give_up_ns / 1e9, give_up)

    def _at_unless_gone(self, service: ConnectionPoint, when_s: float, call: Callable[[], None]) -> None:
        self._at(when_s, service.unless_gone(call))

    def _ask_inside(self, plan: RequestPlan, request: InferenceRequest) -> Reply:
        """As a model asks."""

        def heard(question: Question) -> None:
            for outcome, final in question.take():
                if isinstance(outcome, InferenceResponse):
                    self._check(plan, outcome)
                if not final:
                    self._misled(
                        f"request {plan.number} to '{plan.model}' was given an answer that is not the final one"
                    )
                elif plan.manner is not Manner.VANISHES:
                    self._answered(plan, error_text(outcome))

        reply = self._server.services.models.ask(request, plan.model in self._decoupled, heard)
        assert isinstance(reply, Reply), "the server's own"
        return reply

    def _submitted(self, plan: RequestPlan, service: ConnectionPoint) -> InferenceRequest:
        if service is self._direct:
            self.submitted(plan.number)
        place = None
        if service is not self._direct and self.front_ends is not None:
            place = partial(self.front_ends.memory.place, plan, service)
        request = self._requests.make(plan, place)
        return request if plan.entry is WayIn.INNER else self.traces.begin(plan.number, request, service.server.tracer)

    def submitted(self, number: int) -> None:
        """The server hears of a request."""
        if number in self._submissions:
            return
        self._submissions.add(number)
        plan, recorder = self._numbered[number], self._recorder
        recorder.record(
            RequestSubmitted(
                recorder.now_ns(),
                plan.number,
                plan.model,
                plan.rows,
                plan.priority,
                plan.timeout_us,
                plan.sequence,
                plan.start,
                plan.end,
            )
        )

    def _is_in(self, plan: RequestPlan, request: InferenceRequest, reply: Reply, service: ConnectionPoint) -> None:
        """The server has a request: its client may write to where its inputs were, unless they were left there."""
        if service is not self._direct and self.front_ends is not None:
            self.front_ends.followers.follow(plan.number, reply)
        if service is self._direct and is_left(plan, self._models.get(plan.model)) and request.trace is None:
            self._left[plan.number] = request
        else:
            spoil(request)

    def _give_up(self, plan: RequestPlan, reply: Reply) -> None:
        if not reply.final:
            self._recorder.record(RequestAbandoned(self._recorder.now_ns(), plan.number))
            reply.cancel()

    def _heard(self, plan: RequestPlan, reply: Reply) -> None:
        try:
            response = reply.answer()
        except TriremeError as error:
            self._answered(plan, error_text(error))
        else:
            self._check(plan, response)
            self._answered(plan, "")

    def _check_room(self, plan: RequestPlan, service: ConnectionPoint) -> None:
        """See `Entrance.ask`."""
        try:
            service.entrance.ask(plan)
        except TriremeError as error:
            if service is not self._direct:
                raise
            self._recorder.record(RequestRefused(self._recorder.now_ns(), plan.number, error_text(error)))
            raise

    async def _ask(
        self,
        plan: RequestPlan,
        service: ConnectionPoint,
        request: InferenceRequest | None = None,
        lease: Lease | None = None,
    ) -> None:
        """A client that waits in a task of its own; with a `request`, one that has been sent already."""
        with trio.move_on_after(plan.give_up_ns / 1e9) if plan.give_up_ns else nullcontext():
            try:
                if request is None:
                    lease = await service.entrance.arrive(plan)
                    request = self._submitted(plan, service)
                    self._check_room(plan, service)
                reply = await service.server.admit(request, lease, service.entrance.description(plan))
                self.replies[plan.number] = reply
                self._is_in(plan, request, reply, service)
                if plan.model in self._decoupled:
                    await self._read(plan, reply)
                else:
                    self._check(plan, await reply.response())
            except TriremeError as error:
                if lease is not None:
                    lease.close()
                self._answered(plan, error_text(error))
            else:
                self._answered(plan, "")
            return
        self._recorder.record(RequestAbandoned(self._recorder.now_ns(), plan.number))
        self._go_on(plan)
        reply = self.replies.get(plan.number)
        if reply is None:
            self._settled(plan)
        else:
            when_final(reply, partial(self._settled, plan))

    async def _read(self, plan: RequestPlan, reply: Reply) -> None:
        """Take the answers of a decoupled model one by one."""
        async with aclosing(reply.responses()) as responses:
            async for response in responses:
                record_taken(self._recorder, plan.number, [response])
                self._check(plan, response)
                if plan.pause_ns:
                    await self._clock.sleep(plan.pause_ns / 1e9)

    def _check(self, plan: RequestPlan, response: InferenceResponse) -> None:
        """Whether this is an answer to that request."""
        left = self._left.pop(plan.number, None)
        if left is not None:
            spoil(left)
            if is_lost_late(plan.number):
                self._misled(f"request {plan.number} was answered, though its inputs were lost")
        if self.front_ends is not None:
            self.front_ends.memory.spoil(plan.number)
        rows = response.outputs[0].shape[0] if len(response.outputs[0].shape) > 1 else 1
        if (response.id, response.model_name, rows) != (str(plan.number), plan.model, plan.rows):
            self._misled(
                f"request {plan.number} to '{plan.model}' of {plan.rows} rows was given the answer to "
                f"{response.id} from '{response.model_name}' of {rows} rows"
            )
        elif not self._graphs.remembers(plan.model):
            said = [output.array for output in sorted(response.outputs, key=lambda each: each.name)]
            truth = self._graphs.answers(plan.model, *self._requests.held(plan))
            if [array.tobytes() for array in said] != [array.tobytes() for array in truth]:
                rows = [[np.atleast_2d(array)[:, 0].tolist() for array in arrays] for arrays in (said, truth)]
                self._misled(f"request {plan.number} to '{plan.model}' was answered {rows[0]}; right is {rows[1]}")

    def refused(self, number: int, error: str) -> None:
        """The engine refuses a request of a front end, whose client will hear of that."""
        self._refusals[number] = error
        if self.front_ends is not None:
            self.front_ends.memory.refused(number, error)
        self._recorder.record(RequestAnswered(self._recorder.now_ns(), number, error))

    def _answered(self, plan: RequestPlan, error: str) -> None:
        refusal = self._refusals.get(plan.number)
        if refusal is None:
            if self.front_ends is not None and plan.number not in self._submissions:
                self._check_refusal(plan, error)
            self._recorder.record(RequestAnswered(self._recorder.now_ns(), plan.number, error))
        elif refusal != error:
            self._misled(f"request {plan.number} was refused with {refusal!r}; its client heard {error!r}")
        self._go_on(plan)
        self._settled(plan)

    def _check_refusal(self, plan: RequestPlan, error: str) -> None:
        """A front end has refused a request, of which the engine has not heard."""
        if UNKNOWN in error and plan.model != UNKNOWN_MODEL and not self._plan.changes:
            with suppress(TriremeError):
                self._server.describe(plan.model)
                self._misled(f"request {plan.number} to '{plan.model}', which is there, was refused with {error!r}")

    def _go_on(self, plan: RequestPlan) -> None:
        """Requests that waited for this answer go on, once."""
        now_s = self._clock.now_s()
        for request in self._next.pop(plan.number, ()):
            self._at(now_s + request.at_ns / 1e9, partial(self._send, request))

    def _settled(self, plan: RequestPlan, _reply: Reply | None = None) -> None:
        """The server has no more to do for this request."""
        self.traces.end(plan.number)
        del self._unfinished[plan.number]
        for service in self._services():
            service.over(plan.number)
        self._look_whether_done()

    def lost(self, service: ConnectionPoint) -> None:
        """A front end has ended, and the connections of its clients with it."""
        for plan in service.open.values():
            self.traces.lose(plan.number)
            self._recorder.record(RequestAbandoned(self._recorder.now_ns(), plan.number))
            self.replies.pop(plan.number, None)
            self._go_on(plan)

    def forsaken(self, service: ConnectionPoint, replies: Mapping[int, Reply]) -> None:
        """The engine knows of that. Requests in it are over when they have their answers."""
        for plan in list(service.open.values()):
            reply = replies.get(plan.number)
            if reply is None:
                self._settled(plan)
            else:
                when_final(reply, partial(self._settled, plan))

    def _look_whether_done(self) -> None:
        if not (self._unfinished or self.changing or self._probing):
            self.done.set()

    # Questions whether models are ready.

    def _probe(self, plan: ProbePlan) -> None:
        assert self.probes is not None, "the run has them"
        self._nursery.start_soon(self.probes.ask, plan, self._clock)

    def _view(self, plan: ViewPlan | RegionChange) -> None:
        if self.front_ends is None:
            self.probe_over()
        elif isinstance(plan, ViewPlan):
            self.front_ends.view(plan, self.probe_over)
        else:
            self.front_ends.memory.begin(plan, self.probe_over)

    def probe_over(self) -> None:
        """One of them has its answer."""
        self._probing -= 1
        self._look_whether_done()

    # Management of the models.

    def _start_change(self, plan: ChangePlan) -> None:
        self._nursery.start_soon(self._change, plan)

    def _control(self, plan: ChangePlan, service: ConnectionPoint | None) -> Inside | FromOutside:
        if service is not None:
            return FromOutside(service.server.management)
        return Inside(self._server.services.models) if plan.inside else FromOutside(self._server)

    def _changing_service(self, plan: ChangePlan) -> ConnectionPoint | None:
        """The front end that a change comes by; None if it comes otherwise."""
        front_ends = self.front_ends
        if front_ends is None or plan.inside or self._followed is not None or not front_ends.takes_changes:
            return None
        return front_ends.service(plan.at_ns)

    async def _change(self, plan: ChangePlan) -> None:
        recorder, error = self._recorder, ""
        service = self._changing_service(plan)
        recorder.record(ChangeAsked(recorder.now_ns(), plan.model, plan.text))
        self._changes += 1
        others = self._changed_otherwise
        try:
            if self._followed is not None:
                self._touch(plan)
                error = await self._followed(plan.model)
            elif plan.change in (Change.UNLOAD, Change.UNLOAD_ALL):
                await self._control(plan, service).unload(plan.model, plan.change is Change.UNLOAD_ALL)
            else:
                self._touch(plan)
                await self._control(plan, service).load(plan.model)
        except TriremeError as failure:
            error = failure.message
        recorder.record(ChangeDone(recorder.now_ns(), plan.model, plan.text, error))
        self._changes -= 1
        self._changed_otherwise += service is None
        alone = not self._changes and others == self._changed_otherwise  # else front ends may hear later of the other
        if self.front_ends is not None and service is not None and alone and not error:
            self.front_ends.check_heard(plan.model)
        self.changing -= 1
        self._look_whether_done()
