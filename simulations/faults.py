"""Models that do what a plan says, faults included.

A fault belongs to a request, and strikes when a batch with that request is executed. When the run's calm has come, none
strikes any more: what is queued by then is executed as if nothing had ever been wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from ..engine.backends.interface import InstanceSpec, ProcessLostError
from ..engine.config.model import ModelConfig
from ..engine.datatypes import BYTES
from ..engine.errors import InternalError
from ..engine.gpu.device import SickDeviceError
from ..engine.job import ExecutionBatch, Job
from ..engine.tensor import Tensor
from .clock import JumpingClock
from .events import FaultStruck, RegionRead, StateUsed
from .executors import SimulatedFailure
from .faulty_gpus import SLOWNESS, FaultyGpus
from .graphs import Graphs
from .history import Recorder
from .models import SimulatedModel
from .plan import SUM, Change, ChangePlan, Fault, ModelPlan, Plan, RequestPlan
from .regions import is_lost_late
from .rows import ModelRows, answer_alone, stray_data
from .self_checks import SelfChecks
from .streams import FOR_EVER_S, DecoupledStreams, InstanceCrash
from .world import World

BEFORE = (Fault.HANG, Fault.KILL, Fault.CRASH, Fault.RAISE)
"""Faults that strike a batch before any of it is answered; of several, the first in this order."""


class FaultyModels:
    """The models of a plan.

    Args:
        misled: called with a text when a model is given what it should not be given, or has what it should not have.

    Attributes:
        calm: faults strike no more.
        gpus: where some of them are.
        checks: what instances say of themselves.
    """

    def __init__(self, plan: Plan, graphs: Graphs, world: World, misled: Callable[[str], None]) -> None:
        clock: JumpingClock = world.clock
        recorder: Recorder = world.recorder
        self.calm = False
        self._world = world
        self._is_polled = plan.poll_ns > 0
        self.checks = SelfChecks(world.nursery, clock, misled)
        self.gpus = FaultyGpus(plan, world, misled, self._struck, self._strike)
        self._misled = misled
        self._requests = {str(each.number): each for request in plan.requests for each in graphs.executions(request)}
        self._clock = clock
        self._recorder = recorder
        self._turns: Counter[int] = Counter()  # by request, how often it was executed
        self._streams = DecoupledStreams(clock, recorder, self._turns, self._strikes)
        self._rows = {
            model.name: ModelRows(model.config(), misled, self._read if model.reads_regions else None)
            for model in plan.models
            if not model.steps
        }
        if any(request.fault is Fault.SLOT for request in plan.requests):
            world.slot_dies = self._slot_dies
        self._killers: set[int] = set()  # that have ended a process
        self._starts = dict.fromkeys((model.name for model in plan.models), 0)
        self.models = [
            SimulatedModel(
                model.config(),
                self.gpus.work(model)
                if model.gpus
                else partial(self._stream if model.decoupled else self._work, model),
                answer=_say_no_more if model.decoupled else partial(self._answer, model),
                on_start=partial(self._start, model),
                in_place=partial(self._in_place, model),
                ends=model.ends,
                check=partial(self.checks.made, model) if model.checks_ns else None,
                reads_regions=model.reads_regions,
            )
            for model in plan.models
        ]

    def calm_down(self) -> None:
        """Faults strike no more."""
        self.calm = True
        self.gpus.heal()

    def change(self, plan: ChangePlan) -> None:
        """Change a model as a plan says, so that it is worth loading again."""
        model = next(model for model in self.models if model.name == plan.model)
        if plan.change is Change.RELOAD:
            model.touch()
        elif plan.change is Change.BREAK:
            model.damage()
        elif plan.change is Change.RESIZE:
            model.resize(plan.instances)
        model.is_gone = self._is_polled and plan.change is Change.UNLOAD

    async def followed(self, name: str) -> str:
        """Wait until a server that looks for changes by itself has followed those of a model; why it could not."""
        await self._world.repository.followed()
        model = next(model for model in self.models if model.name == name)
        is_broken = model.is_broken and not model.config.has_ensemble_scheduling
        return "what the server has found cannot be loaded" if is_broken else ""

    def _start(self, model: ModelPlan, spec: InstanceSpec) -> None:
        self._starts[model.name] += 1
        if self._starts[model.name] in model.failing_starts and not self.calm:
            self._recorder.record(FaultStruck(self._recorder.now_ns(), "start fails", model.name, 0))
            raise InternalError(f"start {self._starts[model.name]} of '{spec.name}' fails")
        try:
            self.gpus.check(spec)
        except SickDeviceError:
            self._recorder.record(FaultStruck(self._recorder.now_ns(), "start on a sick GPU", model.name, 0))
            raise

    def _struck(self, model: ModelPlan, batch: ExecutionBatch) -> tuple[int, list[RequestPlan]]:
        """How long a batch takes, and the requests in it whose faults strike, by their numbers."""
        duration_ns = model.fixed_ns + model.per_row_ns * batch.rows
        struck: list[RequestPlan] = []
        requests = self._requests
        for job in batch.jobs:
            if job.is_null:
                continue
            request = requests[job.request.id]
            duration_ns += request.extra_ns
            if request.fault is not Fault.NONE and self._turns[request.number] >= request.fault_after:
                struck.append(request)
        if self._killers:  # half of them do it once
            struck = [each for each in struck if each.number % 2 or each.number not in self._killers]
        if self.calm:
            struck.clear()
        return duration_ns, sorted(struck, key=lambda request: request.number)

    def _in_place(self, model: ModelPlan, batch: ExecutionBatch) -> bool:
        """Whether a batch takes no time; none does that a fault may strike."""
        if not model.in_place:
            return False
        requests = [self._requests[job.request.id] for job in batch.jobs if not job.is_null]
        return requests[0].number % model.in_place != 0 and all(each.fault is Fault.NONE for each in requests)

    async def _work(self, model: ModelPlan, spec: InstanceSpec, batch: ExecutionBatch) -> None:
        duration_ns, struck = self._struck(model, batch)
        if not struck:
            await self._clock.sleep(duration_ns / 1e9)
            return
        slow = next((request for request in struck if request.fault is Fault.SLOW), None)
        if slow is not None:
            self._strike(slow)
            duration_ns *= SLOWNESS
        worst = next((each for fault in BEFORE for each in struck if each.fault is fault), None)
        if worst is None:
            await self._clock.sleep(duration_ns / 1e9)
            return
        if worst.fault is Fault.HANG:
            self._strike(worst)
            await self._clock.sleep(FOR_EVER_S)
        await self._clock.sleep(duration_ns / 1e9)
        self._strike(worst)
        if worst.fault is Fault.KILL:
            self._killers.add(worst.number)
            raise ProcessLostError(f"request {worst.number} ended the process of '{spec.name}'")
        if worst.fault is Fault.CRASH:
            raise InstanceCrash(f"request {worst.number} crashed '{spec.name}'")
        raise SimulatedFailure(f"request {worst.number} made '{spec.name}' raise")

    async def _stream(self, model: ModelPlan, spec: InstanceSpec, batch: ExecutionBatch) -> None:
        """A decoupled model: its work is before its first answer, and faults strike amid the answers."""
        if model.sequences is not None:
            self._check_controls(batch)
        duration_ns = model.fixed_ns + model.per_row_ns * batch.rows
        requests = [self._requests[job.request.id] for job in batch.jobs if not job.is_null]
        duration_ns += sum(request.extra_ns for request in requests)
        slow = [request for request in requests if request.fault is Fault.SLOW and self._strikes(request)]
        if slow:
            duration_ns *= SLOWNESS  # once, however many of them there are: it is the instance that is slow
        await self._clock.sleep(duration_ns / 1e9)
        await self._streams.speak(model, spec, batch, self._requests, answer_alone)

    def _answer(self, model: ModelPlan, config: ModelConfig, batch: ExecutionBatch) -> None:
        if config.has_sequence_batching:
            self._check_controls(batch)
        self._look_whether_late(batch)
        rows = self._rows[model.name]
        outputs, found = rows.execute(batch)
        if SUM in batch.jobs[0].inputs:
            self._keep_sums(rows, batch, outputs)
        for job, output, found_sum in zip(batch.jobs, outputs, found, strict=True):
            if job.answered:  # its input was lost
                continue
            if job.is_null:
                job.respond(job.response([output]))
                continue
            request = self._requests[job.request.id]
            fault = self._amid(request)
            turn = self._turns[request.number] = self._turns[request.number] + 1
            left = found_sum
            if fault is Fault.FAIL:
                self._strike(request)
                job.fail(InternalError(f"request {request.number} was made to fail"))
            elif fault is Fault.SILENCE:
                self._strike(request)
            elif fault is Fault.EXIT:
                self._strike(request)
                raise SystemExit(request.number)
            else:
                response = job.response([output])
                left = float(output.array.flat[0])
                if model.iterative and turn < request.turns:
                    job.reschedule()
                else:
                    job.respond(response)
                if fault is Fault.TWICE:
                    self._strike(request)
                    job.respond(response)
            if SUM in job.inputs:
                is_text = job.inputs[SUM].datatype is BYTES
                self._recorder.record(StateUsed(self._recorder.now_ns(), request.number, found_sum, left, is_text))

    def _amid(self, request: RequestPlan) -> Fault:
        """What strikes a request while its batch is answered."""
        return Fault.NONE if self.calm or self._turns[request.number] < request.fault_after else request.fault

    def _keep_sums(self, rows: ModelRows, batch: ExecutionBatch, outputs: list[Tensor]) -> None:
        """The new sums of those that are answered; those that are not keep what they have."""
        kept: list[tuple[Job, Tensor]] = []
        for job, output in zip(batch.jobs, outputs, strict=True):
            fault = Fault.NONE if job.is_null else self._amid(self._requests[job.request.id])
            if fault is Fault.EXIT:
                break
            if fault not in (Fault.FAIL, Fault.SILENCE):
                kept.append((job, output))
        if kept:
            rows.keep([job for job, _ in kept], [output for _, output in kept])

    def _look_whether_late(self, batch: ExecutionBatch) -> None:
        for job in batch.jobs:
            request = None if job.is_null else self._requests[job.request.id]
            if request is None or request.fault is not Fault.LATE or self._turns[request.number] < request.fault_after:
                continue
            if self._strikes(request):
                raise InternalError(f"request {request.number} made its batch fail late")

    def _check_controls(self, batch: ExecutionBatch) -> None:
        """Whether a stateful model is told the truth about each row (docs/reference/sequences.md#control-inputs)."""
        for job in batch.jobs:
            stray = stray_data(job) if job.is_null else ""
            if stray:
                self._misled(stray)
            told = {name: job.inputs[name].array.item() for name in ("START", "END", "READY", "CORRID")}
            truth = {"START": 0, "END": 0, "READY": 0, "CORRID": 0}
            if not job.is_null:
                request = self._requests[job.request.id]
                truth = {"START": request.start, "END": request.end, "READY": 1, "CORRID": request.sequence}
                if not request.sequence:  # of an iterative model: the sequence has an id that the batcher gave it
                    truth |= {"START": 1, "CORRID": told["CORRID"] or -1}
                if self._turns[request.number]:
                    truth |= {"START": 0, "END": 0}
            if told != truth:
                self._misled(f"for {job!r} a model was told {told}, not {truth}")

    def _read(self, job: Job, lost: bool) -> None:
        number = int(job.request.id)
        if lost and not is_lost_late(number):
            self._misled(f"request {number} was failed for memory that its client has not lost")
        self._recorder.record(RegionRead(self._recorder.now_ns(), number, lost))

    def _slot_dies(self, number: int) -> bool:
        request = self._requests[str(number)]
        return request.fault is Fault.SLOT and self._strikes(request)

    def _strikes(self, request: RequestPlan) -> bool:
        """The fault of this request strikes, unless the run is calm."""
        if not self.calm:
            self._strike(request)
        return not self.calm

    def _strike(self, request: RequestPlan) -> None:
        self._recorder.record(FaultStruck(self._recorder.now_ns(), request.fault.value, request.model, request.number))


def _say_no_more(_config: ModelConfig, _batch: ExecutionBatch) -> None:
    """What is left to do for a batch that was answered while it was worked at."""
