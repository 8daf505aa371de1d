"""Requests that may have ended a process, in virtual time: each gets one answer, whatever becomes of their model."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from trireme.engine.backends.interface import ProcessLostError
from trireme.engine.config.model import DynamicBatching
from trireme.engine.errors import CancelledError, TriremeError
from trireme.engine.job import ExecutionBatch

BATCHING = DynamicBatching((4,), 50_000)


def ending_in(*numbers: int, seconds: float = 1.0):
    """Work that takes so long, and ends its process in the batches of these numbers, counted from 0."""
    count = 0

    async def work(_spec: object, _batch: ExecutionBatch) -> None:
        nonlocal count
        ends = count in numbers
        count += 1
        await trio.sleep(seconds)
        if ends:
            raise ProcessLostError("the process has ended")

    return work


async def test_each_is_executed_once_more_alone(autojump_clock, open_server, simulated, request_for) -> None:
    async with open_server(simulated(ending_in(0, 2), batching=BATCHING)) as server:
        replies = [await server.admit(request_for()) for _ in range(4)]
        errors = []
        for reply in replies:
            try:
                await reply.response()
            except TriremeError as error:
                errors.append(error.message)
        (error,) = errors
        assert "died of it, too" in error
        assert server.budget_statistics().requests == 0
        assert server.model_statistics()[0].restarts == 2


async def test_one_that_is_cancelled_meanwhile_is_not_executed_again(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(ending_in(0), batching=BATCHING)) as server:
        replies = [await server.admit(request_for()) for _ in range(4)]
        await trio.sleep(1.05)
        replies[1].cancel()
        await trio.testing.wait_all_tasks_blocked(0.001)
        with pytest.raises(CancelledError):
            await replies[1].response()
        for reply in (replies[0], replies[2], replies[3]):
            assert (await reply.response()).model_name == "m"
        assert server.budget_statistics().requests == 0
        assert server.statistics()[0].statistics.execution_count == 4


async def test_a_server_that_stops_answers_them(autojump_clock, open_server, simulated, request_for) -> None:
    async with open_server(simulated(ending_in(0), batching=BATCHING), exit_timeout_s=30) as server:
        replies = [await server.admit(request_for()) for _ in range(4)]
        await trio.sleep(1.05)
    for reply in replies:
        assert (await reply.response()).model_name == "m"


async def test_a_server_that_stops_at_once_refuses_them(autojump_clock, open_server, simulated, request_for) -> None:
    async with open_server(simulated(ending_in(0), batching=BATCHING), exit_timeout_s=0) as server:
        replies = [await server.admit(request_for()) for _ in range(4)]
        await trio.sleep(1.05)
    for reply in replies:
        with pytest.raises(TriremeError, match="Server is stopping"):
            await reply.response()


@pytest.mark.parametrize("resized_s", [0.5, 1.055])
async def test_those_of_an_instance_that_is_no_longer_wanted_are_executed_by_another(
    autojump_clock, open_server, simulated, request_for, resized_s: float
) -> None:
    """Whether it was removed before its process ended or after that."""
    async with open_server(simulated(ending_in(0), batching=BATCHING, count=2)) as server:
        replies = [await server.admit(request_for()) for _ in range(4)]
        await trio.sleep(resized_s)
        model = server._control.repository.find("m")
        working = next(seat for seat in model.instances._seats if seat.instance._held or not seat.alive)
        staying = next(seat.order for seat in model.instances._seats if seat is not working)
        assert await model.instances.resize([staying]) is None
        asked_s = trio.current_time()
        for reply in replies:
            assert (await reply.response()).model_name == "m"
        assert trio.current_time() - asked_s < 4.01, "one second each, and no wait for a restart"
        assert server.statistics()[0].statistics.execution_count == 5
        assert server.model_statistics()[0].restarts == 0
        assert server.budget_statistics().requests == 0


async def test_an_instance_that_is_no_longer_wanted_executes_them_before_it_leaves(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(ending_in(0), batching=BATCHING, count=2)) as server:
        replies = [await server.admit(request_for()) for _ in range(4)]
        await trio.sleep(1.055)
        model = server._control.repository.find("m")
        staying = next(seat.order for seat in model.instances._seats if seat.alive)
        await trio.sleep(0.5)
        assert server.model_statistics()[0].instances_alive == 2
        assert await model.instances.resize([staying]) is None
        assert server.model_statistics()[0].instances_alive == 1
        with trio.fail_after(10):
            for reply in replies:
                assert (await reply.response()).model_name == "m"
        assert server.budget_statistics().requests == 0
