"""A server in virtual time: in-memory models, simulated work, no thread and no socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from valued_models import Gates

from trireme.actors import InferenceServer
from trireme.engine.config.model import DynamicBatching
from trireme.engine.logs.request_recorder import RequestRecorder
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.simulations.clock import VirtualClock
from trireme.simulations.executors import VirtualExecutors
from trireme.simulations.models import SimulatedModel, SimulatedRepository, Work, simple_model, simple_request

OpenServer = Callable[..., AbstractAsyncContextManager[InferenceServer]]


def simulated(
    work: Work,
    name: str = "m",
    *,
    count: int = 1,
    batching: DynamicBatching | None = None,
    versions: Sequence[int] = (1,),
    **fields: Any,
) -> SimulatedModel:
    """A `simple_model` with other versions or fields of its configuration."""
    config = simple_model(name, work, instances=count, batching=batching).config
    return SimulatedModel(replace(config, **fields), work, versions)


def request_for(name: str = "m", rows: int = 1, **fields: Any) -> InferenceRequest:
    return replace(simple_request(name, rows), **fields)


@pytest.fixture(name="simulated")
def simulated_fixture() -> Callable[..., SimulatedModel]:
    return simulated


@pytest.fixture(name="request_for")
def request_for_fixture() -> Callable[..., InferenceRequest]:
    return request_for


@pytest.fixture
def open_server() -> OpenServer:
    """Opens a server on simulated models; options are `ServerOptions` fields, ``on_request`` and ``request_log``."""

    @asynccontextmanager
    async def open_with(
        *models: SimulatedModel,
        on_request: Callable[[InferenceRequest, int], None] | None = None,
        request_log: RequestRecorder | None = None,
        **options: Any,
    ) -> AsyncIterator[InferenceServer]:
        repository = SimulatedRepository(models)
        server = InferenceServer(
            ServerOptions(**options),
            on_request=on_request,
            request_log=request_log,
            source=repository,
            executors=VirtualExecutors(),
            clock=VirtualClock(),
            backends=repository.backends(),
        )
        async with server:
            yield server

    return open_with


@pytest.fixture
def gates() -> Gates:
    return Gates()
