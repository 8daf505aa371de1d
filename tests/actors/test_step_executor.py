"""Steps of an instance, one at a time (the rules of `actors.step_executor`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import outcome
import pytest
import trio

from trireme.actors.offload import ExecutorDiedError, Outcomes
from trireme.actors.step_executor import StepExecutor
from trireme.engine.backends.interface import SteppedInstance
from trireme.engine.clock import SystemClock
from trireme.engine.errors import InternalError, TriremeError
from trireme.engine.gpu.device import SickDeviceError
from trireme.engine.job import ExecutionBatch, Job


class HandWorker:
    """Keeps pieces of work until the test has them done."""

    def __init__(self) -> None:
        self.pieces: list[tuple[Callable[[], object], Outcomes, Outcomes | None]] = []
        self.unheard: list[Callable[[], object]] = []

    def put(self, work: Callable[[], object], done: Outcomes, then: Outcomes | None = None) -> None:
        self.pieces.append((work, done, then))

    def close(self) -> None:
        """Nothing to do."""

    def work(self) -> None:
        """Do the first piece, and have the event loop hear of it."""
        self.work_unheard()
        self.unheard.pop()()

    def work_unheard(self) -> None:
        work, done, then = self.pieces.pop(0)
        result = outcome.capture(work)
        if then is not None:
            then(result)
        self.unheard.append(lambda: done(result))


class Noting(SteppedInstance):
    """Has a step as long as it has batches; notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.error: Exception | None = None
        self.refuses = False
        self.left: list[str] = []

    def admit(self, batch: ExecutionBatch, over: Callable[[], None]) -> None:
        if self.refuses:
            raise InternalError("no room")
        self.told.append("admit")

    def begin_step(self, now_s: float) -> str:
        self.told.append("begin")
        return "step"

    def compute(self, step: str) -> str:
        if self.error is not None:
            raise self.error
        return "result"

    def follow(self, step: str, result: str) -> str | None:
        return self.left.pop() if self.left else None

    def end_step(self, step: str, result: str) -> None:
        self.told.append(f"end {result}")

    def answer(self) -> None:
        self.told.append("answer")

    def fail_step(self, step: str, error: TriremeError) -> None:
        self.told.append(f"fail {error.message}")


def batch() -> ExecutionBatch:
    return ExecutionBatch([Job(MagicMock(), {}, 1, "m", 1, MagicMock())], "m_0", SystemClock())


@pytest.fixture
def world(autojump_clock: object) -> tuple[StepExecutor, HandWorker, Noting]:
    worker = HandWorker()
    return StepExecutor(worker), worker, Noting()


async def test_one_step_is_under_way_and_the_next_begins_before_what_it_brought_is_answered(world: Any) -> None:
    executor, worker, instance = world
    executor.begin(instance, batch(), MagicMock())
    executor.begin(instance, batch(), MagicMock())
    assert instance.told == ["admit", "begin", "admit"]
    assert len(worker.pieces) == 1
    worker.work()
    assert instance.told[3:] == ["end result", "begin", "answer"]


async def test_the_thread_goes_on_with_a_step_that_was_left_for_it_before_the_event_loop_hears(world: Any) -> None:
    executor, worker, instance = world
    executor.begin(instance, batch(), MagicMock())
    instance.left.append("next step")
    worker.work_unheard()
    assert len(worker.pieces) == 1
    executor.begin(instance, batch(), MagicMock())
    assert instance.told == ["admit", "begin", "admit"], "no other step begins"
    worker.work_unheard()
    for heard in worker.unheard:
        heard()
    assert instance.told[3:] == ["end result", "answer", "end result", "begin", "answer"]
    assert (executor.steps, executor.stepping) == (2, True)


async def test_nothing_follows_a_step_that_fails(world: Any) -> None:
    executor, worker, instance = world
    executor.begin(instance, batch(), MagicMock())
    instance.left.append("next step")
    instance.error = InternalError("out of memory")
    worker.work()
    assert (len(instance.left), instance.told[2:]) == (1, ["fail out of memory", "begin", "answer"])


async def test_what_a_step_raises_is_its_requests_and_the_next_begins(world: Any) -> None:
    executor, worker, instance = world
    executor.begin(instance, batch(), MagicMock())
    instance.error = InternalError("out of memory")
    worker.work()
    assert instance.told == ["admit", "begin", "fail out of memory", "begin", "answer"]


@pytest.mark.parametrize("error", [ExecutorDiedError("exit status 3"), SickDeviceError("GPU 0: exit status 3")])
@pytest.mark.parametrize("batches", [0, 2])
async def test_what_ends_the_thread_or_the_device_ends_the_instance(world: Any, batches: int, error: Exception) -> None:
    """Whatever it executes."""
    executor, worker, instance = world
    for _ in range(2):
        executor.begin(instance, batch(), MagicMock())
    executor._executing = dict(list(executor._executing.items())[:batches])  # the clients of the others have left
    instance.error = error

    async def life() -> None:
        worker.work()
        await trio.sleep_forever()

    with pytest.raises(type(error), match="exit status 3"):
        await executor.around(life)
    assert instance.told == ["admit", "begin", "admit"]


async def test_steps_are_counted_whatever_comes_of_them(world: Any) -> None:
    executor, worker, instance = world
    assert (executor.stepping, executor.steps) == (False, 0)
    executor.begin(instance, batch(), MagicMock())
    assert executor.stepping
    worker.work()
    instance.error = InternalError("out of memory")
    worker.work()
    assert (executor.stepping, executor.steps) == (True, 2)


async def test_a_batch_that_is_not_taken_in_is_over_with_the_reason(world: Any) -> None:
    executor, worker, instance = world
    instance.refuses = True
    done, refused = MagicMock(), batch()
    executor.begin(instance, refused, done)
    done.assert_called_once_with(refused)
    assert [str(error) for _, error, _ in refused.answers] == ["no room"]
    assert worker.pieces == []


async def test_no_step_begins_once_it_is_closed(world: Any) -> None:
    executor, worker, instance = world
    executor.begin(instance, batch(), MagicMock())
    executor.close()
    worker.work()
    assert instance.told == ["admit", "begin"]


async def test_work_aside_holds_up_no_step_and_may_begin_one() -> None:
    worker, second, made = HandWorker(), HandWorker(), []

    def make() -> HandWorker:
        made.append(second)
        return second

    executor, instance = StepExecutor(worker, make), Noting()
    executor.begin(instance, batch(), MagicMock())
    assert made == [], "there is no thread as long as there is no such work"
    found: list[object] = []
    for number in (1, 2):
        instance.aside(lambda number=number: number, found.append)
    assert made == [second]
    worker.work()
    assert instance.told.count("begin") == 2, "steps go on"
    executor.stepping = False
    second.work()
    assert (found, instance.told.count("begin")) == ([1], 3)
    executor.close()
    second.work()
    assert found == [1], "what comes after the end is dropped"


async def test_work_aside_that_ends_its_thread_ends_the_instance() -> None:
    second = HandWorker()
    executor, instance = StepExecutor(HandWorker(), lambda: second), Noting()

    def leave() -> None:
        raise ExecutorDiedError("gone")

    async def life() -> None:
        executor.begin(instance, batch(), MagicMock())
        instance.aside(leave, MagicMock())
        second.work()
        await trio.sleep_forever()

    with pytest.raises(ExecutorDiedError):
        await executor.around(life)


async def test_without_a_second_thread_the_first_one_works_aside() -> None:
    worker, found = HandWorker(), []
    executor, instance = StepExecutor(worker), Noting()
    executor.begin(instance, batch(), MagicMock())
    instance.aside(lambda: "done", found.append)
    worker.work()
    worker.work()
    assert found == ["done"]
