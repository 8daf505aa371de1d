"""The thread executor: one thread, one thing at a time, results and errors back on the loop, abandonable."""

from __future__ import annotations

import sys
import threading
from queue import SimpleQueue

import pytest
import trio

from trireme.actors.actor import Turn
from trireme.actors.executors import Executors, ThreadExecutor
from trireme.actors.offload import ExecutorDiedError
from trireme.actors.socket_readiness import Readiness
from trireme.engine.cancellation import Cancellation
from trireme.engine.errors import InternalError


async def test_work_runs_on_one_thread_of_its_own() -> None:
    executor = ThreadExecutor("digits_0", Turn())
    threads = {await executor.call(threading.current_thread) for _ in range(3)}
    assert {thread.name for thread in threads} == {"digits_0"}
    assert threading.current_thread() not in threads
    executor.close()


async def test_errors_are_raised_to_the_caller() -> None:
    executor = ThreadExecutor("tests", Turn())

    def fail() -> None:
        raise KeyError("what")

    with pytest.raises(KeyError, match="what"):
        await executor.call(fail)
    assert await executor.call(lambda: 5) == 5, "the thread lives on"
    executor.close()


class Panic(BaseException):
    """As extensions in other languages raise them: not meant to be caught."""


async def test_a_backend_that_raises_what_is_no_exception_kills_its_executor_only() -> None:
    executor = ThreadExecutor("tests", Turn())

    def panic() -> None:
        raise Panic("index out of range")

    with pytest.raises(ExecutorDiedError, match=r"ended its thread \(Panic: index out of range\)"):
        await executor.call(panic)
    executors = Executors(load_threads=1, readiness=Readiness())
    with pytest.raises(InternalError, match=r"ended its thread \(Panic: index out of range\)"):
        await executors.offload(panic)
    executor.close()


async def test_a_backend_that_exits_kills_its_executor_only() -> None:
    executor = ThreadExecutor("tests", Turn())
    with pytest.raises(ExecutorDiedError, match="exit status 3"):
        await executor.call(lambda: sys.exit(3))
    executor.close()


async def test_a_cancelled_wait_abandons_the_work_and_the_thread_ends_by_itself() -> None:
    executor = ThreadExecutor("tests", Turn())
    release = threading.Event()
    thread = await executor.call(threading.current_thread)
    with trio.move_on_after(0.01) as scope:
        await executor.call(lambda: release.wait(30))
    assert scope.cancelled_caught
    executor.close()
    release.set()
    await trio.to_thread.run_sync(thread.join)
    assert not thread.is_alive()


async def test_loads_run_no_more_than_so_many_at_once() -> None:
    executors = Executors(load_threads=2, readiness=Readiness())
    running = 0
    peak = 0
    lock = threading.Lock()
    barrier = threading.Barrier(2)

    def load() -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        barrier.wait(10)
        with lock:
            running -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(executors.offload, load)
    assert peak == 2


class TestCancellableLoads:
    """A load on a thread that hangs in a framework: nobody can end it, and nobody waits for it."""

    async def test_nobody_waits_for_the_thread(self) -> None:
        executors = Executors(load_threads=1, readiness=Readiness())
        began, release, unwanted = threading.Event(), threading.Event(), SimpleQueue[str]()
        told: list[Cancellation] = []

        def load(cancellation: Cancellation) -> str:
            told.append(cancellation)
            began.set()
            assert release.wait(60)
            return "model"

        with trio.fail_after(60), trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(executors.offload_cancellable, load, unwanted.put)
                await trio.to_thread.run_sync(began.wait)
                scope.cancel()
        assert told[0].cancelled, "what it waits for could be ended"
        assert unwanted.empty()
        release.set()
        assert unwanted.get(timeout=60) == "model"
        assert await executors.offload(lambda: "the thread goes on") == "the thread goes on"
