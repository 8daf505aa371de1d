"""Which copies of requests shadows get, and when: whenever no client notices.

Who asks for a copy is a *lane*: a route with its shadow. *Real* traffic is everything else that the server does.

Rules:
 1. A copy waits from the final answer of the real request on. Of a lane, at most `MOST_WAITING` copies wait, and one is
    in flight; of all bytes that copies may hold, each lane has the same part. What goes beyond is dropped: that costs
    the real request least.
 2. A copy begins when the time that the lane's copies take is at most a `PART` of all time: after one has ended, the
    next waits for `PART` times as long as that took. So it is under load, whatever the load is.
 3. Or it begins when no real request has come, and none was in flight, for `QUIET_TIMES` as long as the lane's copies
    take, and for `LEAST_QUIET_S`: then it is improbable that one comes while the copy is in flight.
 4. A copy that waited for `WAIT_LIMIT_S` is dropped. One that is not answered `ANSWER_LIMIT_S` after it began is given
    up, and the lane is *hanging* until its answer comes, if ever: its copies are dropped.
 5. A lane that is gone (the route changed, or the server stops) drops what waits, and gives up what is in flight. What
    is in flight holds its bytes until its final answer.
 6. No pause by rule 2 or 3 is longer than `LONGEST_PAUSE_S`.
 7. Real traffic is only looked at when something is to be decided; what is seen then counts as if it had just come.

States of a lane:

    FREE ─ begin ▶ BUSY ─ answer ▶ FREE          BUSY ─ rule 4 ▶ HANGING ─ answer ▶ FREE
    FREE ─ rule 5 ▶ GONE          BUSY ─ rule 5 ▶ HANGING, and GONE with the answer, unless the lane has come back
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MOST_WAITING = 32
PART = 100
QUIET_TIMES = 50
LEAST_QUIET_S = 0.02
WAIT_LIMIT_S = 60.0
ANSWER_LIMIT_S = 10.0
LONGEST_PAUSE_S = 300.0

_BESIDES_S = 0.0001
"""What a copy takes that is not measured: to be kept, to wake the loop, to be forgotten."""

W = TypeVar("W")


class CopyDropped(enum.Enum):
    """Why a request was not copied, or its copy not asked for. The value is how metrics call it."""

    __hash__ = object.__hash__

    FULL = "full"  # rule 1
    MEMORY = "memory"  # rule 1, or the server needs its memory for others
    SHARED_MEMORY = "shared_memory"  # tensors in a client's shared memory, which the client may be using again
    TOO_LARGE = "too_large"  # to check it would hold up others
    NOT_READY = "not_ready"  # the shadow's model cannot serve, or does not fit the route
    REFUSED = "refused"  # by the model's queue
    HANGING = "hanging"  # rule 4
    LATE = "late"  # rule 4
    GONE = "gone"  # rule 5


@dataclass(slots=True, eq=False)
class ShadowCopy(Generic[W]):
    """One copy.

    Attributes:
        lane: of which it is.
        nbytes: that it holds, answers of the real request included.
        since_s: when the real request was answered.
        given_up: nothing will be made of its answer.
    """

    lane: Hashable
    nbytes: int
    work: W
    since_s: float
    begun_s: float = math.inf
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class BeginCopy(Generic[W]):
    """Ask the shadow; `CopyQueue.ended` is to follow, whatever happens."""

    copy: ShadowCopy[W]


@dataclass(frozen=True, slots=True)
class GiveUpCopy(Generic[W]):
    """Cancel what is in flight: it takes too long."""

    copy: ShadowCopy[W]


@dataclass(frozen=True, slots=True)
class DropCopy(Generic[W]):
    """Forget what waits."""

    copy: ShadowCopy[W]
    reason: CopyDropped


CopyAction = BeginCopy[W] | GiveUpCopy[W] | DropCopy[W]


@dataclass(slots=True, eq=False)
class _Lane(Generic[W]):
    waiting: deque[ShadowCopy[W]] = field(default_factory=lambda: deque(maxlen=MOST_WAITING))
    flying: ShadowCopy[W] | None = None
    nbytes: int = 0
    took_s: float = 0.0  # on average, of late
    free_s: float = -math.inf  # rule 2
    gone: bool = False  # kept for what is in flight

    @property
    def hanging(self) -> bool:
        return self.flying is not None and self.flying.given_up

    def quiet_s(self) -> float:
        """Rule 3."""
        return min(max(LEAST_QUIET_S, QUIET_TIMES * self.took_s), LONGEST_PAUSE_S)


class CopyQueue(Generic[W]):
    """The copies of a server. All times are seconds of one clock.

    Args:
        byte_limit: most bytes that copies may hold.

    Attributes:
        nbytes: that they hold.
    """

    def __init__(self, byte_limit: int, now_s: float) -> None:
        self._byte_limit = byte_limit
        self._lanes: dict[Hashable, _Lane[W]] = {}
        self._quiet_since_s = now_s
        self.nbytes = 0

    @property
    def busy(self) -> bool:
        """Whether a copy has begun, and is not over."""
        return any(lane.flying is not None for lane in self._lanes.values())

    def waiting(self, lane: Hashable) -> int:
        """How many copies wait there."""
        found = self._lanes.get(lane)
        return 0 if found is None else len(found.waiting)

    def replace_lanes(self, lanes: Collection[Hashable]) -> list[CopyAction[W]]:
        """Which lanes there are from now on; what follows for copies of others (rule 5)."""
        actions: list[CopyAction[W]] = []
        for each in lanes:
            self._lanes.setdefault(each, _Lane())
        for each, lane in list(self._lanes.items()):
            lane.gone = each not in lanes
            if lane.gone:
                actions += [DropCopy(copy, CopyDropped.GONE) for copy in self._empty(lane)]
                if lane.flying is None:
                    del self._lanes[each]
                elif not lane.flying.given_up:
                    lane.flying.given_up = True
                    actions.append(GiveUpCopy(lane.flying))
        return actions

    def full(self, lane: Hashable) -> CopyDropped | None:
        """Why no copy at all may wait there now; None if one may."""
        found = self._lanes.get(lane)
        if found is None or found.gone:
            return CopyDropped.GONE
        if len(found.waiting) >= MOST_WAITING:
            return CopyDropped.FULL
        return CopyDropped.HANGING if found.hanging else None

    def put(self, lane: Hashable, nbytes: int, work: W, now_s: float) -> CopyDropped | None:
        """Have a copy wait; or why it may not."""
        reason = self.full(lane)
        if reason is not None:
            return reason
        found = self._lanes[lane]
        if found.nbytes + nbytes > self._byte_limit // len(self._lanes):
            return CopyDropped.MEMORY
        found.waiting.append(ShadowCopy(lane, nbytes, work, now_s))
        found.nbytes += nbytes
        self.nbytes += nbytes
        self._quiet_since_s = now_s
        return None

    def see_traffic(self, now_s: float) -> None:
        """Real requests have come since the last look, or are in flight (rule 7)."""
        self._quiet_since_s = now_s

    def next_action(self, now_s: float) -> CopyAction[W] | None:
        """What is to be done now, to be asked until it is nothing."""
        for lane in self._lanes.values():
            flying, waiting = lane.flying, lane.waiting
            if flying is not None and not flying.given_up and now_s >= flying.begun_s + ANSWER_LIMIT_S:
                flying.given_up = True
                return GiveUpCopy(flying)
            if not waiting:
                continue
            if lane.hanging:
                return DropCopy(self._take(lane), CopyDropped.HANGING)
            if now_s >= waiting[0].since_s + WAIT_LIMIT_S:
                return DropCopy(self._take(lane), CopyDropped.LATE)
            if flying is None and now_s >= self._begin_s(lane):
                copy = lane.flying = waiting.popleft()
                copy.begun_s = now_s
                return BeginCopy(copy)
        return None

    def next_s(self) -> float:
        """When to ask for actions again, if nothing else happens; infinity for never."""
        next_s = math.inf
        for lane in self._lanes.values():
            if lane.flying is not None and not lane.flying.given_up:
                next_s = min(next_s, lane.flying.begun_s + ANSWER_LIMIT_S)
            if lane.waiting:
                begin_s = self._begin_s(lane) if lane.flying is None else math.inf
                next_s = min(next_s, begin_s, lane.waiting[0].since_s + WAIT_LIMIT_S)
        return next_s

    def ended(self, copy: ShadowCopy[W], took_s: float, now_s: float) -> None:
        """A copy that has begun is over, and so is all work that it made.

        Args:
            took_s: how long it kept others from working: what it waited in queues is none of it. 0 if it never got
                to its model.
        """
        lane = self._lanes[copy.lane]
        lane.flying = None
        lane.nbytes -= copy.nbytes
        self.nbytes -= copy.nbytes
        if lane.gone:
            del self._lanes[copy.lane]
            return
        took_s += _BESIDES_S
        lane.took_s = took_s if not lane.took_s else lane.took_s + (took_s - lane.took_s) / 4
        lane.free_s = now_s + min(PART * took_s, LONGEST_PAUSE_S)

    def drop_all(self, reason: CopyDropped) -> list[CopyAction[W]]:
        """Drop all that wait: others need the memory."""
        return [DropCopy(copy, reason) for lane in self._lanes.values() for copy in self._empty(lane)]

    def _begin_s(self, lane: _Lane[W]) -> float:
        """Rules 2 and 3."""
        return min(lane.free_s, self._quiet_since_s + lane.quiet_s())

    def _take(self, lane: _Lane[W]) -> ShadowCopy[W]:
        copy = lane.waiting.popleft()
        lane.nbytes -= copy.nbytes
        self.nbytes -= copy.nbytes
        return copy

    def _empty(self, lane: _Lane[W]) -> list[ShadowCopy[W]]:
        return [self._take(lane) for _ in range(len(lane.waiting))]
