"""What verbose logs tell of each request, and that nothing is told, or paid for, otherwise."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from trireme.actors import InferenceServer
from trireme.engine.errors import CancelledError, InvalidArgumentError
from trireme.engine.options import ServerOptions
from trireme.simulations.clock import VirtualClock
from trireme.simulations.executors import VirtualExecutors
from trireme.simulations.models import Profile, SimulatedRepository, simple_model, simple_request


@asynccontextmanager
async def serving() -> AsyncIterator[InferenceServer]:
    """A server of model ``a``, which takes a second."""
    repository = SimulatedRepository([simple_model("a", Profile(1.0))])
    world = {"source": repository, "executors": VirtualExecutors(), "clock": VirtualClock()}
    async with InferenceServer(ServerOptions(), backends=repository.backends(), **world) as server:  # pyright: ignore[reportArgumentType]
        yield server


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trireme.requests"]


async def test_a_requests_life_is_told_in_tritons_words(autojump_clock, caplog) -> None:
    with caplog.at_level(logging.DEBUG, "trireme.requests"):
        async with serving() as server:
            server.tell_requests(True)
            await server.infer(simple_request("a"))
    prepared, *rest = told(caplog)
    first, *details = prepared.split("\n")
    assert first.startswith(
        "[request id: <id_unknown>] prepared: request id: , model: a, requested version: -1, actual "
    )
    assert "flags: 0x0, correlation id: 0, batch size: 1, priority: 0, timeout (us): 0" in first
    assert details == ["original inputs:", "input: INPUT0, type: FP32, shape: [1,4]", "requested outputs:"]
    prefix = "[request id: <id_unknown>] "
    assert rest == [
        f"{prefix}Setting state from INITIALIZED to PENDING",
        f"{prefix}Setting state from PENDING to EXECUTING",
        "model a, instance a_0, executing 1 requests",
        f"{prefix}add response output: output: OUTPUT0, type: FP32, shape: [1,4]",
        f"{prefix}Setting state from EXECUTING to RELEASED",
        "TRITONBACKEND_ModelInstanceExecute: model instance name a_0 released 1 requests",
    ]


async def test_a_request_that_is_never_executed_is_released_from_the_queue(autojump_clock, caplog) -> None:
    with caplog.at_level(logging.DEBUG, "trireme.requests"):
        async with serving() as server:
            server.tell_requests(True)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.infer, simple_request("a"))
                await trio.testing.wait_all_tasks_blocked()
                waiting = await server.admit(simple_request("a"))
                waiting.cancel()
                with pytest.raises(CancelledError):
                    await waiting.response()
    assert "[request id: <id_unknown>] Setting state from PENDING to RELEASED" in told(caplog)


async def test_nothing_is_told_unless_somebody_asks(autojump_clock, caplog) -> None:
    """Whoever asks is the log, whose level may change at any time; a job keeps its own reply then."""
    with caplog.at_level(logging.INFO, "trireme.requests"):
        async with serving() as server:
            server.tell_requests(True)
            server.tell_requests(False)
            await server.infer(simple_request("a"))
            assert not server._lines.wanted
            with pytest.raises(InvalidArgumentError):
                await server.infer(simple_request("a", rows=0))
    assert told(caplog) == []
