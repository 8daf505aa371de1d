"""A model on GPUs, from its configuration to the page: the real actors, simulated work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from trireme.actors import InferenceServer
from trireme.api.metrics.collector import ServerCollector
from trireme.engine.config.model import DynamicBatching, InstanceGroup, ModelConfig
from trireme.engine.errors import InternalError
from trireme.engine.job import ExecutionBatch
from trireme.engine.metrics.families import HostReadings
from trireme.engine.metrics.page import write_text
from trireme.simulations.models import Profile, SimulatedModel, answer_with_zeros, simple_model, simple_request
from trireme.simulations.world import World, run_world

GPUS = (0, 1)
UUIDS = {0: "GPU-a", 1: "GPU-b"}


def answer_or_fail(config: ModelConfig, batch: ExecutionBatch) -> None:
    """The second request of a world fails."""
    for job in batch.jobs:
        if job.id == "2":
            job.fail(InternalError("no"))
    answer_with_zeros(config, batch)


def gpu_model(kind: str = "KIND_GPU", *, decoupled: bool = False) -> SimulatedModel:
    model = simple_model("m", Profile(0.1), max_batch_size=1, batching=DynamicBatching())
    config = model.config
    group = InstanceGroup("m", kind, 1, gpus=GPUS if kind == "KIND_GPU" else ())
    made = SimulatedModel(replace(config, instance_group=(group,), decoupled=decoupled), Profile(0.1))
    made.answer = answer_or_fail
    return made


def scrape(server: InferenceServer, uuids: Mapping[int, str]) -> dict[tuple[str, str, str], float]:
    """Values of Triton's families by name, GPU and reason."""
    text = write_text(ServerCollector(server, lambda: HostReadings(gpu_uuids=uuids)).collect())
    return {
        (sample.name, sample.labels.get("gpu_uuid", ""), sample.labels.get("reason", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("nv_inference")
    }


@pytest.mark.parametrize("decoupled", [False, True])
def test_what_each_gpu_has_done_is_on_the_page(decoupled: bool) -> None:
    """Both work side by side; of four requests one fails, and one is given up while it waits."""

    async def scenario(world: World) -> None:
        async with world.serve(gpu_model(decoupled=decoupled), summary_latencies=True) as server:
            before = scrape(server, UUIDS)
            for uuid in ("", "GPU-a", "GPU-b"):
                assert before["nv_inference_request_success_total", uuid, ""] == 0, "series exist from load on"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.ask_together, simple_request("m"), simple_request("m"))
                await world.clock.sleep(0.01)
                with trio.move_on_after(0.02):
                    await world.ask(simple_request("m"))
            await world.ask(simple_request("m"))
            await world.clock.sleep(0.001)  # a decoupled model's last answer may come before its batch is over
            found = scrape(server, UUIDS)
            (told,) = server.statistics("m")
            assert (told.statistics.success.count, told.statistics.execution_count) == (2, 3)
            on_gpus = [found["nv_inference_exec_count_total", uuid, ""] for uuid in ("GPU-a", "GPU-b")]
            assert sum(on_gpus) == 3
            assert min(on_gpus) == 1, "both were needed"
            assert found["nv_inference_exec_count_total", "", ""] == 0
            assert found["nv_inference_request_success_total", "", ""] == 0
            for name in ("nv_inference_count_total", "nv_inference_queue_summary_us_count"):
                assert sum(found[name, uuid, ""] for uuid in ("GPU-a", "GPU-b")) == 2
            failed = {key[1:] for key, value in found.items() if key[0].endswith("failure_total") and value == 1}
            ((gpu, reason),) = failed - {("", "CANCELED")}
            assert reason == "BACKEND"
            assert gpu in ("GPU-a", "GPU-b")
            assert ("", "CANCELED") in failed
            assert ("nv_inference_pending_request_count", "GPU-a", "") not in found

    run_world(scenario, seed=1)


@pytest.mark.parametrize("kind", ["KIND_CPU", "KIND_MODEL", "KIND_GPU"])
def test_other_instances_and_unknown_gpus_have_no_such_label(kind: str) -> None:
    async def scenario(world: World) -> None:
        async with world.serve(gpu_model(kind)) as server:
            await world.ask(simple_request("m"))
            found = scrape(server, {} if kind == "KIND_GPU" else UUIDS)
            assert {uuid for _, uuid, _ in found} == {""}
            assert found["nv_inference_request_success_total", "", ""] == 1

    run_world(scenario, seed=1)


def test_a_gpu_whose_uuid_is_unknown_is_counted_without() -> None:
    async def scenario(world: World) -> None:
        async with world.serve(gpu_model()) as server:
            await world.ask_together(simple_request("m"), simple_request("m"))
            name = "nv_inference_exec_count_total"
            found = scrape(server, {1: "GPU-b"})
            assert (found[name, "", ""], found[name, "GPU-b", ""]) == (1, 1)

    run_world(scenario, seed=1)
