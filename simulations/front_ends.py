"""Front ends of a server in virtual time: the engine's end (`FrontEnds`, `Port`) and theirs (`Uplink`, `RemoteServer`)
are the real ones, and between them are links that are simulated (`links`). Processes are tasks, with turns of their
own.

A request counts as submitted when the engine hears of it, and one that the engine refuses as answered when it says so:
what the engine decides is judged by what it knew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count as numbers
from typing import Any, cast

import trio

from ..actors import InferenceServer, Reply
from ..actors.actor import Turn
from ..actors.budget import Lease
from ..actors.facade import Management
from ..actors.offload import Offload
from ..engine.description import ModelDescription
from ..engine.errors import TriremeError
from ..engine.request import InferenceRequest
from ..front_ends import kinds
from ..front_ends.calls import EngineCalls
from ..front_ends.child_process import Child
from ..front_ends.link import NOTHING, FrontEndLink, LinkError, LinkHead
from ..front_ends.listener import EngineListener
from ..front_ends.port import Port
from ..front_ends.processes import FrontEnds
from ..front_ends.remote_server import RemoteServer
from ..front_ends.uplink import Uplink
from .client_memory import ClientMemory
from .clock import JumpingClock
from .executors import VirtualOffload
from .following import FOLLOWED, Followers
from .front_ends_plan import HEARING_NS, FrontEndsPlan, draw_front_ends
from .history import error_text
from .links import Bells, VirtualReadiness, rings, socket_pair
from .plan import Plan
from .plan_parts import ViewPlan
from .services import ConnectionPoint
from .views import HeardManagement, Views

SETTLED_BELLS = 20
"""So many bells after the last one, each end has heard all."""

BY_FRONT_ENDS = "clients came by front ends"
KILLED = "a front end was killed"
AGAIN = "a front end was started again"
LOST = "a request was lost with its front end"
NOWHERE = "nothing listened"
FULL_THERE = "a front end's ring was full"
FULL_HERE = "an answer waited for room in a ring"
HELD = "a front end's request waited for room in the engine"
SEGMENT = "a tensor of a front end lay in a segment"
FORSAKEN = "a request of a front end that was gone was executed"
NO_DESCRIPTOR_LEFT = "there was no descriptor for a segment"
CUT = "a front end was cut off with requests"

REACHABLE_FRONT_ENDS = (
    FOLLOWED,
    *(BY_FRONT_ENDS, KILLED, AGAIN, LOST, NOWHERE, FULL_THERE, FULL_HERE, HELD, SEGMENT, FORSAKEN),
    *(NO_DESCRIPTOR_LEFT, CUT),
)

DEATHS_ARE_FAULTS = "front ends die of faults only"
NOTHING_LEFT = "front ends know what the server is, and hold nothing when nothing is in flight"

Forsaken = Callable[[ConnectionPoint, Mapping[int, Reply]], None]
"""Told of a service that is gone, when the engine knows that: its requests in the engine that are not over."""


def fronted(plan: Plan) -> Plan:
    """The plan, whose clients may come by front ends."""
    end_ns = max(request.at_ns for request in plan.requests)
    drawn = draw_front_ends(plan.seed, end_ns, plan.calm_ns, [model.fixed_ns for model in plan.models])
    return replace(plan, front_ends=drawn)


class EngineSide:
    """The server, as its ports know it."""

    def __init__(self, server: InferenceServer, readiness: VirtualReadiness, submitted: Callable[[int], None]) -> None:
        self.readiness = readiness
        self._server = server
        self._submitted = submitted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def admit_nowait(
        self, request: InferenceRequest, *, lease: Lease | None = None, model: ModelDescription | None = None
    ) -> Reply | None:
        self._submitted(int(request.id))
        return self._server.admit_nowait(request, lease=lease, model=model)

    async def admit(
        self, request: InferenceRequest, lease: Lease | None = None, model: ModelDescription | None = None
    ) -> Reply:
        self._submitted(int(request.id))
        return await self._server.admit(request, lease, model)


class TappedPort(Port):
    """Tells what it refuses, and what it leaves in the engine at its end.

    Attributes:
        refused: called with a request's number and the error's text.
        broken: called with its process's number, and why it does not listen to that any more.
        ended: called with its process's number and the replies, by request, that are open.
        count: called with what happens.
        inline_bytes: see `FrontEndLink`.
    """

    inline_bytes: int
    refused: Callable[[int, str], None]
    broken: Callable[[int, str], None]
    ended: Callable[[int, dict[int, Reply]], None]
    count: Callable[[str], None]

    async def run(self) -> None:
        self._link.inline_bytes = self.inline_bytes
        try:
            await super().run()
        except LinkError as error:
            self.broken(self.pid, str(error))
            raise

    def _wait(self, pending: Any, sent: Any, lease: Lease | None) -> None:
        self.count(HELD)
        super()._wait(pending, sent, lease)

    def _refuse_lost(self, head: list[Any], payload: memoryview) -> None:
        self.count(NO_DESCRIPTOR_LEFT)
        super()._refuse_lost(head, payload)

    def answer(self, pending: Any) -> None:
        outcome, final = pending.unsent[-1] if pending.unsent else (None, False)
        if final and not self._closed and not (pending.reply is not None and pending.reply.accepted):
            self.refused(int(pending.name), error_text(outcome))
        super().answer(pending)
        if pending in self._blocked:
            self.count(FULL_HERE)

    def _close(self) -> None:
        replies = {int(each.name): each.reply for each in self._pending.values() if each.reply is not None}
        super()._close()
        self.ended(self.pid, {number: reply for number, reply in replies.items() if not reply.final})


class VirtualProcess:
    """A front end, in place of its process (`Child`).

    Args:
        count: called with what happens.
        stuck: it hears nothing for a while, as planned.

    Attributes:
        serves: clients can connect.
        may_end: it was killed, or is to end.
    """

    def __init__(
        self,
        number: int,
        plan: Plan,
        server: InferenceServer,
        clock: JumpingClock,
        count: Callable[[str], None],
        stuck: bool,
    ) -> None:
        told = plan.front_ends
        frozen = (told.stuck_ns, told.stuck_ns + told.stuck_for_ns) if stuck else (0, 0)
        ours = Bells(clock, told.bell_ns, told.spurious, short=told.short)
        theirs = Bells(clock, told.bell_ns, told.spurious, frozen)
        self.pid = number
        self.sock, self._sock = socket_pair(ours, theirs, number)
        self.rings, self._rings = rings(told.capacity)
        self.service: ConnectionPoint | None = None
        self.serves = False
        self.may_end = False
        self.server: RemoteServer | None = None
        self._link: FrontEndLink | None = None
        self._count = count
        self._plan = plan
        self._options = server.options
        self._clock = clock
        self._scope = trio.CancelScope()
        self._over = trio.Event()
        self._dead = False

    @property
    def borrowed(self) -> int:
        """Segments with answers that its clients keep, or that the engine is to be told of when something is sent."""
        if self._link is None:
            return 0
        borrower = self._link._borrower
        return len(borrower._borrowed) + len(borrower.returned)

    @property
    def has_heard_all(self) -> bool:
        """No bell is on its way, to it or from it."""
        return self.sock.next_s() is None and self._sock.next_s() is None

    async def run(self, offload: Offload) -> None:
        """Live until killed, drained, or left by the engine."""
        try:
            with self._scope:
                await self._live(offload)
        finally:
            self.serves = False
            self._dead = True
            self._over.set()

    async def _live(self, offload: Offload) -> None:
        turn = Turn()
        readiness = VirtualReadiness(self._clock, turn)
        readiness.know(self._sock)
        uplink = Uplink(self._sock, self._rings, turn)
        told = self._plan.front_ends
        uplink._link.inline_bytes = told.inline_bytes
        self._link = uplink._link

        def send(head: LinkHead, payload: Any = NOTHING) -> bool:
            if self._dead:
                return False
            sent = uplink.send(head, payload)
            if not sent:
                self._count(FULL_THERE)
            elif payload.nbytes > told.inline_bytes:
                self._count(SEGMENT)
            return sent

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(turn.keep_running)
                server = self.server = RemoteServer(
                    *(send, turn, readiness, offload, self._options), front_ends=told.count, clock=self._clock
                )
                listener = EngineListener(server, send, _ignore)
                self.service = ConnectionPoint(self._plan, cast(Any, server), turn, self._clock, nursery)
                nursery.start_soon(self._serve, listener, self.service)
                with suppress(LinkError):  # the engine is gone
                    await uplink.run(listener, readiness)
                nursery.cancel_scope.cancel()
        finally:
            self._dead = True
            uplink.close()

    async def _serve(self, listener: EngineListener, service: ConnectionPoint) -> None:
        """As `api.cli.front_end` does."""
        assert self.server is not None, "it is there"
        await self.server.told.wait()
        listener.tell((kinds.OPENED, []))
        self.serves = True
        await listener.drains.wait()
        self.serves = False
        self.may_end = True
        await service.finish(listener.drains_s)
        if service.open:
            self._count(CUT)
        self._scope.cancel()

    def kill(self) -> None:
        self.serves = False
        self.may_end = True
        self._dead = True
        self._scope.cancel()

    # See `Child`.

    async def hand_over(self) -> None:
        """It has its settings."""

    async def end(self) -> str:
        with trio.CancelScope(shield=True):
            if not self._over.is_set():
                self.kill()
                await self._over.wait()
        return "it is over"


def _said_of(server: Any, name: str) -> Any:
    """What a server says of a model."""
    try:
        description: ModelDescription = server.describe(name)
    except TriremeError as error:
        return error.message
    return description.name, description.version, description.config.message.SerializeToString(deterministic=True)


def _ignore(**_settings: object) -> None:
    """There is no log."""


class VirtualFrontEnds:
    """All front ends of a run.

    Args:
        submitted: called with the number of a request when the engine hears of it.
        refused: called with that, and with the text of the error.
        lost: called with a service whose process has ended.
        forsaken: see `Forsaken`.
        complain: called with what is broken, and how.
        count: called with what happens.

    Attributes:
        memory: that its clients share with it.
    """

    def __init__(
        self,
        plan: Plan,
        server: InferenceServer,
        clock: JumpingClock,
        submitted: Callable[[int], None],
        refused: Callable[[int, str], None],
        lost: Callable[[ConnectionPoint], None],
        forsaken: Forsaken,
        complain: Callable[[str, str], None],
        count: Callable[[str], None],
    ) -> None:
        self.plan: FrontEndsPlan = plan.front_ends
        self._whole_plan = plan
        self._server = server
        self._clock = clock
        self._lost = lost
        self._forsaken = forsaken
        self._complain = complain
        within_ns = SETTLED_BELLS * self.plan.bell_ns
        self.followers = Followers(plan.seed, clock, within_ns, bool(self.plan.stuck_for_ns), complain, count)
        self._count_event = count
        self._numbers = numbers(1)
        self._started_s = 0.0  # the last one
        self._living: dict[int, VirtualProcess] = {}
        self._left: dict[int, dict[int, Reply]] = {}  # by process, once its port has ended
        self._gone: dict[int, ConnectionPoint] = {}  # by process, once that has ended
        self._readiness = VirtualReadiness(clock, server.turn)
        self._offload = VirtualOffload(partial(clock.sleep, plan.offload_ns / 1e9))

        class Tapped(TappedPort):
            pass

        class Played(FrontEnds):
            port_class = Tapped

        Tapped.inline_bytes = self.plan.inline_bytes
        Tapped.refused, Tapped.ended = staticmethod(refused), staticmethod(self._port_ended)
        Tapped.broken, Tapped.count = staticmethod(self._port_broken), staticmethod(self.count)
        engine = EngineSide(server, self._readiness, submitted)
        self.memory = ClientMemory(plan, self.service, complain, self.count)
        server.shared_memory = self.memory.regions
        heard = HeardManagement(server.management)
        self._views = Views(heard, self.plan.short > 0, complain, count)
        calls = EngineCalls(cast(Management, heard))
        self._members = Played(cast(InferenceServer, engine), calls, self.plan.count, self._start)

    def count(self, what: str) -> None:
        """It has happened once more."""
        if what in (FULL_THERE, FULL_HERE):
            self.followers.late = True
        self._count_event(what)

    @property
    def takes_changes(self) -> bool:
        """Models can be loaded and unloaded by them: none ends before it is asked to, and none is refused it."""
        return not (self.plan.deaths_ns or self.plan.stuck_for_ns or self.plan.short)

    def service(self, key: int) -> ConnectionPoint | None:
        """Where a client connects; None if there is no front end that serves."""
        serving = [each.service for each in self._living.values() if each.serves]
        return serving[key % len(serving)] if serving else None

    def view(self, plan: ViewPlan, over: Callable[[], None]) -> None:
        """A client asks what the server is, if there is a front end that serves."""
        self._views.begin(plan, self.service(plan.at_ns), over)

    def services(self) -> list[ConnectionPoint]:
        """Those that serve."""
        return [each.service for each in self._living.values() if each.serves and each.service is not None]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Serve within the block; then they are drained."""
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self._members.run)
            self._nursery.start_soon(self._kill)
            self.count(BY_FRONT_ENDS)
            yield
            for process in self._living.values():
                process.may_end = True
            if not self.plan.abandons:
                await self._members.drain(self._server.options.exit_timeout_s)
            self._nursery.cancel_scope.cancel()

    async def settled(self) -> None:
        """Wait until what was said has been heard, also by those that have just been started again."""
        told = self.plan
        bells_s = SETTLED_BELLS * told.bell_ns / 1e9
        await self._clock.sleep(bells_s + (told.stuck_ns + told.stuck_for_ns) / 1e9)
        while self._clock.now_s() < self._started_s + bells_s:
            await self._clock.sleep(bells_s)
        for _ in range(SETTLED_BELLS):  # segments that are not needed any more are given back now and then
            if all(process.has_heard_all for process in self._living.values()):
                return
            await self._clock.sleep(told.bell_ns / 1e9)

    def check_heard(self, model: str) -> None:
        """Whether all front ends know a model as it is."""
        right = _said_of(self._server, model)
        for process in self._living.values():
            if process.serves and process.server is not None and _said_of(process.server, model) != right:
                said = _said_of(process.server, model)
                self._complain(NOTHING_LEFT, f"front end {process.pid} says of '{model}': {said}; right is {right}")

    def left(self) -> Iterator[str]:
        """What front ends and ports hold, a text each, when nothing is in flight and all is heard."""
        for model in self._whole_plan.models:
            self.check_heard(model.name)
        for process in self._living.values():
            server = process.server
            if not process.serves or server is None:
                continue
            self.memory.check(process.pid, server.shared_memory)
            held = server._sent, server._unsent, server._calls, server._line, server._calls_line
            if any(held) or server.budget._by_number or server._full or server._held:
                yield f"front end {process.pid} has left {server!r}"
        for member in self._members._members:
            port = member.port
            if port is None:
                continue
            held = port._pending, port._blocked, port._unsent, port._news, port._leases._held, port._calls._scopes
            if any(held):
                yield f"a port has left {port!r}"
            process = self._living.get(port.pid)
            kept = 0 if process is None else process.borrowed
            if len(port._link.lender._lent) > kept:
                yield f"a port has left segments {list(port._link.lender._lent)}"

    async def _start(self) -> Child:
        await trio.lowlevel.checkpoint()
        number = next(self._numbers)
        if number > self.plan.count:
            self.count(AGAIN)
        about = number, self._whole_plan, self._server, self._clock, self.count
        process = VirtualProcess(*about, stuck=number == 1)
        self._readiness.know(process.sock)
        self._living[number] = process
        self._started_s = self._clock.now_s()
        self._nursery.start_soon(self._live, process)
        return process

    async def _live(self, process: VirtualProcess) -> None:
        try:
            await process.run(self._offload)
        finally:
            service = process.service
            del self._living[process.pid]
            if service is not None:
                service.is_gone = True
                for _ in service.open:
                    self.count(LOST)
                self._lost(service)
                self._gone[process.pid] = service
                self._tell_forsaken(process.pid)

    def _port_broken(self, pid: int, why: str) -> None:
        process = self._living.get(pid)
        if process is not None and not process.may_end and not self._may_be_ended(pid):
            self._complain(DEATHS_ARE_FAULTS, f"front end {pid} is ended: {why}")

    def _may_be_ended(self, pid: int) -> bool:
        """Whether it may have been silent for so long that the engine ends it."""
        return pid == 1 and self.plan.stuck_for_ns >= HEARING_NS

    def _port_ended(self, pid: int, replies: dict[int, Reply]) -> None:
        self._left[pid] = replies
        for number, reply in replies.items():
            job = reply._job
            if job is not None and not (job.cancelled or job.answered):
                self._complain(DEATHS_ARE_FAULTS, f"front end {pid} is gone, and its request {number} goes on")
            self.count(FORSAKEN)
        self._tell_forsaken(pid)

    def _tell_forsaken(self, pid: int) -> None:
        if pid in self._gone and pid in self._left:
            self._forsaken(self._gone.pop(pid), self._left.pop(pid))

    async def _kill(self) -> None:
        for when_ns in self.plan.deaths_ns:
            await self._clock.sleep(max(0.0, when_ns / 1e9 - self._clock.now_s()))
            serving = next((each for each in self._living.values() if each.serves), None)
            if serving is not None:
                self.count(KILLED)
                serving.kill()
