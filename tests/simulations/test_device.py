"""A GPU in virtual time, with instances that work on it."""

from __future__ import annotations

import pytest

from trireme.engine.config.model import DynamicBatching
from trireme.simulations.device import GpuWork, Kernel
from trireme.simulations.events import ExecutionEnded, KernelEnded, KernelStarted, RequestAnswered
from trireme.simulations.history import History
from trireme.simulations.models import simple_model, simple_request
from trireme.simulations.world import World, run_world

MS = 1_000_000


def spans(history: History) -> list[tuple[int, str, int, int]]:
    """(stream, name, start, end) of everything that ran on GPUs, in milliseconds, by start."""
    ends = {(event.stream, event.kernel, event.batch): event.at_ns // MS for event in history.of(KernelEnded)}
    return [
        (event.stream, event.kernel, event.at_ns // MS, ends[event.stream, event.kernel, event.batch])
        for event in history.of(KernelStarted)
    ]


def test_a_batch_is_copied_in_computed_and_copied_out_by_its_rows() -> None:
    async def scenario(world: World) -> None:
        work = GpuWork(world.gpu("g", 1), (Kernel("k", 0.01, 0.002),), copy_in_s=0.001, copy_out_s=0.003)
        async with world.serve(simple_model("m", work, batching=DynamicBatching((8,)))):
            await world.ask_together(simple_request("m", 2), simple_request("m", 3))

    history = run_world(scenario, 1)
    assert spans(history) == [(0, "in", 0, 5), (0, "k", 5, 25), (0, "out", 25, 40)]
    assert history.of(ExecutionEnded) == [ExecutionEnded(40 * MS, 1, "done")]


def test_models_share_a_gpu_and_feel_each_other() -> None:
    async def scenario(world: World) -> None:
        gpu = world.gpu("g", 2)
        models = [
            simple_model("a", GpuWork(gpu, (Kernel("a", 0.01, units=2), Kernel("b", 0.01)))),
            simple_model("c", GpuWork(gpu, (Kernel("c", 0.03),))),
        ]
        async with world.serve(*models):
            await world.ask_together(simple_request("a"), simple_request("c"))

    a_first = [("a", 0, 10), ("c", 10, 40), ("b", 10, 20)]
    c_first = [("c", 0, 30), ("a", 30, 40), ("b", 40, 50)]
    seen = [[span[1:] for span in spans(run_world(scenario, seed))] for seed in range(10)]
    assert a_first in seen, "the seed decides who comes first"
    assert c_first in seen
    assert all(run in (a_first, c_first) for run in seen)


def test_what_was_launched_runs_on_when_its_instance_is_given_up_and_its_successor_waits_behind_it() -> None:
    async def scenario(world: World) -> None:
        work = GpuWork(world.gpu("g", 1), (Kernel("k", 3.0),))
        async with world.serve(simple_model("m", work), hang_limit_s=2, exit_timeout_s=0):
            await world.ask(simple_request("m"))
            await world.ask(simple_request("m"))

    history = run_world(scenario, 1)
    first = history.of(RequestAnswered)[0]
    assert first.at_ns == 2000 * MS
    assert first.error.endswith("gave no answer within 2 s and was given up")
    assert [event.at_ns for event in history.of(KernelStarted)] == [0, 3000 * MS]
    assert [event.at_ns for event in history.of(KernelEnded)] == [3000 * MS], "the second had no time to end"


@pytest.mark.parametrize("units", [3, 0])
def test_a_kernel_that_the_device_cannot_run_costs_its_instance_and_says_why(units: int) -> None:
    async def scenario(world: World) -> None:
        work = GpuWork(world.gpu("g", 2), (Kernel("k", 0.01, units=units),))
        async with world.serve(simple_model("m", work), restart_limit=0):
            await world.ask(simple_request("m"))

    (answer,) = run_world(scenario, 1).of(RequestAnswered)
    assert f"'k' takes {units} of 2 units of the compute engine" in answer.error
