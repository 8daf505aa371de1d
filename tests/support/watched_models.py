"""Servers in virtual time whose requests are noted, as they are while a console is open."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import trio

from trireme.actors import InferenceServer
from trireme.engine.errors import TriremeError
from trireme.engine.metrics.statistics import ModelStatistics
from trireme.engine.options import ServerOptions
from trireme.simulations.clock import VirtualClock
from trireme.simulations.executors import SimulatedFailure, VirtualExecutors
from trireme.simulations.models import SimulatedModel, SimulatedRepository


def virtual_server(*models: SimulatedModel) -> InferenceServer:
    """A server with these models; not started."""
    repository = SimulatedRepository(models)
    parts: dict[str, Any] = {"executors": VirtualExecutors(), "clock": VirtualClock()}
    return InferenceServer(ServerOptions(), source=repository, backends=repository.backends(), **parts)


async def fails(spec: object, batch: object) -> None:
    """Work that takes a second, and fails."""
    await trio.sleep(1.0)
    raise SimulatedFailure("no")


def watch(server: InferenceServer, name: str = "m") -> ModelStatistics:
    """The statistics of a model that is watched from now on."""
    (found,) = (entry.statistics for entry in server.statistics() if entry.name == name)
    found.tap.open(0, 9)
    return found


async def ask(server: InferenceServer, request: Any) -> None:
    """Have a request answered, well or badly."""
    with suppress(TriremeError):
        await server.infer(request)


def results(watched: ModelStatistics) -> list[str]:
    """Of the requests that were noted by themselves since this was last asked."""
    return [each.result for each in watched.tap.take_requests()]
