"""Short batches are executed on the event loop's thread, long ones on their instance's; time is the test's own."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import numpy as np
import pytest
import trio

from trireme.actors import InferenceServer
from trireme.actors.actor import Turn
from trireme.actors.executors import ThreadExecutor
from trireme.engine.backends.interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import FP32
from trireme.engine.errors import FailureReason, InternalError
from trireme.engine.instances.executing import SHORT_NS, TRIALS
from trireme.engine.job import ExecutionBatch, Job, Outcome
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor
from trireme.simulations.models import BACKEND, Profile, SimulatedRepository, simple_model, simple_request


class StoppedClock:
    """Measures nothing but what an instance says that it took."""

    def __init__(self) -> None:
        self.ns = 0

    def now_s(self) -> float:
        return self.ns / 1e9

    def now_ns(self) -> int:
        return self.ns

    def wall_ms(self) -> int:
        return 0


class Watched(ModelInstance):
    """Notes the thread of each batch, which takes `takes_ns`; `quits` is what the next one raises."""

    thread_bound = False

    def __init__(self, clock: StoppedClock) -> None:
        self.clock = clock
        self.takes_ns = SHORT_NS
        self.quits: BaseException | None = None
        self.threads: list[threading.Thread] = []

    def execute(self, batch: ExecutionBatch) -> None:
        self.threads.append(threading.current_thread())
        self.clock.ns += self.takes_ns
        if self.quits is not None:
            error, self.quits = self.quits, None
            raise error
        for job in batch.jobs:
            job.respond(job.response([]))


class Panic(BaseException):
    """As extensions raise it that are written in Rust."""


QUITS = pytest.mark.parametrize(
    ("quits", "text"),
    [(SystemExit(3), "the backend called exit (3)"), (Panic("boo"), "Panic: boo")],
    ids=["exit", "panic"],
)


class Bound(Watched):
    thread_bound = True


class NoReply:
    def deliver(self, outcome: Outcome, final: bool) -> bool:
        raise AssertionError("answers of a batch are collected")


def make_batch(clock: StoppedClock, columns: int = 4) -> ExecutionBatch:
    tensor = Tensor("IN", FP32, (1, columns), array=np.zeros((1, columns), np.float32))
    job = Job(InferenceRequest("m"), {"IN": tensor}, 1, "m", 1, NoReply(), nbytes=4 * columns)
    return ExecutionBatch([job], "m_0", clock)


async def execute(executor: ThreadExecutor, instance: Watched, columns: int = 4) -> bool:
    """Execute a batch as an instance actor does; whether it was done in place. Checks that it was answered."""
    batch = make_batch(instance.clock, columns)
    over = trio.Event()
    executor.begin(instance, batch, lambda _batch, _death=None: over.set())
    in_place = over.is_set()
    await over.wait()
    assert [final for _, _, final in batch.answers] == [True]
    assert (instance.threads[-1] is threading.current_thread()) is in_place
    return in_place


async def test_after_so_many_short_batches_the_loop_executes_them_itself() -> None:
    executor, instance = ThreadExecutor("m_0", Turn()), Watched(StoppedClock())
    assert [await execute(executor, instance) for _ in range(TRIALS + 3)] == [False] * TRIALS + [True] * 3
    assert not await execute(executor, instance, columns=5), "larger than any that was short"
    assert await execute(executor, instance, columns=5)
    executor.close()


async def test_a_long_batch_sends_the_instance_back_to_its_thread() -> None:
    executor, instance = ThreadExecutor("m_0", Turn()), Watched(StoppedClock())
    while not await execute(executor, instance):
        pass
    instance.takes_ns = SHORT_NS + 1
    assert await execute(executor, instance), "nobody can know beforehand"
    assert not any([await execute(executor, instance) for _ in range(3 * TRIALS)])
    executor.close()


async def test_an_instance_bound_to_its_thread_stays_there() -> None:
    executor, instance = ThreadExecutor("m_0", Turn()), Bound(StoppedClock())
    instance.takes_ns = 0
    assert not any([await execute(executor, instance) for _ in range(3 * TRIALS)])
    assert len(set(instance.threads)) == 1
    executor.close()


@QUITS
async def test_a_backend_that_exits_in_place_is_answered_for(quits: BaseException, text: str) -> None:
    executor, instance = ThreadExecutor("m_0", Turn()), Watched(StoppedClock())
    while not await execute(executor, instance):
        pass
    instance.quits = quits
    batch = make_batch(instance.clock)
    over: list[ExecutionBatch] = []
    executor.begin(instance, batch, lambda batch, _death=None: over.append(batch))
    assert over == [batch]
    ((_, error, final),) = batch.answers
    assert isinstance(error, InternalError)
    assert (error.message, error.reason, final) == (text, FailureReason.BACKEND, True)
    assert await execute(executor, instance), "it lives on"
    executor.close()


def watching_backends(watched: list[Watched], make: Callable[[], Watched]) -> BackendRegistry:
    class Loaded(LoadedModel):
        def create_instance(self, spec: InstanceSpec) -> ModelInstance:
            watched.append(make())
            return watched[-1]

    class Watching(Backend):
        name = BACKEND

        def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
            return Loaded()

    return BackendRegistry(lambda _name: {}, {BACKEND: Watching})


@QUITS
async def test_a_whole_server_goes_over_to_executing_in_place_and_survives_what_happens_there(
    quits: BaseException, text: str
) -> None:
    """Every request is answered and counted, on the thread and off it, and an exit costs its own request only."""
    watched: list[Watched] = []
    clock = StoppedClock()
    server = InferenceServer(
        ServerOptions(),
        source=SimulatedRepository([simple_model("m", Profile(0))]),
        backends=watching_backends(watched, lambda: Watched(clock)),
        clock=clock,
    )
    async with server:
        for _ in range(TRIALS + 5):
            await server.infer(simple_request("m"))
        (instance,) = watched
        here = threading.current_thread()
        assert [thread is here for thread in instance.threads] == [False] * TRIALS + [True] * 5
        instance.quits = quits
        with pytest.raises(InternalError, match=re.escape(text)):
            await server.infer(simple_request("m"))
        await server.infer(simple_request("m"))
        assert instance.threads[-1] is here
        (entry,) = server.statistics("m")
        assert (entry.statistics.success.count, entry.statistics.fail.count) == (TRIALS + 6, 1)
        assert entry.statistics.execution_count == TRIALS + 7
    assert len(watched) == 1, "no instance was lost"
