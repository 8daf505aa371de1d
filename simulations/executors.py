"""Executors without threads: backends run in virtual time, on the event loop.

No thread may run under a mock clock that jumps (it would jump while the thread works), so loading work is called in
place, and a batch is simulated work that awaits virtual time, in a task of its own.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import outcome
import trio

from ..actors.actor import Turn
from ..actors.executors import Executor, Executors, run_backend
from ..actors.instance import InstanceHungError
from ..actors.offload import Done, ExecutorDiedError, Offload, Outcomes, Ts, Worker, result_of
from ..actors.step_executor import StepExecutor
from ..actors.stream_executor import StreamExecutor
from ..engine.backends.interface import ModelInstance, ProcessLostError, SteppedInstance, StreamInstance
from ..engine.cancellation import Cancellation
from ..engine.errors import FailureReason, InternalError, TriremeError
from ..engine.gpu.device import SickDeviceError
from ..engine.job import ExecutionBatch, Phase
from .clock import JumpingClock, Sleeper
from .events import DONE, GIVEN_UP
from .history import Recorder
from .models import Ends, SimulatedInstance
from .trio_internals import has_pending_callbacks

T = TypeVar("T")


class ReadTogether:
    """Ends of batches that become known as from processes: in one turn, in the order of the instances."""

    def __init__(self) -> None:
        self._over: list[tuple[str, Callable[[], None]]] = []

    def put(self, name: str, turn: Turn, done: Callable[[], None]) -> None:
        self._over.append((name, done))
        if len(self._over) == 1:
            turn.call_from_thread(self._read)

    def _read(self) -> None:
        over, self._over = self._over, []
        for _, done in sorted(over, key=lambda each: each[0]):
            done()


class VirtualExecutor:
    """An executor whose batches take the time that their simulated work says.

    Args:
        name: of the instance.
    """

    def __init__(self, turn: Turn, name: str = "", together: ReadTogether | None = None) -> None:
        self._name = name
        self._together = together or ReadTogether()
        self._token = trio.lowlevel.current_trio_token()
        self._turn = turn
        self._nursery: trio.Nursery | None = None
        self._is_given_up = False  # a batch has taken too long

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await life()
            except InstanceHungError:
                self._is_given_up = True
                raise
            nursery.cancel_scope.cancel()

    async def call(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return work()

    def begin(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        assert isinstance(instance, SimulatedInstance), "only simulated models run in virtual time"
        assert self._nursery is not None, "it is alive"
        if self._in_place(instance, batch):
            done(batch)
            return
        self._nursery.start_soon(self._run, instance, batch, done)

    async def _run(self, instance: SimulatedInstance, batch: ExecutionBatch, done: Done) -> None:
        try:
            await self._execute(instance, batch)
        except trio.Cancelled:
            if instance.ends is Ends.THREADS and self._is_given_up:
                self._turn.call_from_thread(_end_late, batch, done)
            raise
        finally:
            # Answers of a decoupled model; those of a thread arrive before its end does.
            if (instance.ends is Ends.ALONE or not instance.splits_time) and has_pending_callbacks(self._token):
                await _callbacks_called()
        if instance.ends is Ends.THREADS:
            self._turn.call_from_thread(done, batch)
        elif instance.ends is Ends.PROCESSES:
            self._together.put(self._name, self._turn, partial(done, batch))
        else:
            with self._turn:
                done(batch)

    async def _execute(self, instance: SimulatedInstance, batch: ExecutionBatch) -> None:
        batch.mark(Phase.COMPUTE_START)
        batch.mark(Phase.INFER_START)
        try:
            await instance.work(batch)
        except ProcessLostError:
            raise
        except TriremeError as error:
            batch.finish(error)
            return
        except SimulatedFailure as error:
            batch.finish(InternalError(str(error), reason=FailureReason.BACKEND))
            return
        batch.mark(Phase.OUTPUT_START)
        if instance.splits_time:
            _split_time(batch)
        try:
            run_backend(instance, batch)
        except SystemExit as error:  # as on a thread: the backend ended it, whatever it has answered
            raise ExecutorDiedError(f"the backend ended its thread (exit status {error.code})") from error

    def _in_place(self, instance: SimulatedInstance, batch: ExecutionBatch) -> bool:
        """Execute a batch that takes no time; False for one that does."""
        if not instance.in_place(batch):
            return False
        batch.mark(Phase.COMPUTE_START)
        run_backend(instance, batch)
        return True

    async def end_instance(self, instance: ModelInstance) -> None:
        await self.call(instance.close)

    def close(self) -> None:
        """Nothing to give back."""


def _end_late(batch: ExecutionBatch, done: Done) -> None:
    """A thread that was given up comes to the end of its batch."""
    batch.finish(InternalError("the thread was given up"))
    done(batch)


def _split_time(batch: ExecutionBatch) -> None:
    """Say that a part of the work went to the inputs, and another one to the outputs, so that no two durations are the
    same."""
    start_ns, output_ns = batch.marks[Phase.COMPUTE_START], batch.marks[Phase.OUTPUT_START]
    span_ns = output_ns - start_ns
    batch.marks[Phase.INFER_START] = start_ns + span_ns // 8
    batch.marks[Phase.OUTPUT_START] = output_ns - span_ns // 4


async def _callbacks_called() -> None:
    """Wait for what was given to ``run_sync_soon`` before."""
    sleeper = Sleeper(trio.lowlevel.current_task())
    trio.lowlevel.current_trio_token().run_sync_soon(sleeper.wake)
    await trio.lowlevel.wait_task_rescheduled(sleeper.give_up)


class SimulatedFailure(Exception):
    """What simulated work raises to play a backend that raises. Anything else kills the instance."""


class RecordingExecutor(VirtualExecutor):
    """Writes down when its batches start and end."""

    def __init__(self, recorder: Recorder, *about: Any) -> None:
        super().__init__(*about)
        self._recorder = recorder

    async def _execute(self, instance: SimulatedInstance, batch: ExecutionBatch) -> None:
        with _Execution(self._recorder, batch):
            await super()._execute(instance, batch)

    def _in_place(self, instance: SimulatedInstance, batch: ExecutionBatch) -> bool:
        if not instance.in_place(batch):
            return False
        with _Execution(self._recorder, batch):
            return super()._in_place(instance, batch)


class VirtualWorker:
    """Stands for the thread of a GPU instance: what it does takes no time, but is not done before others have had
    their turns."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def put(self, work: Callable[[], object], done: Outcomes, then: Outcomes | None = None) -> None:
        self._turn.call_from_thread(self._do, work, done, then)

    def _do(self, work: Callable[[], object], done: Outcomes, then: Outcomes | None) -> None:
        result = result_of(work)
        if then is not None:
            then(result)
        self._turn.call_from_thread(done, result)

    def close(self) -> None:
        """Nothing to give back."""


class ThreadTime:
    """How long a piece of work takes that a virtual thread does: the work says so itself.

    Attributes:
        delay_s: asked before each piece: how long the thread lets it wait.
        unheard_s: asked after each piece: how long it takes until the event loop hears of its end.
    """

    def __init__(self) -> None:
        self.delay_s: Callable[[], float] = lambda: 0.0
        self.unheard_s: Callable[[], float] = lambda: 0.0
        self._spent_s = 0.0

    def spend(self, seconds: float) -> None:
        """The piece of work takes so much longer; infinity for one that never comes to an end."""
        self._spent_s += seconds

    def taken_s(self) -> float:
        """What the piece took that has been done."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s


class VirtualThread:
    """A worker whose pieces of work take virtual time, one after the other. Behind one without an end none is done."""

    def __init__(self, turn: Turn, clock: JumpingClock, time: ThreadTime) -> None:
        self._turn = turn
        self._clock = clock
        self._time = time
        self._pieces: list[tuple[Callable[[], object], Outcomes, Outcomes | None]] = []
        self._busy = False
        self._heard_s = 0.0  # when the event loop hears of the last piece

    def put(self, work: Callable[[], object], done: Outcomes, then: Outcomes | None = None) -> None:
        self._pieces.append((work, done, then))
        if not self._busy:
            self._busy = True
            self._go_on()

    def close(self) -> None:
        """Nothing to give back."""

    def _go_on(self) -> None:
        delay_s = self._time.delay_s()
        if delay_s:
            self._clock.call_at(self._clock.now_s() + delay_s, partial(self._turn.call_from_thread, self._do))
        else:
            self._turn.call_from_thread(self._do)

    def _do(self) -> None:
        work, done, then = self._pieces.pop(0)
        result = result_of(work)
        seconds = self._time.taken_s()
        if seconds < math.inf:
            self._clock.call_at(self._clock.now_s() + seconds, partial(self._over, done, then, result))

    def _over(self, done: Outcomes, then: Outcomes | None, result: outcome.Outcome[Any]) -> None:
        if then is not None:
            then(result)
        now_s, late_s = self._clock.now_s(), self._time.unheard_s()
        if late_s or self._heard_s > now_s:
            self._heard_s = max(self._heard_s, now_s + late_s)
            self._clock.call_at(self._heard_s, partial(self._turn.call_from_thread, done, result))
        else:
            self._turn.call_from_thread(done, result)
        self._busy = bool(self._pieces)
        if self._busy:
            self._go_on()


class _OpenBatches:
    """Batches that were begun and are not over, as their recorder sees them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open: dict[ExecutionBatch, None] = {}

    def begin(self, batch: ExecutionBatch, done: Done) -> Done:
        """Write down that a batch begins; what is to be called when it is over."""

        def over(batch: ExecutionBatch, death: Exception | None = None, /) -> None:
            del self._open[batch]
            self._recorder.batch_ended(batch, DONE if death is None else type(death).__name__)
            done(batch, death)

        self._recorder.batch_started(batch)
        self._open[batch] = None
        return over

    @contextmanager
    def life(self) -> Iterator[None]:
        """Around the life of the instance: what is open at its end is over."""
        ending = GIVEN_UP
        try:
            yield
        except (SickDeviceError, ExecutorDiedError) as error:
            ending = type(error).__name__
            raise
        finally:
            for batch in self._open:
                self._recorder.batch_ended(batch, ending)
            self._open.clear()


class RecordingStreamExecutor(StreamExecutor):
    """Writes down when its batches are launched, and when they are collected, or lost."""

    def __init__(self, name: str, recorder: Recorder, turn: Turn) -> None:
        super().__init__(name, VirtualWorker(turn), turn)
        self._batches = _OpenBatches(recorder)

    def begin(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        super().begin(instance, batch, self._batches.begin(batch, done))

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        with self._batches.life():
            await super().around(life)


class RecordingStepExecutor(StepExecutor):
    """Writes down when its batches are admitted, and when they are over, or lost."""

    def __init__(self, recorder: Recorder, worker: Worker) -> None:
        super().__init__(worker)
        self._batches = _OpenBatches(recorder)

    def begin(self, instance: ModelInstance, batch: ExecutionBatch, done: Done) -> None:
        super().begin(instance, batch, self._batches.begin(batch, done))

    async def around(self, life: Callable[[], Awaitable[None]]) -> None:
        with self._batches.life():
            await super().around(life)


class _Execution:
    """A batch in execution, as its recorder sees it."""

    def __init__(self, recorder: Recorder, batch: ExecutionBatch) -> None:
        self._recorder = recorder
        self._batch = batch

    def __enter__(self) -> None:
        self._recorder.batch_started(self._batch)

    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _trace: object) -> None:
        ending = DONE if kind is None else GIVEN_UP if issubclass(kind, trio.Cancelled) else kind.__name__
        self._recorder.batch_ended(self._batch, ending)


class VirtualOffload(Offload):
    """Does what threads do for requests, in virtual time.

    Args:
        takes: awaited for each piece of work.
    """

    __slots__ = ("_takes",)

    def __init__(self, takes: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._takes = takes

    async def __call__(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):  # as of a thread, which is waited for
            await self._takes()
        return function(*args)


class VirtualExecutors(Executors):
    """Virtual executors for everything.

    Args:
        recorder: told about every execution; None for no one.
        load, brief: what each step of loading a model takes, beside its work, and a short look at files.
        thread: makes the threads of instances that go by steps.
    """

    def __init__(
        self,
        recorder: Recorder | None = None,
        load: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
        brief: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
        thread: Callable[[Turn], Worker] = VirtualWorker,
    ) -> None:
        self._recorder = recorder
        self._thread = thread
        self._load = load
        self._brief = brief
        self._together = ReadTogether()

    def instance_executor(self, name: str, kind: type[ModelInstance], turn: Turn) -> Executor:
        recorder = self._recorder
        if issubclass(kind, StreamInstance):
            if recorder is None:
                return StreamExecutor(name, VirtualWorker(turn), turn)
            return RecordingStreamExecutor(name, recorder, turn)
        if issubclass(kind, SteppedInstance):
            worker = self._thread(turn)
            return StepExecutor(worker) if recorder is None else RecordingStepExecutor(recorder, worker)
        about = turn, name, self._together
        return VirtualExecutor(*about) if recorder is None else RecordingExecutor(recorder, *about)

    async def offload(self, work: Callable[[], T]) -> T:
        await self._load()
        return work()

    async def offload_cancellable(self, work: Callable[[Cancellation], T], unwanted: Callable[[T], None]) -> T:
        return await self.offload(partial(work, Cancellation()))

    async def briefly(self, work: Callable[[], T]) -> T:
        await self._brief()
        return work()

    async def look(self, work: Callable[[], T]) -> T:
        return await self.briefly(work)
