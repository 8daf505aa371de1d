"""A server that stops waits for what clients wait for, and not for copies for shadows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from trireme.actors import InferenceServer
from trireme.engine.job import ExecutionBatch
from trireme.engine.options import ControlMode
from trireme.simulations.models import Profile, simple_request

COPY_S = 8.0
"""Less than a shadow may take (`ANSWER_LIMIT_S`)."""


@pytest.fixture
def shadowed(open_server, simulated):
    """Opens a server whose route `r` has a shadow that takes `COPY_S`; with what it has begun to execute."""

    @asynccontextmanager
    async def open_with(**fields: Any) -> AsyncIterator[tuple[InferenceServer, list[str]]]:
        begun = list[str]()

        async def work(_spec: object, batch: ExecutionBatch) -> None:
            begun.extend(job.id for job in batch.jobs)
            await trio.sleep(COPY_S if "copied" in batch.jobs[0].id else 3.0)

        models = simulated(Profile(0.001), "target"), simulated(work, "shadow", **fields)
        options: dict[str, Any] = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("*",)}
        async with open_server(*models, exit_timeout_s=100.0, **options) as server:
            await server.management.set_route("r", {"targets": {"target": 100}, "shadow": {"target": "shadow"}})
            for number in range(3):
                await server.infer(copied(f"copied {number}"))
            await trio.sleep(1.0)
            assert begun == ["copied 0"], "the others wait"
            yield server, begun

    return open_with


def copied(name: str):
    request = simple_request("r")
    request.id = name
    return request


async def test_a_batch_that_executes_a_copy_gets_a_second(autojump_clock, shadowed) -> None:
    async with shadowed() as (server, begun):
        stopped_s = trio.current_time()
    assert server.drained
    assert trio.current_time() == pytest.approx(stopped_s + 1.0, abs=0.01)
    assert begun == ["copied 0"]
    assert server.budget_statistics().requests == 0


async def test_what_a_client_waits_for_is_waited_for_beside_it(autojump_clock, shadowed) -> None:
    answered = list[str]()
    async with trio.open_nursery() as clients, shadowed(count=2) as (server, _begun):

        async def ask() -> None:
            answered.append((await server.infer(simple_request("shadow"))).model_name)

        clients.start_soon(ask)
        await trio.sleep(0.1)
        stopped_s = trio.current_time()
    assert server.drained
    assert answered == ["shadow"]
    assert stopped_s + 2.9 <= trio.current_time() <= stopped_s + 5.0


async def test_a_copy_that_ends_in_time_is_no_loss(autojump_clock, shadowed) -> None:
    async with shadowed() as (server, _begun):
        await trio.sleep(COPY_S - 1.5)
        stopped_s = trio.current_time()
    assert server.drained
    assert trio.current_time() < stopped_s + 1.0
    assert not server.model_statistics()[-1].inflight
