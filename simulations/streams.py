"""A decoupled model in a swarm run: it answers each request of a batch at a pace of its own, any number of times.

The model is one thread, as a real one is: while it is held back because a client has not taken its answers, the other
requests of the batch wait as well. A real thread is held back inside `Job.respond`; here, where everything runs on the
event loop, the model looks itself whether there is room.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ..actors.offload import ExecutorDiedError
from ..engine.backends.interface import InstanceSpec
from ..engine.errors import CancelledError, InternalError
from ..engine.job import ExecutionBatch, Job
from ..engine.tensor import Tensor
from .clock import JumpingClock
from .events import AnswerGiven, AnswerHeldBack
from .executors import SimulatedFailure
from .history import ANSWER, Recorder
from .plan import Fault, ModelPlan, RequestPlan

LOOKS_S = 0.001
"""How long a model that is held back waits before it looks again."""

FOR_EVER_S = 1e9

AMID = frozenset({Fault.FAIL, Fault.RAISE, Fault.CRASH, Fault.EXIT, Fault.HANG, Fault.SILENCE})
"""Faults that strike between two answers."""


class InstanceCrash(Exception):
    """The instance is lost."""


@dataclass(slots=True)
class _Speech:
    """What is said to one request during one execution.

    Attributes:
        said: answers so far.
        last: it is not to be executed again.
    """

    job: Job
    plan: RequestPlan
    last: bool
    said: int = 0

    @property
    def is_over(self) -> bool:
        return self.said >= self.plan.answers


class DecoupledStreams:
    """What decoupled models say.

    Args:
        turns: by request, how often it was executed; counted here.
        strike: makes the fault of a request happen, at this moment; False if it does not.
    """

    def __init__(
        self, clock: JumpingClock, recorder: Recorder, turns: Counter[int], strike: Callable[[RequestPlan], bool]
    ) -> None:
        self._clock = clock
        self._recorder = recorder
        self._strike = strike
        self._said: dict[int, int] = {}  # by request, over all of its executions
        self._turns = turns

    async def speak(
        self,
        model: ModelPlan,
        spec: InstanceSpec,
        batch: ExecutionBatch,
        requests: dict[str, RequestPlan],
        output: Callable[[Job], Tensor],
    ) -> None:
        """Answer a batch.

        Raises:
            SimulatedFailure, InstanceCrash, ExecutorDiedError: a fault struck.
        """
        began_ns = self._clock.now_ns()
        due: list[tuple[int, int, int]] = []
        speeches: list[_Speech] = []
        for job in batch.jobs:
            if not job.is_null:
                plan = requests[job.request.id]
                turn = self._turns[plan.number] = self._turns[plan.number] + 1
                due.append((plan.answer_ns, 0, len(speeches)))
                speeches.append(_Speech(job, plan, not model.iterative or turn >= plan.turns))
        heapq.heapify(due)
        while due:
            when_ns, said, index = heapq.heappop(due)
            wait_ns = began_ns + when_ns - self._clock.now_ns()
            if wait_ns > 0:
                await self._clock.sleep(wait_ns / 1e9)
            speech = speeches[index]
            await self._until_there_is_room(speech)
            if await self._goes_on(model, spec, speech, output):
                heapq.heappush(due, (when_ns + speech.plan.answer_ns, said + 1, index))

    async def _until_there_is_room(self, speech: _Speech) -> None:
        window = speech.job.window
        if window is not None and window.crowded:
            self._recorder.record(AnswerHeldBack(self._recorder.now_ns(), speech.plan.number))
            while window.crowded:
                await self._clock.sleep(LOOKS_S)

    async def _goes_on(
        self, model: ModelPlan, spec: InstanceSpec, speech: _Speech, output: Callable[[Job], Tensor]
    ) -> bool:
        """Say the next thing; whether more is to be said."""
        job, plan = speech.job, speech.plan
        said = self._said.get(plan.number, 0)
        if model.heeds and job.cancelled:
            job.fail(CancelledError(""))
            return False
        if plan.fault in AMID and said >= plan.fault_after and self._strike(plan):
            return await self._fails(spec, speech)
        if speech.is_over:
            self._end(speech)
            return False
        speech.said += 1
        said = self._said[plan.number] = said + 1
        final = speech.last and speech.is_over and not plan.apart
        self._recorder.record(AnswerGiven(self._recorder.now_ns(), plan.number, said, final))
        response = job.response([output(job)], {ANSWER: said})
        job.respond(response, final)
        if final and plan.fault is Fault.TWICE and self._strike(plan):
            job.respond(response, final)
        return not final

    def _end(self, speech: _Speech) -> None:
        """Everything has been said."""
        job, plan = speech.job, speech.plan
        if not speech.last:
            job.reschedule()
            return
        self._recorder.record(AnswerGiven(self._recorder.now_ns(), plan.number, 0, True))
        job.respond(None, True)
        if plan.fault is Fault.TWICE and self._strike(plan):
            job.respond(None, True)

    async def _fails(self, spec: InstanceSpec, speech: _Speech) -> bool:
        """A fault has struck."""
        number = speech.plan.number
        match speech.plan.fault:
            case Fault.FAIL:
                speech.job.fail(InternalError(f"request {number} was made to fail"))
            case Fault.RAISE:
                raise SimulatedFailure(f"request {number} made '{spec.name}' raise")
            case Fault.CRASH:
                raise InstanceCrash(f"request {number} crashed '{spec.name}'")
            case Fault.EXIT:
                raise ExecutorDiedError(f"the backend ended its thread (exit status {number})")
            case Fault.HANG:
                await self._clock.sleep(FOR_EVER_S)
            case _:
                assert speech.plan.fault is Fault.SILENCE, "the others do not strike here"
        return False
