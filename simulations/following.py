"""Clients of front ends that follow their requests, as streams do: they are told when a request is accepted
(`front_ends.kinds.FOLLOW`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from ..actors import Reply
from .clock import JumpingClock
from .events import RequestAnswered, RequestQueued
from .history import Handlers

EVERY = 3
"""One request in so many is followed, in every other run: what is told of them also wakes who waits for room in a ring,
even if it is not told of that room."""

FOLLOWED = "a client of a front end was told that its request was accepted"
IN_TIME = "who follows a request hears in time that it is accepted"


class Followers:
    """All of a run.

    Args:
        seed: of the run.
        within_ns: of the acceptance, who follows hears of it, as long as no ring was full.
        complain: called with what is broken, and how.
        count: called with what happens.

    Attributes:
        late: a ring was full, or a front end hears nothing for a while: it may take any time.
    """

    def __init__(
        self,
        seed: int,
        clock: JumpingClock,
        within_ns: int,
        late: bool,
        complain: Callable[[str, str], None],
        count: Callable[[str], None],
    ) -> None:
        self.late = late
        self._are_some = Random(f"followed {seed}").random() < 0.5
        self._clock = clock
        self._within_ns = within_ns
        self._complain = complain
        self._count = count
        self._asked_ns: dict[int, int] = {}
        self._queued_ns: dict[int, int] = {}

    def handlers(self) -> Handlers:
        return {RequestQueued: self._queued, RequestAnswered: self._answered}

    def follow(self, request: int, reply: Reply) -> None:
        """A front end has sent a request."""
        if self._are_some and request % EVERY == 0:
            self._asked_ns[request] = self._clock.now_ns()
            reply.when_accepted(partial(self._told, request))

    def _queued(self, event: RequestQueued) -> None:
        self._queued_ns.setdefault(event.request, event.at_ns)

    def _told(self, request: int) -> None:
        self._count(FOLLOWED)
        self._check(request)

    def _answered(self, event: RequestAnswered) -> None:
        """Its client has its answer; it may never have heard of the acceptance."""
        if not event.error:
            self._check(event.request)

    def _check(self, request: int) -> None:
        asked_ns, queued_ns = self._asked_ns.pop(request, None), self._queued_ns.get(request)
        if asked_ns is None or queued_ns is None:
            return  # it has been told; or the answer was found in the cache
        now_ns = self._clock.now_ns()
        if now_ns > max(queued_ns, asked_ns) + self._within_ns and not self.late:
            text = (
                f"request {request} was queued at {queued_ns} ns; who follows it has not heard of that by {now_ns} ns"
            )
            self._complain(IN_TIME, text)
