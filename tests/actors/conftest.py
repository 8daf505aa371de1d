"""A server in virtual time: in-memory models, simulated work, no thread and no socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from trireme.actors import InferenceServer
from trireme.engine.config.model import DynamicBatching, InstanceGroup, ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import FP32
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor
from trireme.simulations.clock import VirtualClock
from trireme.simulations.executors import VirtualExecutors
from trireme.simulations.models import BACKEND, SimulatedModel, SimulatedRepository, Work

OpenServer = Callable[..., AbstractAsyncContextManager[InferenceServer]]


def simulated(
    work: Work,
    name: str = "m",
    *,
    count: int = 1,
    max_batch_size: int = 8,
    batching: DynamicBatching | None = None,
    versions: Sequence[int] = (1,),
    **fields: Any,
) -> SimulatedModel:
    """A model with one FP32[4] input and output whose batches take what `work` takes."""
    config = ModelConfig(
        name=name,
        backend=BACKEND,
        max_batch_size=max_batch_size,
        input=(ModelInput("INPUT0", FP32, (4,)),),
        output=(ModelOutput("OUTPUT0", FP32, (4,)),),
        instance_group=(InstanceGroup(name, "KIND_CPU", count),),
        dynamic_batching=batching,
    )
    return SimulatedModel(replace(config, **fields), work, versions)


def request_for(name: str = "m", rows: int = 1, **fields: Any) -> InferenceRequest:
    tensor = Tensor("INPUT0", FP32, (rows, 4), array=np.zeros((rows, 4), np.float32))
    return InferenceRequest(name, inputs=[tensor], **fields)


@pytest.fixture(name="simulated")
def simulated_fixture() -> Callable[..., SimulatedModel]:
    return simulated


@pytest.fixture(name="request_for")
def request_for_fixture() -> Callable[..., InferenceRequest]:
    return request_for


@pytest.fixture
def open_server() -> OpenServer:
    """Opens a server on simulated models; options are `ServerOptions` fields."""

    @asynccontextmanager
    async def open_with(*models: SimulatedModel, **options: Any) -> AsyncIterator[InferenceServer]:
        repository = SimulatedRepository(models)
        server = InferenceServer(
            ServerOptions(**options),
            source=repository,
            executors=VirtualExecutors(),
            clock=VirtualClock(),
            backends=repository.backends(),
        )
        async with server:
            yield server

    return open_with
