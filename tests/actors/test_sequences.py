"""Sequences on real actors in virtual time."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing
from google.protobuf import text_format

from trireme.actors import InferenceServer
from trireme.engine.config import model_config
from trireme.engine.config.model import InstanceGroup, ModelConfigMessage
from trireme.engine.errors import CancelledError, InvalidArgumentError, TriremeError, UnavailableError
from trireme.engine.options import ControlMode, ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.simulations.clock import VirtualClock
from trireme.simulations.executors import VirtualExecutors
from trireme.simulations.models import Profile, SimulatedModel, SimulatedRepository, Work, simple_request

CONFIG = """
name: "cell" backend: "simulated" max_batch_size: 2
input { name: "INPUT0" data_type: TYPE_FP32 dims: [4] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [4] }
sequence_batching { direct { } max_sequence_idle_microseconds: 60000000 }
"""


@asynccontextmanager
async def serving(work: Work, instances: int = 1, **options: object):
    config = model_config(text_format.Parse(CONFIG, ModelConfigMessage()))
    config = replace(config, instance_group=(InstanceGroup("cell", "KIND_CPU", instances),))
    source = SimulatedRepository([SimulatedModel(config, work)])
    server = InferenceServer(
        ServerOptions(**options),  # type: ignore[arg-type]
        source=source,
        executors=VirtualExecutors(),
        clock=VirtualClock(),
        backends=source.backends(),
    )
    async with server:
        yield server


def part(sequence: int, *, start: bool = False, end: bool = False) -> InferenceRequest:
    return replace(simple_request("cell"), correlation_id=sequence, sequence_start=start, sequence_end=end)


async def test_a_running_sequence_may_be_finished_while_the_server_stops(autojump_clock) -> None:
    """A new one may not begin (docs/reference/sequences.md#admission)."""
    async with serving(Profile(1.0)) as server, trio.open_nursery() as nursery:
        answered: list[str] = []

        async def ask(request: InferenceRequest, name: str) -> None:
            await server.infer(request)
            answered.append(name)

        nursery.start_soon(ask, part(1, start=True), "first")
        await trio.sleep(0.2)
        nursery.start_soon(server.stop, 10.0)
        await trio.sleep(0.2)
        with pytest.raises(UnavailableError, match="Server is stopping"):
            await server.infer(part(2, start=True))
        nursery.start_soon(ask, part(1), "second")
        await trio.sleep(1.0)
        await ask(part(1, end=True), "last")
        assert answered == ["first", "second", "last"]
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(UnavailableError, match="Server is stopping"):
            await server.infer(part(1))


async def test_an_instance_that_dies_takes_its_sequences_along(autojump_clock) -> None:
    """What is queued is refused with a reason, what would continue it is told to begin again; others go on."""
    deaths = [1]

    async def work(spec: object, batch: object) -> None:
        await trio.sleep(1.0)
        if deaths:
            deaths.pop()
            raise RuntimeError("gone")

    async with serving(work) as server, trio.open_nursery() as nursery:

        async def fail(request: InferenceRequest, text: str) -> None:
            with pytest.raises(TriremeError, match=text):
                await server.infer(request)

        nursery.start_soon(fail, part(1, start=True), "gone")
        await trio.sleep(0.5)
        nursery.start_soon(fail, part(1), "is lost, because the model instance that it was bound to died")
        await trio.sleep(2.0)
        with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
            await server.infer(part(1))
        await server.infer(part(1, start=True, end=True))


async def test_a_client_that_gives_up_ends_its_sequence(autojump_clock) -> None:
    async with serving(Profile(1.0)) as server:
        await server.infer(part(1, start=True))
        with trio.move_on_after(0.5):
            await server.infer(part(2, start=True))  # executes, and goes on to do so
        reply = await server.admit(part(1))
        behind = await server.admit(part(1))
        reply.cancel()
        for each in (reply, behind):
            with pytest.raises(CancelledError):
                await each.response()
        with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
            await server.infer(part(1))
        await trio.sleep(2)
        assert server.budget_statistics().requests == 0


async def test_requests_of_a_sequence_that_waited_for_the_same_room_go_on_in_order(autojump_clock) -> None:
    """Both get it when a batch of two is over, and their tasks wake up in any order."""
    async with serving(Profile(1.0), max_inflight_requests=6) as server:
        for key in range(1, 40, 4):
            async with trio.open_nursery() as nursery:
                executed = part(key, start=True), part(key + 1, start=True), part(key, end=True)
                waiting = part(key + 2, start=True, end=True), part(key + 3, start=True), part(key + 3, end=True)
                for request in (*executed, *waiting):
                    nursery.start_soon(server.infer, request)
                    await trio.testing.wait_all_tasks_blocked()
                assert server.budget_statistics().waiting == 3
            await server.infer(part(key + 1, end=True))


async def test_unloading_lets_waiting_sequences_have_the_slots_of_silent_ones(autojump_clock) -> None:
    """Nobody can continue those any more, so nobody waits for them; what was accepted is executed."""
    options = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("cell",)}
    async with serving(Profile(1.0), **options) as server:
        for sequence in (1, 2):
            await server.infer(part(sequence, start=True))
        replies = [await server.admit(part(3, start=True)), await server.admit(part(3))]
        await trio.sleep(5.0)
        assert not any(reply.final for reply in replies), "both slots are taken, and their time is not over"
        began_s = trio.current_time()
        await server.unload_model("cell")
        for reply in replies:
            await reply.response()
        assert trio.current_time() - began_s < 10.0, "sequences may be silent for a minute"


async def test_a_server_that_stops_lets_silent_sequences_keep_their_slots(autojump_clock) -> None:
    """They may still be continued (docs/reference/sequences.md#admission)."""
    async with serving(Profile(1.0)) as server, trio.open_nursery() as nursery:
        for sequence in (1, 2):
            await server.infer(part(sequence, start=True))
        waiting = await server.admit(part(3, start=True, end=True))
        nursery.start_soon(server.stop, 50.0)
        await trio.sleep(5.0)
        assert not waiting.final
        await server.infer(part(1, end=True))
        await waiting.response()
