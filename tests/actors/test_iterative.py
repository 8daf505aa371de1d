"""Iterative models on real actors: a request is executed again and again until it is done
(docs/reference/sequences.md#iterative-sequences)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio
from google.protobuf import text_format

from trireme.actors import InferenceServer
from trireme.engine.backends.interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config import model_config
from trireme.engine.config.model import InstanceGroup, ModelConfig, ModelConfigMessage
from trireme.engine.datatypes import INT32
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.job import ExecutionBatch
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor
from trireme.simulations.models import BACKEND, Profile, SimulatedModel, SimulatedRepository

CONFIG = """
name: "count" backend: "simulated" max_batch_size: 4
input { name: "TIMES" data_type: TYPE_INT32 dims: [1] }
output { name: "DONE" data_type: TYPE_INT32 dims: [1] }
sequence_batching { %s }
"""


class Counting(ModelInstance):
    """Asks for every request to be executed as often as it says, and notes what it is given."""

    def __init__(self) -> None:
        self.executed: dict[str, int] = {}
        self.starts: list[bool] = []
        self.sizes: list[int] = []

    def execute(self, batch: ExecutionBatch) -> None:
        self.sizes.append(len(batch.jobs))
        for job in batch.jobs:
            self.starts.append(job.request.sequence_start)
            done = self.executed[job.id] = self.executed.get(job.id, 0) + 1
            if done < job.inputs["TIMES"].array.item():
                job.reschedule()
            else:
                job.respond(job.response([Tensor("DONE", INT32, (1, 1), array=np.array([[done]], np.int32))]))


def backends_of(instance: ModelInstance) -> BackendRegistry:
    class Loaded(LoadedModel):
        def create_instance(self, spec: InstanceSpec) -> ModelInstance:
            return instance

    class OneInstance(Backend):
        name = BACKEND

        def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
            return Loaded()

    return BackendRegistry(lambda _name: {}, {BACKEND: OneInstance})


@asynccontextmanager
async def serving(instance: ModelInstance, batching: str):
    config = model_config(text_format.Parse(CONFIG % batching, ModelConfigMessage()))
    config = replace(config, instance_group=(InstanceGroup("count", "KIND_CPU", 1),))
    source = SimulatedRepository([SimulatedModel(config, Profile(0))])
    async with InferenceServer(ServerOptions(), source=source, backends=backends_of(instance)) as server:
        yield server


def count_to(times: int, name: str, **fields: Any) -> InferenceRequest:
    tensor = Tensor("TIMES", INT32, (1, 1), array=np.array([[times]], np.int32))
    return InferenceRequest("count", id=name, inputs=[tensor], **fields)


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
async def test_a_request_comes_back_until_it_is_done(strategy: str) -> None:
    """It is answered once, starts once, and every execution is counted."""
    instance = Counting()
    async with serving(instance, f"iterative_sequence: true {strategy}") as server:
        response = await server.infer(count_to(4, "a"))
        assert response.output("DONE").array.tolist() == [[4]]
        (entry,) = server.statistics("count")
        assert (entry.statistics.success.count, entry.statistics.inference_count) == (4, 4)
        assert entry.statistics.pending == 0
        assert server.budget_statistics().requests == 0
    assert instance.starts == [True, False, False, False]


async def test_requests_in_different_stages_share_batches() -> None:
    instance = Counting()
    async with serving(instance, "iterative_sequence: true oldest { max_candidate_sequences: 4 }") as server:
        done: list[str] = []

        async def ask(times: int, name: str) -> None:
            await server.infer(count_to(times, name))
            done.append(name)

        async with trio.open_nursery() as nursery:
            for times in (50, 20, 30, 40):
                nursery.start_soon(ask, times, str(times))
    assert done == ["20", "30", "40", "50"]
    assert instance.executed == {"20": 20, "30": 30, "40": 40, "50": 50}
    assert max(instance.sizes) > 1


async def test_only_an_iterative_model_may_have_requests_executed_again() -> None:
    async with serving(Counting(), "direct { }") as server:
        request = count_to(2, "a", correlation_id=5, sequence_start=True, sequence_end=True)
        with pytest.raises(InvalidArgumentError, match="TRITONSERVER_REQUEST_RELEASE_RESCHEDULE"):
            await server.infer(request)


async def test_a_cancelled_request_comes_back_no_more() -> None:
    instance = Counting()
    async with serving(instance, "iterative_sequence: true direct { }") as server:
        with trio.fail_after(30):
            with trio.move_on_after(0.05):
                await server.infer(count_to(2**30, "endless"))
            await server.infer(count_to(1, "next"))
            while server.budget_statistics().requests:
                await trio.lowlevel.checkpoint()
    assert instance.executed["next"] == 1
