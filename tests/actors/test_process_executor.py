"""The executor of an instance in a process: what still comes when the instance is at its end."""

from __future__ import annotations

import gc
import os
import weakref
from typing import cast
from unittest.mock import MagicMock

import trio

from trireme.actors.actor import Turn
from trireme.actors.executors import COPIED_IN_PLACE_BYTES, ProcessExecutor
from trireme.actors.socket_readiness import Readiness
from trireme.engine.backends.interface import ProcessInstance
from trireme.engine.errors import InvalidArgumentError, TriremeError
from trireme.engine.job import ExecutionBatch, Phase


async def test_what_an_instance_wants_at_its_end_is_not_begun() -> None:
    """The answer to a question of its model comes while its process is being ended, say: whoever brings it must not be
    hurt."""
    ended, bell = os.pipe()
    os.close(bell)
    instance = MagicMock(spec=ProcessInstance, up=True, started=True, launch_limit_s=30.0, ended=ended)
    instance.sources.return_value = instance.outputs.return_value = {}
    begun: list[str] = []

    def want() -> None:
        instance.aside(lambda: begun.append("aside"), print)
        instance.later(0.0, lambda: begun.append("later"))
        instance.on_congestion()

    instance.kill.side_effect = want
    executor = ProcessExecutor("m_0", Readiness(), Turn())

    async def life() -> None:
        await executor.call(lambda: instance)

    await executor.around(life)
    os.close(ended)
    instance.abandon.assert_called_once()
    assert begun == []


class Batch:
    """Too large to be copied on the event loop; with the data of its requests."""

    nbytes = COPIED_IN_PLACE_BYTES + 1

    def __init__(self) -> None:
        self.answers: list[str] = []

    def mark(self, _phase: Phase) -> None: ...

    def finish(self, error: TriremeError) -> None:
        self.answers.append(error.message)


def refuse(_batch: Batch) -> None:
    raise InvalidArgumentError("cannot be sent")


async def test_a_refused_batch_is_freed_at_once() -> None:
    """It has left the budget: if it waited for the garbage collector, such batches could fill the memory."""
    ended, bell = os.pipe()
    os.close(bell)
    instance = MagicMock(spec=ProcessInstance, up=True, started=True, launch_limit_s=30.0, ended=ended)
    instance.sources.return_value = instance.outputs.return_value = {}
    instance.prepare = refuse  # a mock of it would keep the batch
    executor = ProcessExecutor("m_0", Readiness(), Turn())

    async def life() -> None:
        await executor.call(lambda: instance)
        batch = Batch()
        seen = weakref.ref(batch)
        over = trio.Event()
        executor.begin(instance, cast(ExecutionBatch, batch), lambda _batch, _death=None: over.set())
        await over.wait()
        assert batch.answers == ["cannot be sent"]
        del batch
        with trio.fail_after(30):
            while seen() is not None:  # until the thread lets go of it, too
                await trio.lowlevel.checkpoint()

    gc.disable()
    try:
        await executor.around(life)
    finally:
        gc.enable()
    os.close(ended)
