"""Playing a plan: the real actors, the plan's clients, every invariant.

A run has two phases. In the *safety* phase faults strike as the plan has it, and nothing may break. Then comes the
calm: no fault strikes any more, and in the *liveness* phase everything that is queued or still to come must be answered
within a bound that follows from the plan. (A server that is stopped early has no second phase: it must drain, or fail,
what it has.) At the end nothing may be left.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import trio

from ..actors import InferenceServer, StartupError
from ..actors.instance import LIMIT_S
from ..engine.gpu.flights import LOOK_S
from ..engine.scheduler_delays import SchedulerDelays
from ..engine.scheduling.rate_limiter import ExplicitResource
from .clock import JumpingClock, StandstillError
from .control import control_options, models_named
from .coverage import Coverage
from .driver import Driver
from .events import PhaseBegan
from .failed_starts import INVARIANT as NOT_STARTED_WELL
from .failed_starts import NOT_STARTED, FailedStart
from .faults import FaultyModels
from .faulty_gpus import HANGS, SLOWNESS, gpus_of
from .front_ends import NOTHING_LEFT, VirtualFrontEnds
from .front_ends_plan import front_ends_ns
from .graphs import Graphs, is_step
from .history import History, Recorder
from .invariants import Violation, WorldWatch
from .invariants.leftovers import leftovers
from .invariants.state import WorldState
from .oracle.rules import oracle_rules
from .plan import MANY_REQUESTS, PLENTY_BYTES, Fault, Manner, Plan
from .reach import ServingCoverage
from .self_checks import INVARIANT, Probes
from .slow_caches import SlowCacheAccess
from .traced import Traces
from .world import World, play_in_world

LONGEST_RESTART_S = 30.0
"""The longest delay before an instance is started again (`engine.instances.restart`)."""

STEPS_OF_A_LOAD = 20
"""More than a load of one model has, of those that take time."""

MOST_INPUTS = 5
"""More than a row has, of the size of a plain one, with all that a sequence adds."""

MOST_READS = 4
"""So many times a thread may work for one request before it is accepted or refused."""

STUCK_S = 1.0
"""How long a decoupled member of an ensemble is held back by a gate while nothing moves, instead of minutes."""

GIVEN_UP_S = 1e7
"""Virtual seconds after which a run is given up that not even its bounds end."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What came of a run.

    Attributes:
        violation: what was broken first; None for nothing.
        counts: see `coverage`.
    """

    violation: Violation | None
    counts: Counter[str]
    history: History

    @property
    def requests(self) -> int:
        return self.counts["requests"]


def play(plan: Plan) -> RunOutcome:
    """Play a plan to its end, or to the first violation."""
    with _quiet_logs(), no_garbage_collection():
        run = _Run(plan)
        try:
            if plan.fails_to_start:
                run.start_in_vain()
            if run.watch.violation is None:
                play_in_world(run.play, plan.seed, GIVEN_UP_S, run.clock, run.recorder, plan.window, STUCK_S)
        except (trio.TrioInternalError, BaseExceptionGroup) as error:
            run.watch.violation = _defect(error)
        outcome = RunOutcome(run.watch.violation, run.coverage.counts, run.recorder.history())
        run.close()
        del run
        return outcome


def _defect(error: BaseException) -> Violation:
    """What it means that a run ended with an error.

    Raises:
        KeyboardInterrupt: that was it.
    """
    while isinstance(error, BaseExceptionGroup | trio.TrioInternalError):
        cause = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
        if cause is None:
            break
        error = cause
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, StartupError):
        return Violation("models load", str(error))
    if isinstance(error, StandstillError):
        return Violation("time goes on", str(error))
    return Violation("nothing is raised", f"{type(error).__name__}: {error}")


def drain_bound_s(plan: Plan, graphs: Graphs | None = None) -> float:
    """Virtual seconds, from the calm on, within which everything must be answered, however it was queued.

    Whatever is to come comes; then requests are executed one by one by one instance, each waiting for a whole delay,
    behind the slowest batch that may be running, or hanging, and behind the longest wait for a restart. (A queue that
    drains much faster than that and still late is for `Promptness` to find.)

    Args:
        graphs: the plan's, if they are there already.
    """
    models = {model.name: model for model in plan.models}
    graphs = graphs or Graphs(plan)
    total_ns = max((request.at_ns for request in plan.requests if not request.after), default=0)
    hanging = 0
    for request in (each for asked in plan.requests for each in graphs.executions(asked)):
        model = models.get(request.model)
        if model is not None:
            alone_ns = model.fixed_ns + model.per_row_ns * request.rows + request.extra_ns + model.delay_us * 1_000
            if model.gpus:
                alone_ns += request.rows * max(_row_ns(plan, index) for index in model.gpus)
                hanging += request.fault is Fault.HANG
            total_ns += alone_ns * SLOWNESS * request.turns
            if model.decoupled:
                total_ns += (request.answers + 1) * (request.answer_ns + request.pause_ns) * request.turns
                total_ns += round(STUCK_S * 1e9) * is_step(request.number)
            if model.sequences is not None:  # its sequence may have to wait until another has been silent for long
                total_ns += model.sequences.idle_us * 1_000
        total_ns += request.arrival_ns + (request.at_ns if request.after else 0)
    total_ns += (STEPS_OF_A_LOAD * plan.load_ns * len(plan.models) + 3 * plan.poll_ns) * len(plan.changes)
    total_ns += plan.offload_ns * 4 * sum(request.region for request in plan.requests)
    total_ns += front_ends_ns(plan.front_ends, len(plan.requests), len(plan.changes) + 2 * len(plan.region_changes))
    bound_s = total_ns / 1e9 + plan.hang_limit_s + LONGEST_RESTART_S + 1.0 + LIMIT_S * bool(plan.probes)
    if plan.gpus:  # which may have to be found out to be sick, by an instance that has just come back
        bound_s += hanging * HANGS * plan.hang_limit_s + LOOK_S + LONGEST_RESTART_S
    return bound_s


def _row_ns(plan: Plan, gpu: int) -> int:
    return MOST_INPUTS * (plan.gpus[gpu].row_in_ns + plan.gpus[gpu].row_out_ns)


class _Run:
    """A run in the making."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clock = JumpingClock(Random(f"clock {plan.seed}"))
        self.recorder = Recorder(self.clock)
        self._graphs = Graphs(plan)
        at_once = {model.name: plan.at_once(model) for model in plan.models}
        state = self._state = WorldState((model.config() for model in plan.models), at_once, bool(plan.held))
        demands = {model.name: {each.name: each.count for each in model.demands} for model in plan.models}
        pools = {each.name: each.count for each in plan.resources}
        self.watch = WorldWatch(
            state,
            self.recorder,
            self._is_ready,
            self._graphs,
            max_inflight=plan.max_inflight_requests,
            windows=_windows(plan),
            changing=bool(plan.changes),
            polled=plan.poll_ns > 0,
            hang_limit_s=plan.hang_limit_s,
            demands=demands,
            pools=pools,
            gpus=bool(plan.gpus),
            rules=partial(
                oracle_rules,
                plenty=plan.cache_bytes >= PLENTY_BYTES and not plan.cache_ns,
                cache_ns=plan.cache_ns,
                restart_window_s=plan.restart_window_s,
                little_room=_has_little_room(plan),
                executes_again=not (plan.resources or plan.changes),
                runs_short=plan.front_ends.short > 0,
                named=models_named(plan),
            ),
            on_violation=self._end,
        )
        self.coverage = Coverage(state, plan.max_inflight_requests)
        self.recorder.listen(self.coverage.handlers())
        self.recorder.listen(ServingCoverage(self.coverage.count, state, demands, pools).handlers())
        if any(model.decoupled or model.iterative for model in plan.models):
            self.recorder.listen(self.coverage.answers.handlers())
        if plan.gpus:
            self.recorder.listen(self.coverage.gpus.handlers())
        self.recorder.listen(state.handlers())
        self.clock.on_quiet = lambda: self.watch.instant_over(self.clock.now_ns())
        self._server: InferenceServer | None = None
        self._waiting = trio.CancelScope()

    def close(self) -> None:
        """Cut the circles in what was a run, which would else all be work for the garbage collector."""
        self.recorder.close()
        self.watch.close()
        self.clock.on_quiet = _nothing

    def _is_ready(self, model: str) -> bool:
        """What the server says, which must be the same wherever it says so."""
        server = self._server
        if server is None:
            return False
        ready = server.model_ready(model)
        listed = any(entry.name == model for entry in server.repository_index(ready_only=True))
        leaves = ready and self.plan.poll_ns and self._state.changing[model]  # its files are gone, and it goes later
        if listed != ready and not leaves:
            self._complain(
                "a model is ready if and only if all of it is alive", f"the index says otherwise of '{model}'"
            )
        return ready

    def _complain(self, invariant: str, text: str) -> None:
        self.watch.complain(Violation(invariant, text))

    def _misled(self, text: str) -> None:
        self._complain("clients and models are told the truth", text)

    def _end(self) -> None:
        """Something is broken: no need to wait for more."""
        self._waiting.cancel()

    def start_in_vain(self) -> None:
        """What comes before: a start that fails, in a world of its own."""
        clock = JumpingClock()
        start = FailedStart(self.plan, server_options(self.plan), partial(self._complain, NOT_STARTED_WELL))
        play_in_world(start.play, self.plan.seed, GIVEN_UP_S, clock, Recorder(clock))
        self.coverage.count(NOT_STARTED)

    async def play(self, world: World) -> None:
        """The scenario."""
        plan = self.plan
        models = FaultyModels(plan, self._graphs, world, self._misled)
        if plan.cache_ns:
            world.cache_access = partial(SlowCacheAccess, plan)
        async with world.serve(*models.models, **server_options(plan)) as server:
            self._server = server
            world.load_s = plan.load_ns / 1e9
            world.offload_s = plan.offload_ns / 1e9
            if not server.ready():
                self._complain("models load", f"not ready: {server.model_statistics()}")
            control = models.change, models.followed
            traces = Traces(plan, self.clock, self._complain, self.coverage.count)
            self.recorder.listen(traces.handlers())
            server.tracer = traces.tracer
            driver = Driver(plan, server, self.clock, self.recorder, self._misled, traces, *control)
            driver.probes = Probes(
                plan, self._graphs, server, models.checks, partial(self._complain, INVARIANT), driver.probe_over
            )
            async with self._front_ends(driver, server):
                world.nursery.start_soon(driver.run)
                if plan.stop_ns:
                    await self._wait(driver, plan.stop_ns / 1e9)
                else:
                    await self._to_the_end(driver, models, server)
        driver.hang_up()
        await models.gpus.quiet()
        # What threads read for requests that the server will refuse, then what is left to do at that instant.
        await self.clock.sleep(MOST_READS * plan.offload_ns / 1e9)
        self.watch.instant_over(self.clock.now_ns())
        if self.watch.violation is None:
            self.watch.finish()
            traces.finish()
            left = list(leftovers(server, world.schedulers, driver.replies))
            driver.replies.clear()  # errors in them refer to what they came of
            for text in (*left, *models.gpus.leftovers()):
                self._complain("nothing is left when a server has stopped", text)

    @asynccontextmanager
    async def _front_ends(self, driver: Driver, server: InferenceServer) -> AsyncIterator[None]:
        """Within the block clients come by the front ends of the plan, if it has any."""
        plan = self.plan
        if not plan.front_ends.count:
            yield
            return
        heard = driver.submitted, driver.refused, driver.lost, driver.forsaken
        driver.front_ends = VirtualFrontEnds(*(plan, server, self.clock), *heard, self._complain, self.coverage.count)
        self.recorder.listen(driver.front_ends.followers.handlers())
        async with driver.front_ends.serve():
            yield

    async def _to_the_end(self, driver: Driver, models: FaultyModels, server: InferenceServer) -> None:
        """Both phases."""
        await self._wait(driver, self.plan.calm_ns / 1e9)
        models.calm_down()
        self.recorder.record(PhaseBegan(self.clock.now_ns(), "liveness"))
        bound_s = drain_bound_s(self.plan, self._graphs)
        await self._wait(driver, self.clock.now_s() + bound_s)
        if not driver.done.is_set():
            text = f"after {bound_s:g} s there is no final reply to requests {driver.unfinished}"
            text += " and models are still being loaded or unloaded" * bool(driver.changing)
            self._complain("queues drain when faults have stopped", text)
        elif self.watch.violation is None:
            await self.clock.sleep(1e-6)  # the last batch may not be over when its last answer is there
            self.watch.reported(server.statistics())
            if driver.front_ends is not None:
                await driver.front_ends.settled()
                for text in driver.front_ends.left():
                    self._complain(NOTHING_LEFT, text)

    async def _wait(self, driver: Driver, until_s: float) -> None:
        """Until the clients are done, the time has come, or something is broken."""
        self._waiting = trio.CancelScope(deadline=until_s)
        if self.watch.violation is None:
            with self._waiting:
                await driver.done.wait()


def _nothing() -> None:
    """What a clock does by default."""


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """What dies in a swarm run dies on purpose, so it is not logged."""
    logger = logging.getLogger("trireme")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def server_options(plan: Plan) -> dict[str, Any]:
    """With which the server of a plan is opened; see `ServerOptions`."""
    return {
        "max_inflight_requests": plan.max_inflight_requests,
        **({"max_inflight_bytes": plan.max_inflight_bytes} if plan.max_inflight_bytes else {}),
        "hang_limit_s": plan.hang_limit_s,
        "restart_limit": plan.restart_limit,
        "restart_window_s": plan.restart_window_s,
        "exit_timeout_s": plan.exit_timeout_s,
        "rate_limit": bool(plan.resources),
        "histogram_latencies": True,
        "scheduler_delays": _delays(plan),
        **control_options(plan),
        "rate_limit_resources": tuple(ExplicitResource(each.name, each.count) for each in plan.resources),
        "gpus": gpus_of(plan),
        "cache_config": {"local": {"size": str(plan.cache_bytes)}} if plan.cache_bytes else {},
    }


def _delays(plan: Plan) -> SchedulerDelays:
    names = ("TRITONSERVER_DELAY_SCHEDULER", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER")
    return SchedulerDelays.of({name: f" {count} " for name, count in zip(names, plan.held, strict=False)})


def _has_little_room(plan: Plan) -> bool:
    """Whether the server-wide budget may be used up, or a model's part of it: that of others counts, and steps do."""
    return plan.max_inflight_requests < MANY_REQUESTS or plan.max_inflight_bytes > 0


def _windows(plan: Plan) -> dict[int, int]:
    """How many answers to each request may wait. A client that waits in a task, as all do for whom the server-wide
    budget is used up, a thread reads, or a front end's ring is full, takes all that there are, then looks at one after
    the other."""
    in_task = 2 * plan.window
    listening = in_task if _has_little_room(plan) or plan.front_ends.count else plan.window
    manners = {Manner.LISTENS: listening, Manner.WAITS: in_task}
    ordered = {model.name for model in plan.models if model.preserve_ordering}  # what is held back may be any number
    windows: dict[int, int] = {}
    for request in plan.requests:
        window = manners.get(request.manner)
        if window is not None and request.model not in ordered:
            windows[request.number] = in_task if request.region else window
    return windows


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A run is short, and keeps its history to the end: looking for garbage in it is a tenth of its cost. Who has no
    use for the history afterwards does well to drop it within the block."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
