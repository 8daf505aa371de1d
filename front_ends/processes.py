"""The processes of front ends: started, served, and started again.

Rules:
 1. A front end that ends is started again after a delay that grows (`engine.instances.restart`), unless it was to end.
    Only its own connections are lost. When the server starts, each must listen by its start number `_MOST_STARTS`.
 2. All front ends know what was announced (`announce`) before who waits for that goes on (`settled`). One that has not
    heard of it yet when it ends is not waited for: it hears all there is to know when it starts. One that does not
    answer within `_HEAR_LIMIT_S` is ended.
 3. `drain` has all of them finish what they have. What is left when time is up is killed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from ..actors.server import InferenceServer
from ..engine.description import ActorNode
from ..engine.errors import UnavailableError
from ..engine.instances.restart import RestartPolicy
from . import kinds
from .announcer import Announcer
from .calls import CHANGING, EngineCalls
from .child_process import Child
from .link import LinkError, LinkHead
from .port import Port
from .values import read_integer, read_list, read_text

logger = logging.getLogger("trireme.front_ends")

_EXIT_LIMIT_S = 5.0
"""How long front ends may take to end that have nothing more to do."""

_HEAR_LIMIT_S = 30.0
"""How long who changes the server may wait for a front end to hear of that."""

_MOST_STARTS = 3
_MOST_ADDRESSES = 16


class FrontEnd:
    """One front end, over its restarts.

    Attributes:
        port: None while there is no process.
        addresses: where its services listen: name, host and port of each.
        heard: the last `SYNC` that it has answered.
        starts: how often its process was started.
    """

    def __init__(self, number: int, policy: RestartPolicy) -> None:
        self.number = number
        self.policy = policy
        self.port: Port | None = None
        self.addresses: list[tuple[str, str, int]] = []
        self.opened = trio.Event()
        self.failure = ""
        self.heard = 0
        self.starts = 0

    def node(self) -> ActorNode:
        """What it looks like to people."""
        state = "starting" if self.port is None else "serving"
        detail = "" if self.port is None else f"process {self.port.pid}"
        return ActorNode("front end", str(self.number), state, detail, max(0, self.starts - 1))


class FrontEnds:
    """All front ends of a server.

    Args:
        calls: what front ends may call.
        count: how many there are to be.
        start: starts the process of one, or raises an OSError.
    """

    port_class = Port

    def __init__(
        self,
        server: InferenceServer,
        calls: EngineCalls,
        count: int,
        start: Callable[[], Awaitable[Child]],
    ) -> None:
        options = server.options
        self._server = server
        self._start = start
        self._calls = calls
        self._announcer = Announcer(server)
        self._draining = False
        self._syncs = 0
        self._standing: dict[int, LinkHead] = {}
        self._heard = trio.lowlevel.ParkingLot()
        self._members = [
            FrontEnd(number, RestartPolicy(options.restart_limit, options.restart_window_s)) for number in range(count)
        ]

    @property
    def addresses(self) -> list[tuple[str, str, int]]:
        """Name, host and port of each service."""
        return list(dict.fromkeys(each for member in self._members for each in member.addresses))

    @property
    def pids(self) -> list[int]:
        """Of the processes that are alive."""
        return [member.port.pid for member in self._members if member.port is not None]

    def nodes(self) -> list[ActorNode]:
        """Its processes, for people to look at."""
        return [member.node() for member in self._members]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until drained or cancelled. Started when all front ends listen.

        Raises:
            UnavailableError: one of them cannot listen.
        """
        failure = ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_announcing)
            for member in self._members:
                nursery.start_soon(self._keep, member)
            for member in self._members:
                await member.opened.wait()
                failure = failure or member.failure
            if failure:
                nursery.cancel_scope.cancel()
            else:
                task_status.started()
        if failure:
            raise UnavailableError(failure)

    # What front ends are told.

    def _announce(self) -> None:
        for head, payload in list(self._announcer.changes()):
            for member in self._members:
                if member.port is not None:
                    member.port.say(head, payload)

    async def _keep_announcing(self) -> None:
        """Announce changes of the models, until cancelled."""
        while True:
            await self._server.changed()
            self._announce()

    async def _settled(self) -> None:
        """Wait until all front ends know what was announced up to now (rule 2)."""
        self._syncs += 1
        number = self._syncs
        waiting = [(member, member.port) for member in self._members if member.port is not None]
        for _, port in waiting:
            port.say((kinds.SYNC, number))
        with trio.move_on_after(_HEAR_LIMIT_S):
            while any(member.port is port and member.heard < number for member, port in waiting):
                await self._heard.park()
        for member, port in waiting:
            if member.port is port and member.heard < number:
                port.fail(LinkError("it does not answer"))

    def _prepare(self, name: Any, arguments: Any, payload: memoryview) -> Callable[[], Awaitable[Any]]:
        """See `EngineCalls.prepare`."""
        call = self._calls.prepare(name, arguments, payload)
        return partial(self._change, call) if name in CHANGING else call

    async def _change(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        finally:
            self._announce()
            await self._settled()

    def tell(self, head: LinkHead) -> None:
        """Tell all front ends, and those to come, what replaces what was told of this kind before."""
        self._standing[head[0]] = head
        for member in self._members:
            if member.port is not None:
                member.port.say(head)

    # One front end.

    async def _keep(self, member: FrontEnd) -> None:
        """Rule 1."""
        reason = ""
        while not self._draining:
            try:
                await self._serve(member)
            except (LinkError, OSError) as error:
                reason = str(error)
            except Exception as error:  # a defect must cost this front end only
                logger.exception("unexpected failure of front end %d", member.number)
                reason = str(error)
            self._heard.unpark_all()
            delay_s = member.policy.died(trio.current_time())
            if not member.opened.is_set() and member.policy.deaths >= _MOST_STARTS:
                member.failure = f"front end {member.number} cannot be started: {reason}"
            if self._draining or member.failure:
                break
            logger.error(
                "front end %d has ended (%s); its connections are lost, and it is started again in %.1f s",
                *(member.number, reason, delay_s),
            )
            await trio.sleep(delay_s)
        member.opened.set()

    async def _serve(self, member: FrontEnd) -> None:
        """Start a front end and serve it until it ends.

        Raises:
            LinkError: it has ended.
            OSError: it cannot be started.
        """
        child = await self._start()
        member.starts += 1
        hear = partial(self._hear, member)
        about = self._announcer.describe, self._prepare, hear, child.pid
        port = self.port_class(self._server, child.sock, child.rings, *about)
        ended, how = None, ""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child.hand_over)
                nursery.start_soon(self._introduce, member, port)
                try:
                    await port.run()
                except LinkError as error:
                    ended = error
                nursery.cancel_scope.cancel()
        finally:
            member.port = None
            how = await child.end()
            self._heard.unpark_all()
        if ended is not None:
            raise LinkError(f"{ended}; {how}")

    async def _introduce(self, member: FrontEnd, port: Port) -> None:
        """Tell a new front end all there is to know."""
        self._announce()
        member.heard = 0
        member.port = port
        for standing in self._standing.values():
            port.say(standing)
        for head, payload in self._announcer.everything():
            port.say(head, payload)
        if self._draining:
            port.say((kinds.DRAIN, 0.0))

    def _hear(self, member: FrontEnd, head: list[Any]) -> None:
        """What a front end says of itself."""
        kind = head[0]
        read_list(head, 2, 2)
        if kind == kinds.HEARD:
            member.heard = read_integer(head[1])
            self._heard.unpark_all()
        elif kind == kinds.OPENED:
            member.addresses = [
                (read_text(name), read_text(host), read_integer(port, 0, 1 << 16))
                for name, host, port in (read_list(each, 3, 3) for each in read_list(head[1], 0, _MOST_ADDRESSES))
            ]
            member.policy.started(trio.current_time())
            member.opened.set()
        elif kind == kinds.FAILED:
            reason = read_text(head[1])
            if not member.opened.is_set():
                member.failure = reason
            raise LinkError(reason)
        else:
            raise LinkError(f"a message of kind {kind!r}")

    async def drain(self, limit_s: float) -> float:
        """Rule 3; returns what is left of the time."""
        self._draining = True
        until_s = trio.current_time() + limit_s
        for member in self._members:
            if member.port is not None:
                member.port.say((kinds.DRAIN, max(0.0, limit_s)))
        with trio.move_on_at(until_s + _EXIT_LIMIT_S):
            while any(member.port is not None for member in self._members):
                await self._heard.park()
        return max(0.0, until_s - trio.current_time())
