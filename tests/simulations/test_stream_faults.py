"""GPU models under random load and random faults, in virtual time: every request gets exactly one answer, nothing is
left, and what is well goes on."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
import trio

from trireme.engine.config.model import DynamicBatching
from trireme.engine.errors import InternalError
from trireme.engine.gpu.device import OutOfDeviceMemoryError
from trireme.engine.job import ExecutionBatch
from trireme.simulations.events import BatchSealed, ExecutionEnded, RequestAbandoned, RequestAnswered, RequestSubmitted
from trireme.simulations.history import History
from trireme.simulations.models import Profile, simple_model, simple_request
from trireme.simulations.stream_device import DeviceProfile, LatencyProfile, SimulatedDevice
from trireme.simulations.stream_models import StreamWork
from trireme.simulations.world import World, run_world

SEEDS = range(40)
COLD = "an illegal memory access was encountered"


def faulty(chance: Random, rate: float):
    """Computations of which some fail."""

    def computing(_batch: ExecutionBatch) -> None:
        if chance.random() < rate:
            errors = [OutOfDeviceMemoryError("no memory left"), ValueError("it does not add up"), InternalError("no")]
            raise chance.choice(errors)

    return computing


async def plague(world: World, device: SimulatedDevice, every_s: float) -> None:
    """The device falls ill now and then, for a while."""
    while True:
        await trio.sleep(world.random.expovariate(1 / every_s))
        device.sickness = COLD
        await trio.sleep(world.random.uniform(0.01, 2.0))
        device.sickness = ""


async def client(world: World, model: str) -> None:
    chance = world.random
    with trio.move_on_after(chance.uniform(0.01, 0.3) if chance.random() < 0.1 else 600):
        await world.ask(simple_request(model, chance.randint(1, 4)))


async def scenario(world: World) -> None:
    chance = world.random
    units = chance.randint(1, 3)
    device = world.device("g", DeviceProfile(chance.uniform(1e3, 1e5), chance.uniform(1e3, 1e5), units))
    latency = LatencyProfile({1: chance.uniform(0.001, 0.05), 8: chance.uniform(0.001, 0.1)}, chance.randint(1, units))
    work = StreamWork(device, latency, chance.randint(1, 3), faulty(chance, chance.choice((0.0, 0.1, 0.5))))
    batching = chance.choice((None, DynamicBatching((4,), 5_000), DynamicBatching((8,), preserve_ordering=True)))
    instances = chance.randint(1, 3)
    options = {
        "hang_limit_s": chance.choice((0.0, 0.0, 0.5)),
        "restart_limit": chance.choice((1000, 1000, 2)),
        "exit_timeout_s": chance.choice((30.0, 30.0, 0.05)),
    }
    models = simple_model("m", work, instances=instances, batching=batching), simple_model("cpu", Profile(0.01))
    async with world.serve(*models, **options) as server, trio.open_nursery() as clients:
        if chance.random() < 0.5:
            world.nursery.start_soon(plague, world, device, chance.uniform(0.5, 5.0))
        for _ in range(chance.randint(20, 120)):
            await trio.sleep(chance.expovariate(chance.choice((20, 200))))
            clients.start_soon(client, world, chance.choice(("m", "m", "cpu")))
        if chance.random() < 0.3:
            clients.start_soon(server.stop, options["exit_timeout_s"])
    budget = server.budget_statistics()
    assert (budget.requests, budget.bytes) == (0, 0), "everything was given back"


def answered(history: History) -> Counter[int]:
    counts = Counter(event.request for event in history.of(RequestAnswered))
    counts.update(event.request for event in history.of(RequestAbandoned))
    return counts


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_gets_one_answer_and_every_batch_ends_once(seed: int) -> None:
    history = run_world(scenario, seed, limit_s=3600)
    asked = {event.request for event in history.of(RequestSubmitted)}
    assert answered(history) == Counter(asked)
    started = [event.batch for event in history.of(BatchSealed)]
    ended = [event.batch for event in history.of(ExecutionEnded)]
    assert len(ended) == len(set(ended))
    assert set(ended) <= set(started)
    cpu = {event.request for event in history.of(RequestSubmitted) if event.model == "cpu"}
    failed = [event for event in history.of(RequestAnswered) if event.error and event.request in cpu]
    assert all("stopp" in event.error or "not ready" in event.error for event in failed), (
        "a sick GPU is not their affair"
    )


def test_a_seed_is_one_history_and_the_faults_do_strike() -> None:
    first, again = (run_world(scenario, 7, limit_s=3600) for _ in range(2))
    assert first.to_bytes() == again.to_bytes()
    texts: Counter[str] = Counter()
    for seed in SEEDS:
        texts.update(event.error.split(";")[0] for event in run_world(scenario, seed, 3600).of(RequestAnswered))
    assert {"", COLD, "no memory left", "ValueError: it does not add up", "no"} <= set(texts), texts
