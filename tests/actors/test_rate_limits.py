"""Instances that share resources, on real actors in virtual time (scheduling.md §8)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from google.protobuf import text_format

from trireme.actors import InferenceServer, StartupError
from trireme.engine.config.model import DynamicBatching, QueuePolicy
from trireme.engine.config.schema import ModelConfigMessage
from trireme.engine.errors import InternalError
from trireme.engine.options import ServerOptions
from trireme.engine.scheduling.resources import ExplicitResource
from trireme.simulations.clock import VirtualClock
from trireme.simulations.executors import VirtualExecutors
from trireme.simulations.models import Profile, SimulatedModel, SimulatedRepository, Work, simple_model, simple_request


def limited(
    name: str,
    work: Work,
    resources: str = "",
    *,
    count: int = 1,
    priority: int = 0,
    batching: DynamicBatching | None = None,
) -> SimulatedModel:
    """A model whose instances need `resources`, as in ``R:2 S:1``."""
    config = simple_model(name, work, instances=count, batching=batching).read(ServerOptions())
    needs = [each.split(":") for each in resources.split()]
    demand = " ".join(f'resources {{ name: "{resource}" count: {units} }}' for resource, units in needs)
    text = f"instance_group {{ rate_limiter {{ {demand} priority: {priority} }} }}"
    return SimulatedModel(replace(config, message=text_format.Parse(text, ModelConfigMessage())), work)


@asynccontextmanager
async def serving(*models: SimulatedModel, **options: object):
    repository = SimulatedRepository(models)
    server = InferenceServer(
        ServerOptions(**{"rate_limit": True, **options}),  # type: ignore[arg-type]
        source=repository,
        executors=VirtualExecutors(),
        clock=VirtualClock(),
        backends=repository.backends(),
    )
    async with server:
        yield server


async def ask(server: InferenceServer, *names: str) -> float:
    """How long it takes to ask these models at once."""
    started_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(server.infer, simple_request(name))
    return trio.current_time() - started_s


async def test_models_that_need_the_same_resource_take_turns(autojump_clock) -> None:
    async with serving(limited("a", Profile(1.0), "R:1"), limited("b", Profile(1.0), "R:1")) as server:
        assert await ask(server, "a", "b", "a", "b") == pytest.approx(4.0)


async def test_models_that_share_nothing_run_side_by_side(autojump_clock) -> None:
    async with serving(limited("a", Profile(1.0), "R:1"), limited("b", Profile(1.0), "S:1")) as server:
        assert await ask(server, "a", "b") == pytest.approx(1.0)


async def test_more_of_a_resource_lets_more_instances_execute(autojump_clock) -> None:
    models = [limited("a", Profile(1.0), "R:2", count=3)]
    async with serving(*models, rate_limit_resources=(ExplicitResource("R", 4),)) as server:
        assert await ask(server, *["a"] * 4) == pytest.approx(2.0)


async def test_without_the_flag_resources_are_not_looked_at(autojump_clock) -> None:
    async with serving(
        limited("a", Profile(1.0), "R:1"), limited("b", Profile(1.0), "R:1"), rate_limit=False
    ) as server:
        assert await ask(server, "a", "b") == pytest.approx(1.0)


async def test_a_batch_is_formed_when_it_may_be_executed(autojump_clock) -> None:
    """What comes while an instance waits for its turn goes into the same batch."""
    batching = DynamicBatching(preferred_batch_sizes=(8,))
    models = [limited("a", Profile(1.0), "R:1"), limited("b", Profile(1.0), "R:1", batching=batching)]
    async with serving(*models) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.infer, simple_request("a"))
            await trio.sleep(0.1)
            for _ in range(4):
                nursery.start_soon(server.infer, simple_request("b"))
                await trio.sleep(0.1)
        (entry,) = server.statistics("b")
        assert (entry.statistics.inference_count, entry.statistics.execution_count) == (4, 1)


async def test_a_queue_delay_holds_no_resource(autojump_clock) -> None:
    """While one model's queue waits for more, the other one executes."""
    batching = DynamicBatching(preferred_batch_sizes=(8,), max_queue_delay_us=2_000_000)
    models = [limited("slow", Profile(1.0), "R:1", batching=batching), limited("a", Profile(0.5), "R:1")]
    async with serving(*models) as server, trio.open_nursery() as nursery:
        nursery.start_soon(server.infer, simple_request("slow"))
        await trio.sleep(0.1)
        assert await ask(server, "a", "a") == pytest.approx(1.0)
        started_s = trio.current_time()
    assert trio.current_time() - started_s == pytest.approx(3.0 - 1.1)


async def test_an_instance_that_dies_gives_back_what_it_held(autojump_clock) -> None:
    async def die(spec: object, batch: object) -> None:
        await trio.sleep(0.5)
        raise RuntimeError("gone")

    async def fail(server: InferenceServer) -> None:
        with pytest.raises(InternalError, match="gone"):
            await server.infer(simple_request("bad"))

    models = [limited("bad", die, "R:1"), limited("a", Profile(1.0), "R:1")]
    async with serving(*models, restart_limit=0) as server, trio.open_nursery() as nursery:
        nursery.start_soon(fail, server)
        await trio.sleep(0.1)
        assert await ask(server, "a") == pytest.approx(1.4)


async def test_a_model_that_could_never_execute_is_not_loaded(autojump_clock) -> None:
    with pytest.raises(StartupError) as caught:
        async with serving(limited("a", Profile(1.0), "R:5"), rate_limit_resources=(ExplicitResource("R", 4),)):
            pass
    (entry,) = caught.value.index
    assert entry.reason == (
        'Invalid argument: Resource count for "R" is limited to 4 which will prevent scheduling of one or more model '
        "instances, the minimum required count is 5"
    )


async def test_who_was_granted_in_vain_does_not_ask_until_something_happens(autojump_clock) -> None:
    """With two instances and a delay, each would be granted in turn, for ever, at one instant."""
    batching = DynamicBatching(preferred_batch_sizes=(8,), max_queue_delay_us=500_000)
    models = [limited("a", Profile(0.0), "R:1", count=2, batching=batching)]
    async with serving(*models) as server:
        with trio.fail_after(10):
            assert await ask(server, "a") == pytest.approx(0.5)


async def test_a_burst_is_taken_into_idle_instances_before_a_queue_is_called_full(autojump_clock) -> None:
    policy = QueuePolicy(max_queue_size=1)
    models = [limited("a", Profile(1.0), "R:1", batching=DynamicBatching((1,), default_queue_policy=policy))]
    async with serving(*models) as server:
        await trio.testing.wait_all_tasks_blocked()
        assert await ask(server, "a", "a") == pytest.approx(2.0)
