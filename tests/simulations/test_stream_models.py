"""The stream actor and its pipeline, the server's own, on a GPU in virtual time."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.config.model import DynamicBatching
from trireme.engine.gpu.device import OutOfDeviceMemoryError
from trireme.engine.job import ExecutionBatch
from trireme.simulations.events import ExecutionEnded, KernelEnded, KernelStarted, RequestAnswered
from trireme.simulations.history import History
from trireme.simulations.models import simple_model, simple_request
from trireme.simulations.stream_device import DeviceProfile, LatencyProfile
from trireme.simulations.stream_models import StreamWork
from trireme.simulations.world import World, run_world

MS = 1_000_000
SEEDS = (1, 2, 3)
ROW = DeviceProfile(copy_in_bytes_per_s=1600, copy_out_bytes_per_s=1600)
"""A row of 16 bytes is copied in 10 ms each way."""


def answers(history: History) -> list[tuple[int, str]]:
    """In order: milliseconds, error."""
    return [(event.at_ns // MS, event.error) for event in history.of(RequestAnswered)]


def makespan_ms(at_once: int, compute_s: float, seed: int, requests: int = 6, instances: int = 1) -> int:
    """How long it takes to answer requests that come together, of one row each."""

    async def scenario(world: World) -> None:
        work = StreamWork(world.device("g", ROW), LatencyProfile({1: compute_s}), at_once)
        async with world.serve(simple_model("m", work, instances=instances, max_batch_size=1)):
            await world.ask_together(*(simple_request("m") for _ in range(requests)))

    return answers(run_world(scenario, seed))[-1][0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("compute_ms", "one", "two"), [(30, 300, 200), (20, 240, 140), (100, 720, 620)])
def test_with_two_batches_in_flight_copies_hide_behind_computation(
    compute_ms: int, one: int, two: int, seed: int
) -> None:
    """With one, six requests take six times everything; with two, six computations, a copy in and a copy out."""
    assert one == 6 * (10 + compute_ms + 10)
    assert two == 10 + 6 * compute_ms + 10
    assert makespan_ms(1, compute_ms / 1e3, seed) == one
    assert makespan_ms(2, compute_ms / 1e3, seed) == two


@pytest.mark.parametrize("seed", SEEDS)
def test_where_copies_take_longer_two_in_flight_are_held_up_by_them(seed: int) -> None:
    """Copies both ways at once, computation behind them: two batches share three steps of 10, 5 and 10 ms."""
    assert makespan_ms(1, 0.005, seed) == 6 * 25
    assert makespan_ms(2, 0.005, seed) == 3 * 25 + 10


def test_two_instances_beat_one_that_leaves_the_device_idle() -> None:
    """With one batch in flight each; the device computes one at a time."""
    assert makespan_ms(1, 0.02, 1, instances=2) < makespan_ms(1, 0.02, 1, instances=1)


def test_streams_of_one_batch_wait_for_each_other() -> None:
    async def scenario(world: World) -> None:
        work = StreamWork(world.device("g", ROW), LatencyProfile({1: 0.02, 3: 0.04}))
        async with world.serve(simple_model("m", work, batching=DynamicBatching((8,)))):
            await world.ask_together(simple_request("m", 2), simple_request("m", 1))

    history = run_world(scenario, 1)
    starts = [(event.stream, event.kernel, event.at_ns // MS) for event in history.of(KernelStarted)]
    assert starts == [(0, "in", 0), (1, "k", 30), (2, "out", 70)]
    assert history.of(KernelEnded)[-1].at_ns == 100 * MS
    assert history.of(ExecutionEnded) == [ExecutionEnded(100 * MS, 1, "done")]


def test_the_same_seed_is_the_same_history() -> None:
    async def scenario(world: World) -> None:
        work = StreamWork(world.device("g", DeviceProfile(4e4, 2e4, 2)), LatencyProfile({1: 0.01, 8: 0.02}))
        model = simple_model("m", work, instances=2, batching=DynamicBatching((4,), 5_000))
        async with world.serve(model), trio.open_nursery() as clients:
            for _ in range(60):
                await trio.sleep(world.random.expovariate(300))
                clients.start_soon(world.ask, simple_request("m", world.random.randint(1, 4)))

    histories = [run_world(scenario, seed) for seed in (1, 1, 2)]
    assert histories[0].to_bytes() == histories[1].to_bytes() != histories[2].to_bytes()
    assert all(not error for _, error in answers(histories[0]))


# -- profiles --------------------------------------------------------------------------------------------------------


def test_latency_between_measured_sizes_is_interpolated() -> None:
    profile = LatencyProfile({4: 0.04, 1: 0.01, 8: 0.06})
    seen = {rows: round(profile.at(rows), 6) for rows in (1, 2, 4, 6, 8, 10)}
    assert seen == {1: 0.01, 2: 0.02, 4: 0.04, 6: 0.05, 8: 0.06, 10: 0.07}
    assert LatencyProfile({4: 0.04}).at(1) == LatencyProfile({4: 0.04}).at(9) == 0.04


@given(st.dictionaries(st.integers(1, 64), st.floats(1e-4, 1.0), min_size=1), st.integers(1, 64))
def test_a_latency_is_among_those_around_it(measured: dict[int, float], rows: int) -> None:
    latency_s = LatencyProfile(measured).at(rows)
    if rows in measured:
        assert latency_s == pytest.approx(measured[rows])
    elif min(measured) < rows < max(measured):
        assert min(measured.values()) - 1e-9 <= latency_s <= max(measured.values()) + 1e-9


# -- faults ----------------------------------------------------------------------------------------------------------


def failing(*errors: Exception | None):
    """Computations that raise these, one after the other."""
    remaining = list(errors)

    def computing(_batch: ExecutionBatch) -> None:
        error = remaining.pop(0) if remaining else None
        if error is not None:
            raise error

    return computing


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_that_finds_no_memory_says_so_and_the_others_go_on(seed: int) -> None:
    async def scenario(world: World) -> None:
        computing = failing(None, OutOfDeviceMemoryError("no memory left"), None)
        work = StreamWork(world.device("g", ROW), LatencyProfile({1: 0.02}), computing=computing)
        async with world.serve(simple_model("m", work, max_batch_size=1)) as server:
            await world.ask_together(*(simple_request("m") for _ in range(3)))
            assert server.model_statistics()[0].restarts == 0

    seen = answers(run_world(scenario, seed))
    assert [error for _, error in seen if not error] == ["", ""]
    (text,) = [error for _, error in seen if error]
    assert text.startswith("no memory left; it was a batch of 1 on instance 'm_0': lower max_batch_size")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_device_that_falls_ill_in_silence_is_found_out_within_a_second_and_the_next_instance_serves(
    seed: int,
) -> None:
    """At 5 ms, when it copies the first of two batches. One second after that was launched it is asked after."""

    async def scenario(world: World) -> None:
        device = world.device("g", ROW)
        work = StreamWork(device, LatencyProfile({1: 0.02}))
        async with world.serve(simple_model("m", work, max_batch_size=1)) as server, trio.open_nursery() as clients:
            clients.start_soon(world.ask_together, *(simple_request("m") for _ in range(3)))
            await trio.sleep(0.005)
            device.sickness = "an illegal memory access was encountered"
            await trio.sleep(1.0)
            device.sickness = ""
            await trio.sleep(1.0)
            assert server.model_statistics()[0].restarts == 1

    history = run_world(scenario, seed)
    text = "an illegal memory access was encountered"
    assert answers(history) == [(1000, text), (1000, text), (1140, "")]
    assert [event.ending for event in history.of(ExecutionEnded)] == ["SickDeviceError"] * 2 + ["done"]


def test_an_instance_that_finds_its_device_sick_dies_of_it() -> None:
    async def scenario(world: World) -> None:
        device = world.device("g", ROW)

        def computing(_batch: ExecutionBatch) -> None:
            device.sickness = "it has a cold"
            device.check()

        work = StreamWork(device, LatencyProfile({1: 0.02}), computing=computing)
        async with world.serve(simple_model("m", work, max_batch_size=1), restart_limit=0) as server:
            await world.ask(simple_request("m"))
            await trio.sleep(0.1)
            assert not server.model_ready("m")

    assert answers(run_world(scenario, 1)) == [(0, "it has a cold")]


def test_a_batch_that_hangs_is_given_up() -> None:
    async def scenario(world: World) -> None:
        work = StreamWork(world.device("g", ROW), LatencyProfile({1: 5.0}))
        async with world.serve(simple_model("m", work), hang_limit_s=2, exit_timeout_s=0):
            await world.ask(simple_request("m"))

    history = run_world(scenario, 1)
    assert answers(history) == [(2000, "instance 'm_0' gave no answer within 2 s and was given up")]
    assert history.of(ExecutionEnded) == [ExecutionEnded(2000 * MS, 1, "given up")]


def test_a_server_that_stops_lets_land_what_is_in_flight() -> None:
    async def scenario(world: World) -> None:
        work = StreamWork(world.device("g", ROW), LatencyProfile({1: 0.5}))
        async with world.serve(simple_model("m", work, max_batch_size=1)) as server, trio.open_nursery() as clients:
            clients.start_soon(world.ask_together, *(simple_request("m") for _ in range(3)))
            await trio.sleep(0.1)
            clients.start_soon(server.stop, 30.0)

    assert answers(run_world(scenario, 1)) == [(520, ""), (1020, ""), (1520, "")]
