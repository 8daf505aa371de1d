"""Models on GPUs in swarm runs: what is drawn, what goes wrong, and that the invariants see it."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

from trireme.engine.gpu.device import OutOfDeviceMemoryError, SickDeviceError
from trireme.simulations.events import RequestAnswered
from trireme.simulations.moved_to_gpus import moved_to_gpus
from trireme.simulations.plan import Change, ChangePlan, Fault, GpuPlan, ModelPlan, Plan, RequestPlan, SequencesPlan
from trireme.simulations.play import RunOutcome, play
from trireme.simulations.report import describe
from trireme.simulations.stream_device import DeviceProfile
from trireme.simulations.swarm import draw_plan
from trireme.simulations.world import World, run_world

MS = 1_000_000
BYTE = np.dtype(np.uint8)
MODEL = ModelPlan("m", max_batch_size=1, gpus=(0,))


def run(*requests: RequestPlan, model: ModelPlan = MODEL, gpu: GpuPlan | None = None, **options) -> RunOutcome:
    plan = Plan(1, (model,), requests, calm_ns=1_000 * MS, gpus=(gpu or GpuPlan(),))
    outcome = play(replace(plan, **options))
    assert outcome.violation is None
    return outcome


def errors(outcome: RunOutcome) -> dict[int, str]:
    return {event.request: event.error for event in outcome.history.of(RequestAnswered)}


def requests(*faults: Fault) -> tuple[RequestPlan, ...]:
    return tuple(RequestPlan(number, "m", 0, fault=fault) for number, fault in enumerate(faults, 1))


# -- what is drawn -----------------------------------------------------------------------------------------------------


def test_some_runs_have_gpus_and_what_is_drawn_can_be_served() -> None:
    plans = [draw_plan(seed) for seed in range(1, 101)]
    having = [plan for plan in plans if plan.gpus]
    assert 20 < len(having) < 50
    assert {len(plan.gpus) for plan in having} == {1, 2}
    models = [(plan, model) for plan in having for model in plan.models if model.gpus]
    for plan, model in models:
        assert not model.decoupled
        assert not model.steps
        assert max(model.gpus) < len(plan.gpus)
        assert min(model.failing_starts, default=99) > model.instances * len(model.gpus)
    assert {model.credits for _, model in models} == {1, 2, 3}
    assert any(plan.pinned_bytes for plan in having)
    assert any(model.sequences for _, model in models)


def test_where_no_gpus_are_drawn_a_plan_is_what_it_was() -> None:
    plans = [Plan(seed, (ModelPlan("m"),), requests(Fault.NONE), 0) for seed in range(20)]
    moved = [moved_to_gpus(plan) for plan in plans]
    assert 0 < sum(after is before for before, after in zip(plans, moved, strict=True)) < len(plans)


def test_gpus_are_described_in_words() -> None:
    plan = Plan(
        1, (MODEL,), requests(Fault.LATE), 0, gpus=(GpuPlan(memory_bytes=64, ill_ns=5 * MS),), pinned_bytes=8192
    )
    run_line, model, request = describe(plan)
    assert run_line.endswith(
        "GPU 0: 1 units, copies 1 and 1 ms a row, ill for 5 ms, 64 bytes, 8192 bytes of pinned memory"
    )
    assert "on GPU 0, 2 in flight" in model
    assert request.endswith("batch fails when it has landed")


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_batch_that_finds_no_memory_or_fails_late_fails_alone() -> None:
    outcome = run(*requests(Fault.MEMORY, Fault.LATE, Fault.RAISE, Fault.NONE))
    told = errors(outcome)
    assert told[1].startswith("gpu0 has no memory for request 1; it was a batch of 1 on instance 'm_0'")
    assert told[2] == "request 2 made its batch fail late"
    assert told[3] == "SimulatedFailure: request 3 raised on gpu0"
    assert told[4] == ""
    assert not outcome.counts["an instance restarted"]


def test_a_silently_sick_gpu_costs_what_is_in_flight_and_the_next_instance_serves() -> None:
    outcome = run(*requests(Fault.SICK, Fault.NONE, Fault.NONE), gpu=GpuPlan(ill_ns=5 * MS))
    text = "request 1 made gpu0 fall ill"
    assert errors(outcome) == {1: text, 2: text, 3: ""}
    assert outcome.counts["several batches lost with an instance"] == 1


def test_an_instance_cannot_start_on_a_gpu_that_is_still_sick() -> None:
    later = RequestPlan(2, "m", 200 * MS)
    outcome = run(*requests(Fault.CRASH), later, gpu=GpuPlan(ill_ns=150 * MS))
    assert outcome.counts["fault: start on a sick GPU"] == 1
    assert errors(outcome) == {1: "request 1 made gpu0 fall ill", 2: ""}


def test_what_hangs_lands_after_its_instance_was_given_up_and_its_memory_comes_back() -> None:
    outcome = run(*requests(Fault.HANG, Fault.NONE), hang_limit_s=0.1)
    assert outcome.counts["landed after its instance was lost"] >= 1


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        ({"pinned_bytes": 3 * 4096}, "pinned memory used up"),
        ({"gpu": GpuPlan(memory_bytes=48)}, "a GPU's memory used up"),
    ],
)
def test_pools_run_out_of_memory_and_go_on(options: dict, counted: str) -> None:
    told = errors(outcome := run(*requests(*[Fault.NONE] * 4), **options))
    assert outcome.counts[counted] >= 1
    assert "" in told.values()


# -- what it has found -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hang_limit_s", [0.0, 5.0])
@pytest.mark.parametrize("oldest", [False, True])
def test_the_next_request_of_a_sequence_goes_when_the_one_before_it_has_landed(
    oldest: bool, hang_limit_s: float
) -> None:
    """It waited for that, and for nothing else: its instance had room all the time."""
    model = replace(MODEL, sequences=SequencesPlan(oldest=oldest))
    asked = [RequestPlan(number, "m", 0, sequence=7, start=number == 1, end=number == 3) for number in (1, 2, 3)]
    outcome = run(*asked, model=model, hang_limit_s=hang_limit_s)
    assert set(errors(outcome).values()) == {""}
    assert [event.at_ns // MS for event in outcome.history.of(RequestAnswered)] == [12, 24, 36]


def test_a_batch_that_cannot_be_collected_leaves_nothing_of_it_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even until garbage is collected: a GPU's memory may be needed before."""
    monkeypatch.setattr(gc, "collect", lambda: 0)
    run(*requests(Fault.EXIT))


def test_a_model_that_is_given_up_lets_go_of_the_instance_that_it_lost() -> None:
    """The reason is kept, to be shown; all that was at hand when it came up is not."""
    unload = ChangePlan(5 * MS, "m", Change.UNLOAD)
    faults = (Fault.SICK, Fault.NONE, Fault.NONE)
    outcome = run(*requests(*faults), hang_limit_s=0.1, restart_limit=0, changes=(unload,))
    assert "died 1 times" in errors(outcome)[3]


# -- the device --------------------------------------------------------------------------------------------------------


def test_who_used_a_device_when_it_fell_ill_stays_void_and_others_come_afresh() -> None:
    async def scenario(world: World) -> None:
        device = world.device("g", DeviceProfile(1e3, 1e3))
        before = device.stream()
        called: list[str] = []
        before.call(lambda: called.append("before"))
        device.sickness = "a cold"
        with pytest.raises(SickDeviceError, match="a cold"):
            device.stream()
        device.sickness = ""
        after = device.stream()
        after.call(lambda: called.append("after"))
        with pytest.raises(SickDeviceError, match="a cold"):
            before.record()
        await world.clock.sleep(1.0)
        assert called == ["after"]

    run_world(scenario, 1)


def test_a_device_counts_its_memory() -> None:
    async def scenario(world: World) -> None:
        device = world.device("g", DeviceProfile(1e3, 1e3, memory_bytes=100))
        array = device.empty((60,), BYTE)
        with pytest.raises(OutOfDeviceMemoryError, match="g has no room for 60 bytes: 60 of its 100 bytes are in use"):
            device.empty((60,), BYTE)
        del array
        assert device.used_bytes == 0
        device.empty((60,), BYTE)

    run_world(scenario, 1)


def test_memory_that_goes_back_while_the_device_is_at_it_is_noticed() -> None:
    async def scenario(world: World) -> None:
        device = world.device("g", DeviceProfile(1e3, 1e3))
        told: list[str] = []
        device.on_misuse = told.append
        held = device.pinned((4,), BYTE)
        array = device.stream().upload(held)
        device.stream().upload(device.pinned((4,), BYTE))
        await world.clock.sleep(1.0)
        assert told == ["memory went back while g was at it: 'in' of batch 0"]
        assert array.nbytes == 4

    run_world(scenario, 1)
