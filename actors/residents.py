"""Models on demand: requests wait here until their model is in memory (docs/on_demand.md).

The core decides (`engine.repository.residency`); this tells it what happens, and does what it says.

Rules:
 1. A model is read when it is asked for and not in memory: its size is estimated, and what it needs becomes known.
    Nothing is loaded of one that needs itself, or what is not there.
 2. A request that has waited is in flight from the moment in which its model is there until it has been handed in, and
    from there until its final answer. So its model stays.
 3. A load that has begun comes to its end, also if no request waits for it any more.
 4. A model counts with what its backend says that it takes. If that says nothing, with the memory of its processes when
    it has been loaded, or with what was estimated, whichever is more.
 5. A request that holds room in the server-wide budget waits for a limited time: who could make its model's room free
    may wait for that of the budget. (Front ends wait for a model before they take room for a large body.)
 6. For a name that is not known the repositories are looked at again, for all such names together at most once in
    `_AGAIN_S`, and for a tenth of the time at most. In between it is not known, so that a flood of them costs nothing.
 7. When the server stops, who waits is refused, and nothing is loaded or unloaded any more.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType

import trio

from ..engine.errors import (
    ColdModelError,
    InternalError,
    NotFoundError,
    RefusalReason,
    TriremeError,
    UnavailableError,
    UnsupportedError,
)
from ..engine.metrics.family import MetricFamily
from ..engine.metrics.on_demand import OnDemandCounts, on_demand_families
from ..engine.metrics.page import MetricsRegistry, Section
from ..engine.options import ControlMode
from ..engine.repository.reading import Reading, needs_of, worth
from ..engine.repository.residency import Residency
from ..engine.repository.residents import Drains, Leaves, Loads, Refuses, Residence
from ..engine.request import InferenceRequest
from ..engine.tensor import Buffer
from .loading import ServerContext
from .model import Model
from .model_control import ModelControl
from .reply import HeldPlace

logger = logging.getLogger("trireme.repository")

_HOLDING_US = 30_000_000
_AGAIN_S, _MOST_LOOKING = 1.0, 0.1
_NOT_THERE = "on demand: not in memory"


class Visit:
    """A request in flight: as long as there is one, its model stays.

    Args:
        residents: None if that does not count.
        place: what else it holds of the server, which is released with it.
    """

    __slots__ = ("_name", "_place", "_residents")

    def __init__(self, residents: Residents | None, name: str, place: HeldPlace | None = None) -> None:
        self._residents = residents
        self._name = name
        self._place = place

    def release(self, nbytes: int) -> None:
        """The request has its final answer."""
        with self:
            if self._place is not None:
                self._place.release(nbytes)

    def __enter__(self) -> None: ...

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        residents, self._residents = self._residents, None
        if residents is not None:
            residents.depart(self._name)


class _Waiting:
    """Someone who waits for a model.

    Attributes:
        released: it is there, and one more request is in flight for this one.
        error: why it is not waited for any more.
    """

    __slots__ = ("error", "event", "released")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.released = False
        self.error: TriremeError | None = None


class Residents:
    """See above.

    Args:
        core: decides.
        nursery: the owner of loads.
    """

    def __init__(self, core: Residency, control: ModelControl, context: ServerContext, nursery: trio.Nursery) -> None:
        self.core = core
        self.repository = control.repository
        self.counts = OnDemandCounts()
        self._control = control
        self._clock = context.clock
        self._pins = frozenset(context.options.model_pins)
        self._nursery = nursery
        self._waiting: defaultdict[str, list[_Waiting]] = defaultdict(list)
        self._known: dict[str, Reading] = {}
        self._stopping = False
        self._looking: trio.Event | None = None  # set when the look is over that is under way
        self._again_s = -math.inf  # no look before that time
        self._sooner = trio.Event()  # the time for which `_keep_time` waits has changed
        self._due_s = math.inf
        nursery.start_soon(self._keep_time)

    def families(self, _scrape: object) -> Iterator[MetricFamily]:
        """Its metrics."""
        return on_demand_families(self.core, self.counts)

    # What the catalog asks.

    def check(self, name: str) -> None:
        """Raises ColdModelError: it takes no requests now, and is loaded for one that waits for it."""
        if self._can_be_waited_for(name) and not self._is_there(name):
            raise ColdModelError(name)

    def answers(self, name: str) -> bool:
        """Whether it is not there, and can be loaded, as far as is known."""
        return self.repository.has_source(name) and (name not in self._known or not self.core[name].failures)

    def why_cold(self, name: str) -> str:
        """Why it is not there, for the index."""
        if name in self._known and self.core[name].failures:
            return self.core[name].reason
        return _NOT_THERE

    def may_appear(self, name: str) -> bool:
        """Whether the repositories are to be looked at again for a name that is not known (rule 6)."""
        if self._stopping or self.repository.has_source(name):
            return False
        return self._looking is not None or self._clock.now_s() >= self._again_s

    # Requests.

    async def hold(self, find: Callable[[], Model], request: InferenceRequest, has_room: bool) -> Visit:
        """Wait until the model of a request is in memory, where it stays until the visit is over.

        Args:
            has_room: it holds some of the server-wide budget (rule 5).

        Raises:
            TriremeError: there is no such model, or it cannot be loaded.
        """
        try:
            return self.visit(find().name, None)
        except ColdModelError as error:
            name = error.name
        except NotFoundError:
            name = request.model_name
            await self._look_for(name)
            if not self.repository.has_source(name):
                raise
        await self._learn(name)
        callers = tuple({caller: None for (caller, _), _ in request.callers if caller in self._known})
        limits = [*([request.timeout_us] * (request.timeout_us > 0)), *([_HOLDING_US] * has_room)]
        await self._wait(name, callers, timeout_us=min(limits, default=0))
        return Visit(self, name)

    def visit(self, name: str, place: HeldPlace | None) -> Visit:
        """A request that is about to be handed in to a model that takes it.

        Args:
            place: what it holds of the server.
        """
        self.counts.requests += place is not None
        if name not in self._known or self.core[name].state not in (Residence.RESIDENT, Residence.DRAINING):
            return Visit(None, name, place)
        self.core.arrive(name, self._clock.now_s(), continues=True)
        return Visit(self, name, place)

    def depart(self, name: str) -> None:
        """A visit is over."""
        self.core.depart(name, self._clock.now_s())
        self._act()

    async def want(self, name: str, timeout_us: int) -> None:
        """Wait until a model is in memory, where it stays for a moment. Says nothing of a name that is none.

        Raises:
            TriremeError: it cannot be loaded, or not in time.
        """
        await self._look_for(name)
        if self._stopping:
            raise _stopping_error()
        if self._can_be_waited_for(name):
            await self._learn(name)
            await self._wait(name, timeout_us=timeout_us)
            self.depart(name)
        else:
            self.repository.forget(name)  # who asked took it for a model

    async def _look_for(self, name: str) -> None:
        """Rule 6."""
        if not self.may_appear(name):
            return
        if self._looking is None:
            self._looking = trio.Event()
            self._nursery.start_soon(self._look, self._looking)
        await self._looking.wait()

    async def _look(self, done: trio.Event) -> None:
        began_s = self._clock.now_s()
        try:
            await self._control.rescan()
        except TriremeError as error:
            logger.error("failed to poll the model repository: %s", error.message)
        now_s = self._clock.now_s()
        self._again_s = now_s + max(_AGAIN_S, (now_s - began_s) / _MOST_LOOKING)
        self._looking = None
        done.set()

    async def _learn(self, name: str, *, by_hand: bool = False) -> None:
        """Rule 1.

        Raises:
            TriremeError: there is no such model any more, or it cannot be loaded.
        """
        if not self._may_be_read(name, by_hand):
            return
        found = await self._control.read(name, self._known)
        if name not in found or found[name] == Reading():
            await self._control.rescan()
        if not self._may_be_read(name, by_hand):
            return
        if name not in found or not self.repository.has_source(name):
            raise _unknown(name)
        try:
            needs = needs_of(name, found)
        except TriremeError as error:
            self._known[name] = found[name]
            self.core.know(name, found[name].nbytes)
            self.core.failed(name, error, self._clock.now_s())
            raise _not_loaded(name, error) from None
        if any(self._known.get(each) != read for each, read in found.items()):
            self._tell_core(found, needs)

    def _may_be_read(self, name: str, by_hand: bool) -> bool:
        """Whether it is not in memory, nor on its way there, nor known to be broken."""
        if name not in self._known:
            return True
        model = self.core[name]
        return model.state is Residence.COLD and (by_hand or model.retry_s <= self._clock.now_s())

    def _tell_core(self, found: Mapping[str, Reading], needs: Mapping[str, tuple[str, ...]]) -> None:
        """Of models that were read, and what each of them needs, in order; their worth may change that of others."""
        former = {each: self.core[each].needs for each in found if each in self._known}
        self._known |= found
        for name, needed in needs.items():
            self.core.know(name, found[name].nbytes, needs=needed)
        for name in dict.fromkeys((*needs, *itertools.chain.from_iterable(former.values()))):
            meant = [name, *(each.name for each in self.core if name in each.needs)]
            priority, pinned = worth([self._known[each] for each in meant])
            pinned = pinned or not self._pins.isdisjoint(meant)
            needed, nbytes = self.core[name].needs, self._known[name].nbytes
            self.core.know(name, nbytes, pinned=pinned, priority=priority, needs=needed)

    async def _wait(
        self, name: str, callers: tuple[str, ...] = (), *, timeout_us: int = 0, by_hand: bool = False
    ) -> None:
        """Wait until a model is there; one more request is in flight then.

        Args:
            timeout_us: 0 for none.

        Raises:
            TriremeError: it cannot be loaded, or the time of the request is over.
        """
        if self._stopping:
            raise _stopping_error()
        since_s = self._clock.now_s()
        if self.core.arrive(name, since_s, by_hand=by_hand, callers=callers):
            return
        waiting = _Waiting()
        self._waiting[name].append(waiting)
        self._act()
        cancelled = True
        try:
            with trio.move_on_after(timeout_us / 1e6 if timeout_us else math.inf):
                await waiting.event.wait()
            cancelled = False
        finally:
            if waiting.released and cancelled:
                self.depart(name)
            elif not waiting.event.is_set():
                self._waiting[name].remove(waiting)
                self.core.give_up(name, callers)
                self._act()
        if waiting.error is not None:
            raise waiting.error
        if not waiting.released:
            text = f"model '{name}' was not in memory within the {timeout_us} us that the request may wait"
            raise UnavailableError(text, refusal=RefusalReason.LOAD_WAIT)
        self.counts.waited(self._clock.now_s() - since_s)

    def _release(self, name: str, error: TriremeError | None = None) -> None:
        for waiting in self._waiting.pop(name, ()):
            waiting.error = error
            waiting.released = error is None
            waiting.event.set()

    # By hand.

    async def start(self, names: tuple[str, ...]) -> bool:
        """Load pinned models, and those that are named; whether all are there."""
        well = True
        for name in dict.fromkeys((*names, *sorted(self._pins))):
            try:
                await self.load(name, {})
            except TriremeError as error:
                logger.error("failed to load '%s': %s", name, error.message)
                well = False
        return well

    async def load(self, name: str, parameters: Mapping[str, str | Buffer]) -> None:
        """See `InferenceServer.load_model`: a model that is there is loaded again if it has changed.

        Raises:
            UnsupportedError: with a configuration or files, which would be gone when it comes back.
        """
        if parameters:
            raise UnsupportedError(
                "a model cannot be loaded with parameters if models are loaded on demand (--model-control-mode)"
            )
        await self._control.rescan()
        if not self.repository.has_source(name) or self._is_there(name):
            with self.visit(name, None):
                await self._control.load(name, {})
                self._measure(name)
            return
        await self._learn(name, by_hand=True)
        await self._wait(name, by_hand=True)
        self.depart(name)

    async def unload(self, name: str, unload_dependents: bool = False, namespace: str = "") -> None:
        """See `InferenceServer.unload_model`; it comes back on demand. What only it needed leaves for others."""
        del unload_dependents, namespace
        self.repository.check_started()
        if name in self._known and self.core.unload(name):
            self.repository.forget(name)
            self._act()

    def stop(self) -> None:
        """Rule 7."""
        self._stopping = True
        if self._looking is not None:
            self._looking.set()
        for name in list(self._waiting):
            self._release(name, _stopping_error())

    def _can_be_waited_for(self, name: str) -> bool:
        """Whether it is in the repositories, or in memory, on its way there or from there."""
        state = self.core[name].state if name in self._known else Residence.COLD
        return state is not Residence.COLD or self.repository.has_source(name)

    def _is_there(self, name: str) -> bool:
        return name in self._known and self.core[name].state is Residence.RESIDENT

    # What the core says.

    def _act(self) -> None:
        if self._stopping:
            return
        for action in self.core.actions(self._clock.now_s(), self.repository.has_live_sequences):
            match action:
                case Loads():
                    self._nursery.start_soon(self._load, action)
                case Leaves(name):
                    self.repository.forget(name)
                    self._nursery.start_soon(self._unload, name)
                case Drains(name):
                    self.repository.forget(name)
                case Refuses(name, error):
                    self._release(name, error)
        due_s = self.core.next_s(self._clock.now_s())
        due_s = math.inf if due_s is None else due_s
        if due_s != self._due_s:
            self._due_s = due_s
            self._sooner.set()

    async def _keep_time(self) -> None:
        while True:
            self._sooner = trio.Event()
            with trio.move_on_after(max(0.0, self._due_s - self._clock.now_s())) as limit:
                await self._sooner.wait()
            if limit.cancelled_caught:
                self._due_s = math.inf
                self._act()

    async def _load(self, action: Loads) -> None:
        began_s = self._clock.now_s()
        failure: TriremeError | None = None
        try:
            await self._control.load(action.name, {}, as_seen=True)
        except TriremeError as error:
            failure = error
            with suppress(TriremeError):
                await self._control.rescan()  # it may be gone
        now_s = self._clock.now_s()
        self.counts.loads += 1
        for name in (*action.needs, action.name):
            if self.repository.serves(name):
                self.core.loaded(name, self._bytes_of(name), now_s - began_s, now_s)
                self.repository.forget(name)  # front ends ask again
                self._release(name)
                continue
            own = (failure or InternalError("it was unloaded meanwhile")) if name == action.name else None
            self.core.failed(name, own, now_s)
            if own is not None:
                self.counts.failures += 1
                gone = not self.repository.has_source(name)
                self._release(name, _unknown(name) if gone else _not_loaded(name, own))
        self._act()

    def _measure(self, name: str) -> None:
        if self._is_there(name):
            self.core.resized(name, self._bytes_of(name))
            self._act()

    def _bytes_of(self, name: str) -> int:
        """Rule 4."""
        ready = [model for model in self.repository.living_of(name) if model.ready]
        said = sum(usage.byte_size for model in ready for usage in model.memory_usage)
        return said or max(self._known[name].nbytes, sum(model.process_bytes() for model in ready))

    async def _unload(self, name: str) -> None:
        try:
            await self._control.unload(name, unload_dependents=False)
        except TriremeError:
            return  # the server stops
        while self.repository.living_of(name):
            await self.repository.changed()
        self.counts.unloads += 1
        self.core.unloaded(name)
        self._act()


def open_residents(
    control: ModelControl,
    context: ServerContext,
    nursery: trio.Nursery,
    metrics: MetricsRegistry,
    residency_class: Callable[..., Residency] = Residency,
) -> Residents | None:
    """Of a server whose models are loaded on demand; None of any other.

    Args:
        metrics: where its metrics are printed.
        residency_class: makes the core.
    """
    options = context.options
    if options.model_control_mode is not ControlMode.ON_DEMAND:
        return None
    core = residency_class(options.model_memory_limit, most_loads=options.model_load_thread_count)
    control.repository.on_demand = residents = Residents(core, control, context, nursery)
    control.load_first = residents.start
    metrics.add(Section.LAST, residents.families)
    return residents


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(f"Request for unknown model: '{name}' is not found")


def _not_loaded(name: str, error: TriremeError) -> UnavailableError:
    return UnavailableError(f"model '{name}' was not loaded: {error.message}", refusal=RefusalReason.LOAD_FAILED)


def _stopping_error() -> UnavailableError:
    return UnavailableError("Server is stopping, models are not loaded any more", refusal=RefusalReason.STOPPING)
