"""Where clients connect: the server itself, or a front end of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import trio

from ..actors.actor import Turn
from ..actors.facade import Facade
from .clock import JumpingClock
from .entries import Entrance
from .plan import Plan, RequestPlan
from .readers import WIRES, Wire


class ConnectionPoint:
    """One of them.

    Args:
        nursery: of its clients' tasks.

    Attributes:
        open: requests that came this way and whose clients wait for their answers.
        is_gone: it has ended, and what its clients had with it.
        idle: set while it drains, when nothing is open.
    """

    def __init__(self, plan: Plan, server: Facade, turn: Turn, clock: JumpingClock, nursery: trio.Nursery) -> None:
        self.server = server
        self.turn = turn
        self.entrance = Entrance(plan, server, clock)
        self.wires = [Wire(turn) for _ in range(WIRES)]
        self.start_soon: Callable[..., None] = nursery.start_soon
        self.open: dict[int, RequestPlan] = {}
        self.is_gone = False
        self.idle: trio.Event | None = None

    def over(self, number: int) -> None:
        """A request is answered, or given up."""
        self.open.pop(number, None)
        if self.idle is not None and not self.open:
            self.idle.set()

    async def finish(self, limit_s: float) -> None:
        """Wait until nothing is open, or the time is up."""
        self.idle = trio.Event()
        if self.open:
            with trio.move_on_after(limit_s):
                await self.idle.wait()

    def unless_gone(self, call: Callable[[], None]) -> Callable[[], None]:
        """To be called later, if the service is there then."""

        def later() -> None:
            if not self.is_gone:
                call()

        return later


@contextmanager
def turns_of(services: Any) -> Iterator[None]:
    """The turns of all these services are open."""
    with ExitStack() as turns:
        for service in services:
            turns.enter_context(service.turn)
        yield
