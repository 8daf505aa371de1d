"""Playing a list of arrivals: the server's own admission, schedulers, instances and turns, with planned executors.

What is left out is what only checks and shows: no event is recorded, no invariant looked at, and clients are callbacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import trio

from ...actors import InferenceServer, Reply
from ...actors.offload import first_error
from ...engine.description import ModelDescription
from ...engine.errors import InvalidArgumentError, TriremeError
from ...engine.logs.request_log import LoggedRequest
from ...engine.options import ServerOptions
from ...engine.request import InferenceRequest
from ..clock import JumpingClock
from ..models import SimulatedRepository
from ..play import no_garbage_collection
from ..trio_internals import deterministic_scheduling
from .event_loop import PlannedLoop
from .executor import ModelAtWork, PlannedExecutor, PlannedExecutors
from .front_ends import PlannedFrontEnds
from .generated_run import generated_run
from .host import HostCosts
from .loads import Then
from .notes import REASONS, Notes
from .planned import PlannedModel, PlannedSource, Requests, most_cores
from .played import PlayedRun, columns
from .step_executor import PlannedStepExecutor
from .steps import ModelInSteps
from .uncounted import UncountedModel

WELL = 0


def play(
    models: Sequence[PlannedModel],
    arrivals: Iterable[LoggedRequest],
    options: ServerOptions,
    seed: int,
    *,
    costs: HostCosts | None = None,
    then: Then | None = None,
) -> PlayedRun:
    """Play arrivals to their end.

    Args:
        arrivals: in the order of their times.
        options: the server's; where models come from is of no meaning.
        seed: of the models' chance, each of which has its own, and of the order of tasks.
        costs: of the host; None if nothing but the batches takes time.
        then: what else comes when clients have their answers; None for nothing.

    Raises:
        InvalidArgumentError: a model does not say how long its batches take, or arrivals are not in order.
        StartupError: the server cannot serve these models.
        Exception: what service times, costs or `then` have raised.
    """
    with no_garbage_collection():
        run = _Run(models, options, seed, costs, then)
        try:
            with deterministic_scheduling(seed):
                trio.run(run.play, iter(arrivals), clock=run.clock)
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        return run.outcome()


class _Run:
    """A run in the making."""

    def __init__(
        self,
        models: Sequence[PlannedModel],
        options: ServerOptions,
        seed: int,
        costs: HostCosts | None,
        then: Then | None,
    ) -> None:
        self.clock = JumpingClock()
        self._models = {model.name: model for model in models}
        if len(self._models) < len(models):
            raise InvalidArgumentError("two models have the same name")
        self._options = replace(options, model_repository=(), gpus=(), watchdog_limit_s=0.0, poll_s=0.0)
        self._costs = costs
        self._then = then
        self._notes = Notes()
        self._over = trio.Event()
        self._loop = PlannedLoop(self.clock, costs, self._over.set, most_cores(models))
        self._front_ends = PlannedFrontEnds(costs, self._loop, seed) if costs is not None and costs.front_ends else None
        steps = {
            model.name: ModelInSteps(model.name, model.steps, index, seed)
            for index, model in enumerate(models)
            if model.steps is not None
        }
        self._sources = [PlannedSource(model, steps.get(model.name)) for model in models]
        self._requests = Requests({model.name: model.config for model in models})
        self._at_work = {
            model.name: ModelAtWork(model, index, seed)
            for index, model in enumerate(models)
            if model.service is not None
        }
        self._refusals: dict[str, int] = {"": WELL}
        self._open = 0  # requests that are on their way, or not answered
        self._arrivals: Iterator[LoggedRequest] = iter(())
        self._last_s = 0.0
        self._server: InferenceServer
        self._nursery: trio.Nursery
        self._descriptions: dict[tuple[str, int], ModelDescription] = {}

    async def play(self, arrivals: Iterator[LoggedRequest]) -> None:
        repository = SimulatedRepository(self._sources)
        server = self._server = InferenceServer(
            self._options,
            source=repository,
            executors=PlannedExecutors(self._executor, self._step_executor),
            model_class=UncountedModel,
            clock=self.clock,
            timers=self._loop,
            backends=repository.backends(),
        )
        async with trio.open_nursery() as self._nursery, server:
            self._arrivals = arrivals
            self._send_next()
            if not self._open:
                self._over.set()
            self._loop.start(server.turn)
            await self._over.wait()
            if self._loop.failure is not None:
                self._nursery.cancel_scope.cancel()
        if self._loop.failure is not None:
            raise self._loop.failure

    def _executor(self) -> PlannedExecutor:
        return PlannedExecutor(self._at_work, self._loop, self.clock, self._costs, self._notes)

    def _step_executor(self) -> PlannedStepExecutor:
        return PlannedStepExecutor(self._loop, self.clock, self._costs, self._notes)

    # Requests.

    def _send_next(self) -> None:
        """The next arrival is on its way; one at a time, so that a long list is never all in the calendar."""
        logged = next(self._arrivals, None)
        if logged is None:
            return
        if logged.offset_s < self._last_s:
            raise InvalidArgumentError(f"an arrival at {logged.offset_s} s comes after one at {self._last_s} s")
        self._last_s = logged.offset_s
        self._send(logged, from_list=True)

    def _send(self, logged: LoggedRequest, *, from_list: bool = False) -> None:
        self._open += 1
        costs, when_s = self._costs, logged.offset_s
        if costs is not None:
            when_s += costs.way_in(logged)
        if self._front_ends is not None:
            self._front_ends.bring(when_s, logged, self._come_of_list if from_list else self._come, self._admit)
        else:
            self._loop.at(when_s, self._arrive_of_list if from_list else self._arrive, logged, rouses=True)

    def _come(self, logged: LoggedRequest) -> int:
        """A request has come to the server; its number."""
        return self._notes.request_came(logged)

    def _come_of_list(self, logged: LoggedRequest) -> int:
        self._send_next()
        return self._come(logged)

    def _arrive_of_list(self, logged: LoggedRequest) -> None:
        self._admit(self._come_of_list(logged))

    def _arrive(self, logged: LoggedRequest) -> None:
        self._admit(self._come(logged))

    def _admit(self, number: int) -> None:
        """The event loop has heard of a request."""
        logged = self._notes.logged[number]
        if self._costs is not None:
            self._loop.work(self._costs.admit(logged))
        request = self._requests.of(logged)
        try:
            reply = self._server.admit_nowait(request, model=self._description(logged))
        except TriremeError as error:
            self._answer(number, error)
            return
        if reply is None:
            self._nursery.start_soon(self._wait_for_room, number, request)
        else:
            self._is_in(number, reply)

    def _description(self, logged: LoggedRequest) -> ModelDescription | None:
        key = logged.model, logged.version
        description = self._descriptions.get(key)
        if description is None and logged.model in self._models:
            description = self._descriptions[key] = self._server.describe(*key)
        return description

    def _is_in(self, number: int, reply: Reply) -> None:
        notes = self._notes
        notes.admitted[number] = self.clock.now_s()
        notes.numbers[reply] = number
        reply.notify(self._replied)

    async def _wait_for_room(self, number: int, request: InferenceRequest) -> None:
        """The server-wide budget is used up: as a front end, wait."""
        try:
            reply = await self._server.admit(request)
        except TriremeError as error:
            with self._server.turn:
                self._answer(number, error)
            return
        with self._server.turn:
            self._is_in(number, reply)

    def _replied(self, reply: Reply) -> None:
        outcome: Any = None
        for outcome, _ in reply.take():
            if isinstance(outcome, TriremeError):
                break
        try:
            self._answer(self._notes.numbers.pop(reply), outcome, reply.accepted)
        except Exception as error:  # noqa: BLE001 - of costs, or of who says what comes then
            self._loop.fail(error)

    def _answer(self, number: int, outcome: Any, accepted: bool = False) -> None:
        """A request has its final answer."""
        notes = self._notes
        well = not isinstance(outcome, TriremeError)
        if not well:
            notes.refusal[number] = self._refusals.setdefault(_reason(outcome, accepted), len(self._refusals))
        costs, way_s, front_s = self._costs, 0.0, 0.0
        if costs is not None:
            logged = notes.logged[number]
            model = self._models.get(logged.model)
            if model is not None:
                self._loop.work(costs.answer(model, logged.rows, well))
                way_s, front_s = costs.way_out(model, well), costs.front_out(model, logged.rows, well)
                if costs.clients_here and self._loop.cores is not None and self._loop.cores.crowded:
                    way_s += costs.crowded()
        now = self.clock.now_s()
        if self._front_ends is not None:
            self._front_ends.send(now, number, front_s, self._written, (number, way_s, well))
        else:
            self._written(now, (number, way_s, well))

    def _written(self, now: float, answer: tuple[int, float, bool]) -> None:
        """A final answer is on its way to the client, which takes so long."""
        number, way_s, well = answer
        when_s = self._notes.answered[number] = now + way_s
        if self._then is not None:
            next_one = self._then(number, when_s, well)
            if next_one is not None:
                self._send(next_one)
        self._open -= 1
        if not self._open:
            self._over.set()

    def outcome(self) -> PlayedRun:
        notes, indices = self._notes, {name: index for index, name in enumerate(self._models)}
        made: dict[str, Any] = columns(
            model=[indices.get(each.model, -1) for each in notes.logged],
            rows=[each.rows for each in notes.logged],
            sent_s=[each.offset_s for each in notes.logged],
            admitted_s=notes.admitted,
            answered_s=notes.answered,
            batch=notes.batch,
            refusal=notes.refusal,
            batch_model=notes.batch_model,
            batch_instance=notes.batch_instance,
            batch_requests=notes.batch_requests,
            batch_rows=notes.batch_rows,
            batch_reason=notes.batch_reason,
            batch_begun_s=notes.batch_begun,
            batch_started_s=notes.batch_started,
            batch_ended_s=notes.batch_ended,
            batch_heard_s=notes.batch_heard,
        )
        ended_s = max(notes.answered, default=0.0)
        return PlayedRun(
            tuple(self._models),
            tuple(self._refusals),
            REASONS,
            **made,
            loop_busy_s=self._loop.busy_s,
            front_ends_busy_s=0.0 if self._front_ends is None else self._front_ends.busy_s,
            cores_busy_s=0.0 if self._loop.cores is None else self._loop.cores.busy_s,
            generated=generated_run(notes),
            ended_s=ended_s if math.isfinite(ended_s) else self.clock.now_s(),
        )


def _reason(error: TriremeError, accepted: bool) -> str:
    """Why a request was refused, or failed."""
    refusal = error.refusal if accepted else error.refusal_reason
    return refusal.value if refusal is not None else error.reason.value
