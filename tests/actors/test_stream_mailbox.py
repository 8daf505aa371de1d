"""The stream actor by itself: what it is told while it has no turn, and what it keeps when it ends."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import trio

from trireme.actors.actor import Turn
from trireme.actors.stream_executor import StreamExecutor
from trireme.engine.backends.interface import StreamInstance
from trireme.engine.gpu.device import SickDeviceError
from trireme.engine.job import ExecutionBatch
from trireme.simulations.clock import VirtualClock
from trireme.simulations.executors import VirtualWorker


class Used:
    """What a device uses for a batch."""


class QuickInstance(StreamInstance):
    """Whose batches land while they are launched.

    Attributes:
        used: what each launch gave, weakly.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self.used: list[weakref.ref[Used]] = []
        self._error = error

    def launch(self, batch: ExecutionBatch, on_landed: Callable[[], None]) -> Used:
        on_landed()
        used = Used()
        self.used.append(weakref.ref(used))
        return used

    def collect(self, batch: ExecutionBatch, launched: Used) -> None:
        try:
            raise KeyError(launched)
        except KeyError:
            if self._error is not None:
                raise self._error  # noqa: B904 - so that it refers to the other one

    def healthy(self, launched: Used) -> None:
        raise AssertionError("nothing is in flight for long")


async def two_begun(executor: StreamExecutor, instance: QuickInstance) -> list[ExecutionBatch]:
    """Two batches, launched and landed, of which the actor has heard, but to which it has not come. A list of those
    that are over."""
    over: list[ExecutionBatch] = []
    copy = await executor.call(lambda: instance)
    for _ in range(instance.credits):
        batch = ExecutionBatch([], "m_0", VirtualClock())
        executor.begin(copy, batch, lambda batch, _death=None: over.append(batch))
    return over


async def test_there_is_room_for_all_that_may_happen_while_it_has_no_turn() -> None:
    turn = Turn()
    executor = StreamExecutor("m_0", VirtualWorker(turn), turn)
    over = await two_begun(executor, QuickInstance())
    await executor.around(trio.testing.wait_all_tasks_blocked)
    assert len(over) == 2
    assert executor.statistics().collected == 2


async def test_what_a_lost_instances_batches_used_goes_back_once_they_have_landed() -> None:
    """And neither the actor nor the error that it died of holds on to it: of the batch that it died of, and of one that
    it hears of when it is too late. What is begun later still is never launched."""
    turn = Turn()
    executor = StreamExecutor("m_0", VirtualWorker(turn), turn)
    instance = QuickInstance(SickDeviceError("it has a cold"))
    await two_begun(executor, instance)

    async def life() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await two_begun(executor, instance)

    with pytest.raises(SickDeviceError) as raised:
        await executor.around(life)
    await trio.testing.wait_all_tasks_blocked()
    gc.disable()
    try:
        assert [used() for used in instance.used] == [None] * 2
    finally:
        gc.enable()
    assert raised.value.__context__ is None
    assert repr(executor) == "<StreamExecutor of m_0: 0 launching, 0 in flight>"
