"""Slots are actors: each live sequence has one, its death is its own, and it is cheap."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing
from google.protobuf import text_format
from sequence_world import make_plan, sequence_job

from trireme.actors import InferenceServer
from trireme.actors.actor import Turn
from trireme.actors.slot import SlotActor, SlotActors
from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.config.sequence import OldestStrategy, SequenceBatching
from trireme.engine.errors import InvalidArgumentError, UnavailableError
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.scheduling.core import Await, Dispatch
from trireme.engine.scheduling.sequence.batcher import SequenceBatcher
from trireme.engine.scheduling.sequence.slot import Put, SlotMessage
from trireme.engine.scheduling.sequence.slot_core import SlotCore, SlotReport
from trireme.simulations.clock import VirtualClock
from trireme.simulations.executors import VirtualExecutors
from trireme.simulations.models import Profile, SimulatedModel, SimulatedRepository, simple_request

CONFIG = """
name: "cell" backend: "simulated" max_batch_size: 1
input { name: "INPUT0" data_type: TYPE_FP32 dims: [4] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [4] }
instance_group { name: "cell" kind: KIND_CPU count: 1 }
sequence_batching { oldest { max_candidate_sequences: 64 } max_sequence_idle_microseconds: 2000000 }
"""
SEQUENCES = 2_000
MOST_BYTES = 8 * 1024


@asynccontextmanager
async def serving(batch_s: float) -> AsyncIterator[InferenceServer]:
    source = SimulatedRepository(
        [SimulatedModel(model_config(text_format.Parse(CONFIG, ModelConfigMessage())), Profile(batch_s))]
    )
    server = InferenceServer(
        ServerOptions(),
        source=source,
        executors=VirtualExecutors(),
        clock=VirtualClock(),
        backends=source.backends(),
    )
    async with server:
        yield server


def part(sequence: int, *, start: bool = False, end: bool = False) -> InferenceRequest:
    return replace(simple_request("cell"), correlation_id=sequence, sequence_start=start, sequence_end=end)


def slot_tasks() -> int:
    """Tasks of slots that there are."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    found, tasks = 0, [root]
    while tasks:
        task = tasks.pop()
        found += "SlotActors._keep" in task.name
        tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found


async def test_a_slot_has_a_task_while_it_is_used_and_none_before_and_after(autojump_clock) -> None:
    async with serving(0.01) as server:
        assert slot_tasks() == 0, "64 slots that nothing uses"
        for key in (1, 2, 3):
            await server.infer(part(key, start=True))
        assert slot_tasks() == 3
        await trio.sleep(1.5)
        await server.infer(part(3))
        await trio.sleep(1.0)
        assert slot_tasks() == 1, "two have been silent for two seconds"
        await server.infer(part(3))
        with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
            await server.infer(part(2))
        await trio.sleep(3.0)
        assert slot_tasks() == 0


async def test_a_slot_that_is_free_again_serves_the_next_sequence(autojump_clock) -> None:
    async with serving(0.01) as server:
        for key in range(1, 20):
            await server.infer(part(key, start=True))
            await server.infer(part(key, end=True))
        assert slot_tasks() == 1


async def test_a_slot_that_dies_takes_its_sequence_with_it_and_nothing_else(
    autojump_clock, monkeypatch, caplog
) -> None:
    """What it held is refused, what is executed is answered, its id can begin again, and so can others in its place."""
    receive = SlotCore.receive

    def die(core: SlotCore, message: SlotMessage, now: float) -> SlotReport | None:
        if isinstance(message, Put) and message.job.id == "deadly":
            raise RuntimeError("planted")
        return receive(core, message, now)

    monkeypatch.setattr(SlotCore, "receive", die)
    async with serving(0.2) as server:
        executed = await server.admit(part(1, start=True))
        other = await server.admit(part(2, start=True))
        await trio.sleep(0.1)
        held = [
            await server.admit(part(1)),
            await server.admit(replace(part(1), id="deadly")),
            await server.admit(part(1)),
        ]
        await trio.sleep(0.01)
        for reply in held:
            with pytest.raises(
                UnavailableError, match="sequence 1 to model 'cell' is lost, because its slot died; start"
            ):
                await reply.response()
        with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
            await server.infer(part(1))
        await server.infer(part(1, start=True))
        await server.infer(part(1, end=True))
        assert await executed.response()
        assert await other.response()
        await server.infer(part(2, end=True))
        assert server.budget_statistics().requests == 0
        assert slot_tasks() == 2


async def test_a_deadline_that_is_put_off_costs_no_timer(mock_clock, monkeypatch) -> None:
    timers = 0
    made = trio.CancelScope

    def count(*arguments: float, **options: float) -> trio.CancelScope:
        nonlocal timers
        timers += 1
        return made(*arguments, **options)

    turn = Turn()
    core = SlotCore(*_slot())
    actor = SlotActor("m", core, VirtualClock(), turn, lambda _report: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.keep_running)
        nursery.start_soon(actor.run)
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(trio, "CancelScope", count)
        for _ in range(500):
            actor.mailbox.send_nowait(Put(sequence_job(1), True))
            await trio.lowlevel.checkpoint()
            mock_clock.jump(0.001)
        assert actor.deadline_s == pytest.approx(1.5, abs=0.01)
        assert actor._timer_s == pytest.approx(1.0, abs=0.01), "it is set once, and moved when it expires"
        assert timers == 0, "the actor's task has slept all the time"
        nursery.cancel_scope.cancel()


def _slot():
    batcher = SequenceBatcher(make_plan(SequenceBatching(OldestStrategy(), 1_000_000)))
    slots = []
    batcher.use_slots(lambda slot, _core: (slots.append(slot), lambda _message: None)[1])
    batcher.instance_idle(1)
    batcher.enqueue(sequence_job(1, "s"), 0.0)
    return slots[0], make_plan(SequenceBatching(OldestStrategy(), 1_000_000)).controls, 1.0


class Crowd:
    """Ten thousand live sequences at a batcher, with an actor for the slot of each."""

    def __init__(self, nursery: trio.Nursery, turn: Turn) -> None:
        strategy = OldestStrategy(max_candidate_sequences=SEQUENCES)
        clock = VirtualClock()
        self.core = SequenceBatcher(make_plan(SequenceBatching(strategy, 3_600_000_000)))
        self.core.use_slots(SlotActors("m", nursery, clock, turn, self.hear).start)

    def hear(self, report: SlotReport) -> None:
        self.core.hear(report, trio.current_time())

    async def ask(self, turn: Turn, flags: str) -> None:
        """Each sequence sends a request; all are executed."""
        for key in range(1, SEQUENCES + 1):
            with turn:
                self.core.enqueue(sequence_job(key, flags), trio.current_time())
        await trio.testing.wait_all_tasks_blocked()
        while isinstance(action := self.core.next_action(trio.current_time()), Dispatch | Await):
            if isinstance(action, Await):
                await trio.testing.wait_all_tasks_blocked()
            else:
                self.core.settle(action.jobs, trio.current_time())
                self.core.instance_idle(action.instance)


async def test_live_sequences_take_no_more_than_8_kib_each(mock_clock) -> None:
    turn = Turn()
    async with trio.open_nursery() as server, trio.open_nursery() as nursery:
        server.start_soon(turn.keep_running)
        crowd = Crowd(nursery, turn)
        crowd.core.instance_idle(1)
        gc.collect()
        tracemalloc.start()
        try:
            await crowd.ask(turn, "s")
            await crowd.ask(turn, "")
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert crowd.core.active == SEQUENCES
        assert held / SEQUENCES < MOST_BYTES
        nursery.cancel_scope.cancel()
        server.cancel_scope.cancel()
