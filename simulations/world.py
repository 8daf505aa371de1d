"""A simulated world: a scenario, played by the real actors in virtual time.

A scenario is an async function that is given a `World`. It opens a server on models in memory, sends requests, waits in
virtual time, and takes every random choice from ``world.random``:

    async def two_requests(world: World) -> None:
        async with world.serve(simple_model("m", Profile(0.1))):
            await world.ask_together(simple_request("m"), simple_request("m"))

    print(run_world(two_requests, seed=1).digest())

Everything that happens follows from the scenario and the seed: the clock jumps, the order in which tasks run is seeded,
and no thread takes part.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import trio

from ..actors import InferenceServer, Reply
from ..actors.actor import Turn
from ..actors.cache_access import CacheAccess
from ..actors.ensemble import STUCK_S
from ..actors.reply import ANSWER_WINDOW
from ..engine.cache import ResponseCache
from ..engine.clock import Clock
from ..engine.errors import TriremeError
from ..engine.gpu.pinned_pool import PinnedPool
from ..engine.options import ServerOptions
from ..engine.repository.residency import Residency
from ..engine.request import InferenceRequest, InferenceResponse
from .clock import JumpingClock
from .device import SimulatedGpu
from .events import (
    RequestAbandoned,
    RequestAnswered,
    RequestSubmitted,
    ServerStopped,
    ServerStopping,
)
from .executors import ThreadTime, VirtualExecutors, VirtualOffload, VirtualThread
from .faulty_slots import SlotDies
from .history import History, Recorder, error_text
from .models import SimulatedModel, SimulatedRepository
from .oracle.core import observed_factory
from .oracle.limiter import observed_limiter
from .stream_device import DeviceProfile, SimulatedDevice
from .taps import TappedDoor, Taps, tapped
from .trio_internals import deterministic_scheduling

ModelAnswer = InferenceResponse | TriremeError


BRIEF = 8
"""A short look at files takes this part of a step of loading a model."""


class ScenarioStuckError(Exception):
    """A scenario did not come to its end."""


class World:
    """What a scenario has in hand.

    Attributes:
        random: the scenario's own source of chance.
        nursery: for tasks of the scenario; they are cancelled when the scenario returns.
        clock: virtual time, for those who sleep often.
        recorder: writes the history.
        schedulers: the scheduler actors of all models that were loaded so far.
        load_s: virtual seconds that each step of loading a model takes.
        offload_s: virtual seconds that a thread takes over each request that it checks, or reads.
        thread_time: what steps of models that go by steps take.
        cache_access: makes the way to the response cache of a server that is opened from then on.
        residency_class: makes what decides which models are in memory.
        opened: the server that was opened last, though it may not have started.
        repository: of that.
        slot_dies: asked about each request of a sequence, in models that are loaded from then on; None for no need.
    """

    def __init__(self, seed: int, nursery: trio.Nursery, clock: JumpingClock, recorder: Recorder, taps: Taps) -> None:
        self.random = Random(f"scenario {seed}")
        self.nursery = nursery
        self.clock = clock
        self.recorder = recorder
        self.schedulers: Sequence[TappedDoor] = taps.schedulers
        self._core_factory = observed_factory(recorder, taps.latest, lambda: self.slot_dies)
        self._model_class = taps.model_class
        self.load_s = self.offload_s = 0.0
        self.thread_time = ThreadTime()
        self.slot_dies: SlotDies | None = None
        self.cache_access: Callable[[str, ResponseCache, Clock], CacheAccess] = CacheAccess
        self.residency_class: Callable[..., Residency] = Residency
        self._server: InferenceServer | None = None
        self.opened: InferenceServer | None = None
        self.repository = SimulatedRepository(())

    @property
    def server(self) -> InferenceServer:
        """The server that is open."""
        assert self._server is not None, "requests can be sent inside `async with world.serve(...)` only"
        return self._server

    def gpu(self, name: str, units: int) -> SimulatedGpu:
        """A GPU that runs until the scenario ends.

        Args:
            units: what it can give to kernels that run at once.
        """
        return SimulatedGpu(name, units, self.recorder, self.clock)

    def device(
        self, name: str, profile: DeviceProfile, index: int = 0, pinned_pool: PinnedPool | None = None
    ) -> SimulatedDevice:
        """A GPU for models with streams, which runs until the scenario ends.

        Args:
            pinned_pool: which it may share with others; None for one of its own.
        """
        return SimulatedDevice(self.gpu(name, profile.units), profile, index, pinned_pool)

    @asynccontextmanager
    async def serve(self, *models: SimulatedModel, **options: Any) -> AsyncIterator[InferenceServer]:
        """Open a server on these models. Leaving the block drains it.

        Args:
            options: `ServerOptions` fields.
        """
        assert self._server is None, "a world has one server at a time"
        repository = self.repository = SimulatedRepository(models)
        options = {"gpus": (), **options}  # and not those of the machine
        server = self.opened = InferenceServer(
            ServerOptions(**options),
            source=repository,
            executors=VirtualExecutors(self.recorder, self._load, self._look, self._thread),
            clock=self.clock,
            timers=self.clock,
            backends=repository.backends(),
            core_factory=self._core_factory,
            model_class=self._model_class,
            limiter_class=observed_limiter(self.recorder),
            cache_access=self.cache_access,
            offload=VirtualOffload(self._offload),
            residency_class=self.residency_class,
        )
        recorder = self.recorder
        try:
            async with server:
                self._server = server
                yield server
                limit_ns = round(server.options.exit_timeout_s * 1e9)
                recorder.record(ServerStopping(recorder.now_ns(), limit_ns))
            recorder.record(ServerStopped(recorder.now_ns(), server.drained))
        finally:
            self._server = None

    async def _load(self) -> None:
        if self.load_s:
            await self.clock.sleep(self.load_s)
        else:
            await trio.lowlevel.checkpoint()

    async def _look(self) -> None:
        await self.clock.sleep(self.load_s / BRIEF)

    def _thread(self, turn: Turn) -> VirtualThread:
        return VirtualThread(turn, self.clock, self.thread_time)

    async def _offload(self) -> None:
        await self.clock.sleep(self.offload_s)

    # Clients. A request's number becomes its id, so that backends and error texts name it.

    async def ask(self, request: InferenceRequest) -> ModelAnswer:
        """Send a request and wait for its answer, an error included. Cancelling this is a client that gives up."""
        number, reply = await self.submit(request)
        return await self._answer(number, reply)

    async def hear(
        self, request: InferenceRequest, hears: Callable[[InferenceResponse], Awaitable[None]]
    ) -> TriremeError | None:
        """Send a request to a decoupled model, and take its answers one by one; the error that it ends with. Cancelling
        this is a client that gives up.

        Args:
            hears: called with each answer; the next one is taken when it returns.
        """
        number, reply = await self.submit(request)
        recorder, error = self.recorder, reply if isinstance(reply, TriremeError) else None
        try:
            if isinstance(reply, Reply):
                async with aclosing(reply.responses()) as responses:
                    async for response in responses:
                        await hears(response)
        except TriremeError as failure:
            error = failure
        except trio.Cancelled:
            recorder.record(RequestAbandoned(recorder.now_ns(), number))
            raise
        recorder.record(RequestAnswered(recorder.now_ns(), number, error_text(error)))
        return error

    async def ask_together(self, *requests: InferenceRequest) -> Sequence[ModelAnswer]:
        """Send requests at one instant, in this order; wait for all answers."""
        submitted = [await self.submit(request) for request in requests]
        answers: list[ModelAnswer | None] = [None] * len(requests)

        async def wait(index: int) -> None:
            answers[index] = await self._answer(*submitted[index])

        async with trio.open_nursery() as nursery:
            for index in range(len(requests)):
                nursery.start_soon(wait, index)
        return [answer for answer in answers if answer is not None]

    async def submit(self, request: InferenceRequest) -> tuple[int, Reply | TriremeError]:
        """Send a request; its number, and the reply, or why it is refused. Cancelling it is a client that gives up."""
        recorder = self.recorder
        number = recorder.next_request()
        rows = request.inputs[0].shape[0] if request.inputs else 0
        recorder.record(
            RequestSubmitted(recorder.now_ns(), number, request.model_name, rows, request.priority, request.timeout_us)
        )
        try:
            return number, await self.server.admit(replace(request, id=str(number)))
        except TriremeError as error:
            return number, error
        except trio.Cancelled:
            recorder.record(RequestAbandoned(recorder.now_ns(), number))
            raise

    async def _answer(self, number: int, reply: Reply | TriremeError) -> ModelAnswer:
        recorder = self.recorder
        try:
            answer = reply if isinstance(reply, TriremeError) else await reply.response()
        except TriremeError as error:
            answer = error
        except trio.Cancelled:
            recorder.record(RequestAbandoned(recorder.now_ns(), number))
            raise
        recorder.record(RequestAnswered(recorder.now_ns(), number, error_text(answer)))
        return answer


Scenario = Callable[[World], Awaitable[None]]


def run_world(scenario: Scenario, seed: int, limit_s: float = 86_400.0) -> History:
    """Play a scenario.

    Args:
        limit_s: virtual seconds after which it is given up. Without any, a scenario in which everyone waits for
            everyone would wait for ever.

    Raises:
        ScenarioStuckError: it did not end in time.
        ExceptionGroup: what the scenario raised.
    """
    clock = JumpingClock(Random(f"clock {seed}"))
    recorder = Recorder(clock)
    play_in_world(scenario, seed, limit_s, clock, recorder)
    return recorder.history()


def play_in_world(
    scenario: Scenario,
    seed: int,
    limit_s: float,
    clock: JumpingClock,
    recorder: Recorder,
    window: int = ANSWER_WINDOW,
    stuck_s: float = STUCK_S,
) -> None:
    """`run_world`, for those who want to listen to the recorder while it writes.

    Args:
        window, stuck_s: see `tapped`.
    """
    taps = tapped(recorder, window, stuck_s)

    async def play() -> None:
        with trio.move_on_after(limit_s) as limit:
            async with trio.open_nursery() as nursery:
                await scenario(World(seed, nursery, clock, recorder, taps))
                nursery.cancel_scope.cancel()
        if limit.cancelled_caught:
            raise ScenarioStuckError(f"the scenario did not end within {limit_s:g} virtual seconds")

    with deterministic_scheduling(seed):
        trio.run(play, clock=clock)
