"""Clients of front ends who ask what the server is: health, readiness, the index, statistics (`actors.facade`).

Such a question goes to the engine, and its answer comes back: what a client hears must be what the engine has said to
that very question, while it was on its way.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any, cast

from ..actors.facade import Management
from ..engine.errors import TriremeError
from ..engine.request import LATEST
from ..front_ends.borrower import NO_DESCRIPTOR
from .plan import Plan
from .plan_parts import View, ViewPlan
from .services import ConnectionPoint

SHARE = 0.6
"""Of the runs with front ends."""

MOST = 30
"""Questions of a run."""

VIEWED = "a client of a front end asked what the server is"
INVARIANT = "who asks what the server is hears what it says"


def viewed(plan: Plan) -> Plan:
    """The plan; where there are front ends, clients may ask them what the server is. Not where models are changed: what
    else is rung for hides that a front end hears late of a change."""
    chance = Random(f"views {plan.seed}")
    if not plan.front_ends.count or plan.changes or chance.random() >= SHARE:
        return plan
    end_ns = max(request.at_ns for request in plan.requests)
    views: list[ViewPlan] = []
    for _ in range(chance.randint(3, MOST)):
        at_ns, several = chance.randint(0, end_ns), chance.choice((1, 1, 2, 4))
        views += [ViewPlan(at_ns, chance.choice(tuple(View)), chance.choice(plan.models).name) for _ in range(several)]
    return replace(plan, views=tuple(views))


class HeardManagement:
    """What the engine's end of front ends calls, with what it says kept.

    Args:
        management: of the server.
    """

    def __init__(self, management: Management) -> None:
        self._management = management
        self._said: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        call: Callable[..., Awaitable[Any]] = getattr(self._management, name)

        async def heard(*arguments: Any) -> Any:
            about = json.dumps([name, *arguments], default=str)
            try:
                value = await call(*arguments)
            except TriremeError as error:
                self._said.append((about, error.message))
                raise
            self._said.append((about, json.dumps(value)))
            return value

        return heard

    def count(self) -> int:
        """How much has been said so far."""
        return len(self._said)

    def said(self, since: int, name: str, arguments: tuple[Any, ...]) -> list[str]:
        """What was said to this question since then."""
        about = json.dumps([name, *arguments])
        return [said for asked, said in self._said[since:] if asked == about]


class Views:
    """Asks, and looks whether what is heard was said.

    Args:
        runs_short: of descriptors, without which the answer may be refused.
        complain: called with a text if not.
        count: called with what happens.
    """

    def __init__(
        self,
        engine: HeardManagement,
        runs_short: bool,
        complain: Callable[[str, str], None],
        count: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._runs_short = runs_short
        self._complain = complain
        self._count = count

    def begin(self, plan: ViewPlan, service: ConnectionPoint | None, over: Callable[[], None]) -> None:
        """Have one carried out by a front end; with none, it is over at once."""
        if service is None:
            over()
        else:
            service.start_soon(self._ask, plan, service.server.management, over)

    async def _ask(self, plan: ViewPlan, management: Management, over: Callable[[], None]) -> None:
        try:
            await self._compare(plan, management)
        finally:
            over()

    async def _compare(self, plan: ViewPlan, management: Management) -> None:
        since, arguments = self._engine.count(), _arguments(plan)
        call = cast(Callable[..., Awaitable[Any]], getattr(management, plan.view.value))
        try:
            heard = json.dumps(await call(*arguments))
        except TriremeError as error:
            heard = error.message
        self._count(VIEWED)
        if heard in self._engine.said(since, plan.view.value, arguments):
            return
        if not (self._runs_short and heard == NO_DESCRIPTOR):
            about = f"{plan.view.value} of '{plan.model}', asked at {plan.at_ns} ns"
            self._complain(INVARIANT, f"{about}: a client heard {heard[:200]}, which the engine has not said to that")


def _arguments(plan: ViewPlan) -> tuple[Any, ...]:
    if plan.view in (View.MODEL_READY, View.STATISTICS):
        return plan.model, LATEST
    return (plan.at_ns % 2 > 0,) if plan.view is View.INDEX else ()
