"""Scenarios with names: the four pictures of how Triton executes models, two of what streams are good for, and one with
everything in it."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from ..engine.backends.interface import InstanceSpec
from ..engine.config.model import DynamicBatching, QueuePolicy, TimeoutAction
from ..engine.job import ExecutionBatch
from .device import GpuWork, Kernel
from .models import Profile, simple_model, simple_request
from .stream_device import DeviceProfile, LatencyProfile
from .stream_models import StreamWork
from .world import Scenario, World


async def two_models(world: World) -> None:
    """Requests to two models arrive together: they are executed in parallel."""
    async with world.serve(simple_model("model0", Profile(0.1)), simple_model("model1", Profile(0.1))):
        await world.ask_together(simple_request("model0"), simple_request("model1"))


async def one_instance(world: World) -> None:
    """Two requests to a model with one instance arrive together: they are executed one after the other."""
    async with world.serve(simple_model("model0", Profile(0.1))):
        await world.ask_together(simple_request("model0"), simple_request("model0"))


async def three_instances(world: World) -> None:
    """Four requests to a model with three instances arrive together: three are executed in parallel, one waits."""
    async with world.serve(simple_model("model1", Profile(0.1), instances=3)):
        await world.ask_together(*(simple_request("model1") for _ in range(4)))


async def streams(world: World) -> None:
    """Three instances on one GPU, each with a stream of its own: the GPU interleaves their kernels.

    The GPU runs two such kernels at once. Copies in go one by one, beside the kernels, and so do copies out.
    """
    gpu = world.gpu("gpu0", units=2)
    kernels = tuple(Kernel(f"k{number}", 0.02) for number in range(1, 5))
    work = GpuWork(gpu, kernels, copy_in_s=0.01, copy_out_s=0.01)
    async with world.serve(simple_model("model0", work, instances=3)):
        await world.ask_together(*(simple_request("model0") for _ in range(3)))


async def overlap(world: World) -> None:
    """One instance with two batches in flight: while one is computed, the next one is copied in and the last one out.

    Copies take 10 ms each way, the computation 20 ms: six requests take the computations, one copy in and one out.
    """
    await _one_at_a_time(world, at_once=2)


async def no_overlap(world: World) -> None:
    """The same with one batch in flight: everything waits for everything."""
    await _one_at_a_time(world, at_once=1)


async def _one_at_a_time(world: World, at_once: int) -> None:
    device = world.device("gpu0", DeviceProfile(copy_in_bytes_per_s=1600, copy_out_bytes_per_s=1600))
    work = StreamWork(device, LatencyProfile({1: 0.02}), at_once)
    async with world.serve(simple_model("model0", work, max_batch_size=1)):
        await world.ask_together(*(simple_request("model0") for _ in range(6)))


async def mixed(world: World) -> None:
    """Poisson arrivals over two models, with dynamic batching, priorities, timeouts, and clients that lose patience.

    `vision` has two instances on a GPU, waits up to 20 ms for preferred sizes, and has three priority levels with a
    policy each. `text` has three instances whose time varies, batches what is there, and keeps answers in order.
    """
    gpu = world.gpu("gpu0", units=4)
    kernels = (Kernel("conv", 0.006, 0.004, units=3), Kernel("pool", 0.004, units=1), Kernel("dense", 0.008, units=2))
    vision = simple_model(
        "vision",
        GpuWork(gpu, kernels, copy_in_s=0.001, copy_out_s=0.0005),
        instances=2,
        batching=DynamicBatching(
            preferred_batch_sizes=(4, 8),
            max_queue_delay_us=20_000,
            priority_levels=3,
            default_priority_level=2,
            default_queue_policy=QueuePolicy(TimeoutAction.REJECT, 120_000, allow_timeout_override=True),
            priority_queue_policy={3: QueuePolicy(TimeoutAction.DELAY, 60_000, max_queue_size=6)},
        ),
    )

    async def varying(_spec: InstanceSpec, batch: ExecutionBatch) -> None:
        await trio.sleep(0.03 + 0.01 * batch.rows + world.random.expovariate(1 / 0.02))

    text = simple_model("text", varying, instances=3, batching=DynamicBatching((8,), preserve_ordering=True))
    async with world.serve(vision, text), trio.open_nursery() as clients:
        clients.start_soon(_poisson, world, clients, "vision", 110.0, 90)
        clients.start_soon(_poisson, world, clients, "text", 90.0, 60)


async def _poisson(world: World, clients: trio.Nursery, model: str, rate_hz: float, count: int) -> None:
    """`count` clients, on average `rate_hz` of them a second."""
    for _ in range(count):
        await trio.sleep(world.random.expovariate(rate_hz))
        clients.start_soon(_client, world, model)


async def _client(world: World, model: str) -> None:
    chance = world.random
    priority = chance.randint(0, 3)
    timeout_us = chance.choice((0, 0, round(chance.uniform(10_000, 50_000))))
    patience_s = chance.uniform(0.01, 0.06) if chance.random() < 0.15 else 60.0
    with trio.move_on_after(patience_s):
        await world.ask(simple_request(model, chance.randint(1, 4), priority=priority, timeout_us=timeout_us))


SCENARIOS: Mapping[str, Scenario] = {
    "two-models": two_models,
    "one-instance": one_instance,
    "three-instances": three_instances,
    "streams": streams,
    "overlap": overlap,
    "no-overlap": no_overlap,
    "mixed": mixed,
}
