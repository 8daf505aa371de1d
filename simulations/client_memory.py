"""Shared memory of clients of front ends: a segment that one of them registers by a front end, in which all have their
places, and whose registration changes while they send (`front_ends.regions`).

As soon as a call that changes it is answered, each front end knows the region with its size, or that there is none.

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import trio

from ..actors.facade import Management
from ..engine.datatypes import FP32
from ..engine.errors import TriremeError
from ..engine.memory.cuda import RegionKind
from ..engine.memory.regions import Loan, Region, Regions
from ..engine.tensor import Tensor
from .plan import Plan, RequestPlan
from .plan_parts import RegionChange
from .regions import HeldRegion, held_part, in_place
from .services import ConnectionPoint
from .workloads import WayIn

SHARE = 0.6
"""Of the runs with front ends and requests whose inputs are in shared memory."""

MOST = 6
"""Changes of a run."""

NAME = "memory of clients"
UNKNOWN = "Unable to find shared memory region"
INVALID = "for shared memory region"
"""How it begins, and what is in it, when a region is not there, or has no such part."""

NAMED = "a request of a front end named shared memory"
CHANGED = "shared memory was registered by a front end"
GONE = "a request of a front end named shared memory that was not there"
REACHABLE_MEMORY = NAMED, CHANGED, GONE

INVARIANT = "front ends know what is registered as soon as that is answered"


def with_client_memory(plan: Plan) -> Plan:
    """The plan; where clients come by front ends, those with inputs in shared memory may do so, too. Not where models
    are changed: what else is rung for hides that a front end hears late of a change."""
    chance = Random(f"client memory {plan.seed}")
    told = plan.front_ends
    if not told.count or plan.changes or not _comers(plan) or chance.random() >= SHARE:
        return plan
    end_ns = max(request.at_ns for request in plan.requests)
    times = sorted(chance.randint(0, end_ns) for _ in range(chance.randint(0, MOST)))
    changes = [RegionChange(at_ns, chance.choice((1.0, 1.0, 1.0, 0.5, 0.0))) for at_ns in (0, *times)]
    return replace(plan, region_changes=tuple(changes))


def _comers(plan: Plan) -> list[RequestPlan]:
    return [request for request in plan.requests if request.region and request.entry is not WayIn.INNER]


class ClientSegment:
    """What a segment holds: by where it begins, the part of each request, and where that ends."""

    def __init__(self) -> None:
        self.parts: dict[int, tuple[HeldRegion, int]] = {}

    def part(self, start: int) -> tuple[int, HeldRegion | None]:
        """The part in which this place is, and where that begins; None if no client has written there."""
        begins = sorted(self.parts)
        at = bisect_right(begins, start)
        begin = begins[at - 1] if at else 0
        part, end = self.parts.get(begin, (None, 0))
        return begin, part if start < end else None


class ClientRegion(Region):
    """A registered segment. A part that no client has written to has no memory."""

    def __init__(self, name: str, byte_size: int, segment: ClientSegment) -> None:
        # Not what a `Region` begins with, which has a descriptor.
        self.name = name
        self.key = ""
        self.offset = 0
        self.byte_size = byte_size
        self._segment = segment

    def read(self, start: int, end: int) -> memoryview:
        begin, part = self._part(start)
        return part.read(start - begin, end - begin)

    def lend(self, start: int, end: int) -> Loan | None:
        begin, part = self._part(start)
        return part.lend(start - begin, end - begin)

    def check_size(self, nbytes: int) -> None:
        """Any will do."""

    def check_reach(self, end: int) -> None:
        begin, part = self._part(end - 1)
        part.check_reach(end - begin)

    def lost(self) -> TriremeError:
        """What to say where no client has written."""
        return held_part(0, None).lost()

    def _part(self, start: int) -> tuple[int, HeldRegion]:
        begin, part = self._segment.part(start)
        if part is None:
            raise self.lost()
        return begin, part


class ClientRegions(Regions):
    """The engine's; keys are numbers of segments, which are made when they are registered."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.segments: dict[str, ClientSegment] = {}

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        self._refuse(name)
        self._regions[name] = ClientRegion(name, byte_size, self.segments[key])


class ClientMemory:
    """What clients do with the segment, and what they were told.

    Args:
        find: where a client connects that has this number; None if there is no front end that serves.
        short: the engine may have no descriptor left for a call.
        complain: called with what is broken, and how.
        count: called with what happens.

    Attributes:
        regions: the engine's.
    """

    def __init__(
        self,
        plan: Plan,
        find: Callable[[int], ConnectionPoint | None],
        complain: Callable[[str, str], None],
        count: Callable[[str], None],
    ) -> None:
        self.regions = ClientRegions()
        self._find = find
        self._short = plan.front_ends.short > 0
        self._complain = complain
        self._count = count
        self._lock = trio.Lock()
        self._segment = ClientSegment()
        self._places: dict[int, int] = {}
        self._end = 0
        for request in _comers(plan):
            self._places[request.number] = self._end
            self._end += request.rows * request.width * FP32.size
        self._changes = self._pending = 0  # that were asked for, and of these not over
        self._known: int | None = None  # bytes that are registered; None while that is not certain
        self._lost = False  # a call was lost with its front end, and may be carried out at any time
        self._sent: dict[int, int] = {}  # by request that its client may rightly send, after how many changes

    # Changes.

    def begin(self, plan: RegionChange, over: Callable[[], None]) -> None:
        """Have the registration changed by a front end; with none, it is over at once."""
        service = self._find(plan.at_ns)
        if service is None:
            over()
        else:
            self._changes += 1
            self._pending += 1
            self._known = None
            service.start_soon(self._change, plan, service.server.management, self._changes, over)

    async def _change(self, plan: RegionChange, management: Management, number: int, over: Callable[[], None]) -> None:
        done = False
        try:
            async with self._lock:
                nbytes = round(plan.share * self._end)
                await self._carry_out(management, nbytes, f"/segment {number}")
                self._count(CHANGED)
                if self._pending == 1 and not self._lost:
                    self._known = nbytes
                done = True
        except TriremeError as error:
            done = True
            if not (self._short or self._lost):
                self._complain(INVARIANT, f"a client could not change what is registered: {error.message}")
        finally:
            self._pending -= 1
            self._lost = self._lost or not done
            over()

    async def _carry_out(self, management: Management, nbytes: int, key: str) -> None:
        segment = self.regions.segments[key] = ClientSegment()
        await management.unregister_region(RegionKind.SYSTEM, NAME)
        self._segment = segment
        if nbytes:
            await management.register_system_region(NAME, key, 0, nbytes)

    # Requests.

    def place(self, plan: RequestPlan, service: ConnectionPoint, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The inputs of a request that comes by a front end, as its API finds them: those that hold rows where their
        client has written them.

        Raises:
            TriremeError: the front end knows of no such place.
        """
        begin, nbytes = self._places[plan.number], inputs[0].nbytes
        self._segment.parts[begin] = held_part(plan.number, inputs[0]), begin + nbytes
        right = None if self._known is None else begin + nbytes <= self._known
        try:
            place = service.server.shared_memory.slice(NAME, begin, nbytes)
        except TriremeError as error:
            self._count(GONE)
            if right:
                self._complain(INVARIANT, f"request {plan.number} was refused by its front end: {error.message}")
            raise
        if right is False:
            text = f"request {plan.number} may name bytes {begin} to {begin + nbytes} of {self._known} that there are"
            self._complain(INVARIANT, text)
        if right:
            self._sent[plan.number] = self._changes
        self._count(NAMED)
        return in_place(inputs, place)

    def refused(self, number: int, error: str) -> None:
        """The engine has refused a request."""
        if (UNKNOWN in error or INVALID in error) and self._sent.get(number) == self._changes:
            self._complain(INVARIANT, f"request {number} was refused by the engine: {error}")

    def spoil(self, number: int) -> None:
        """The client of a request has its answer, and writes to where its inputs were."""
        begin = self._places.get(number, -1)
        for segment in self.regions.segments.values() if begin >= 0 else ():
            if begin in segment.parts:
                segment.parts[begin][0].spoil()

    def check(self, pid: int, regions: Regions) -> None:
        """Whether a front end knows what is registered, when nothing is in flight."""
        said, right = [
            {each.name: each.byte_size for each in known.status(RegionKind.SYSTEM)} for known in (regions, self.regions)
        ]
        if said != right:
            self._complain(INVARIANT, f"front end {pid} knows the regions {said}; right is {right}")
