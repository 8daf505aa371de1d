"""How long an instance may take for a batch, while it holds two."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from trireme.actors.actor import Actor, Mailbox, Recipient, Turn
from trireme.actors.instance import Instance, InstanceHungError
from trireme.actors.messages import Execute
from trireme.actors.offload import Done
from trireme.engine.backends.interface import InstanceSpec, StreamInstance
from trireme.engine.clock import SystemClock
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.request import InferenceRequest

LIMIT_S = 10


class SilentOwner(Recipient):
    def take_turn(self) -> None:
        """What it is sent is of no interest."""

    def fail(self, error: Exception) -> None:
        raise AssertionError from error


class Bench:
    """An instance that serves, and its executor, which ends batches when it is told to."""

    def __init__(self) -> None:
        turn = Turn()
        self.over: dict[ExecutionBatch, Done] = {}
        loaded: Any = SimpleNamespace(
            limit_s=LIMIT_S, isolates=False, model=SimpleNamespace(instance_class=lambda _spec: StreamInstance)
        )
        executor = SimpleNamespace(begin=lambda _copy, batch, done: self.over.update({batch: done}))
        context: Any = SimpleNamespace(
            turn=turn, clock=SystemClock(), executors=SimpleNamespace(instance_executor=lambda *_: executor)
        )
        scheduler: Any = SimpleNamespace(mailbox=Mailbox[Any]("tests", turn, SilentOwner()))
        order: Any = SimpleNamespace(spec=InstanceSpec("m_0", "KIND_GPU", 0), limit=None, passive=False)
        self.instance = Instance(1, 0, order, loaded, 1, scheduler, context)
        self.instance._copy = cast(Any, object())

    def execute(self) -> ExecutionBatch:
        batch = ExecutionBatch((Job(InferenceRequest("m"), {}, 1, "m", 1, cast(Any, None)),), "m_0", SystemClock())
        self.instance.tell(Execute(batch))
        return batch

    def end(self, batch: ExecutionBatch) -> None:
        batch.finish()
        self.over.pop(batch)(batch)


@pytest.mark.parametrize(("first_ends", "given_up_s"), [(False, LIMIT_S), (True, LIMIT_S + 6)])
async def test_the_limit_is_for_the_oldest_batch_since_it_was_the_oldest(
    autojump_clock: object, first_ends: bool, given_up_s: float
) -> None:
    bench = Bench()
    began_s = trio.current_time()
    with pytest.RaisesGroup(InstanceHungError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Actor.run, bench.instance)
            first = bench.execute()
            await trio.sleep(6)
            bench.execute()
            if first_ends:
                bench.end(first)
    assert trio.current_time() - began_s == pytest.approx(given_up_s)
