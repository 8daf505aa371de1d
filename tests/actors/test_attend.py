"""Submitting several requests in one breath, and having the schedulers decide at the end of it."""

from __future__ import annotations

import pytest
import trio

from trireme.engine.config.model import DynamicBatching, QueuePolicy
from trireme.engine.errors import UnavailableError
from trireme.engine.execution import SealReason
from trireme.simulations.models import Profile


async def test_the_batch_is_on_its_way_before_anybody_else_has_a_turn(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(Profile(1.0), batching=DynamicBatching())) as server:
        await trio.testing.wait_all_tasks_blocked()  # the instance has said that it is idle
        replies = [server.submit_nowait(request_for(), attended=True) for _ in range(3)]
        (entry,) = server.statistics("m")
        assert entry.statistics.pending == 3
        server.attend()
        assert entry.statistics.pending == 0
        for reply in replies:
            await reply.response()
        assert entry.statistics.sealed[SealReason.IDLE] == entry.statistics.execution_count == 1, (
            "they went as one batch"
        )


async def test_a_delay_is_still_kept(autojump_clock, open_server, simulated, request_for) -> None:
    """The scheduler's task, which slept without end, is woken to wait for it."""
    batching = DynamicBatching(max_queue_delay_us=500_000, preferred_batch_sizes=(4,))
    async with open_server(simulated(Profile(0.0), batching=batching)) as server:
        await trio.testing.wait_all_tasks_blocked()
        started_s = trio.current_time()
        reply = server.submit_nowait(request_for(), attended=True)
        server.attend()
        await reply.response()
        assert trio.current_time() - started_s == pytest.approx(0.5)


async def test_a_full_queue_is_first_emptied_into_idle_instances(
    autojump_clock, open_server, simulated, request_for
) -> None:
    batching = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=1))
    async with open_server(simulated(Profile(1.0), batching=batching, max_batch_size=1)) as server:
        await trio.testing.wait_all_tasks_blocked()
        replies = [server.submit_nowait(request_for(), attended=True) for _ in range(2)]
        with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
            server.submit_nowait(request_for(), attended=True)
        server.attend()
        for reply in replies:
            await reply.response()


async def test_a_refusal_does_not_make_the_queue_forget_its_delay(
    autojump_clock, open_server, simulated, request_for
) -> None:
    batching = DynamicBatching(
        default_queue_policy=QueuePolicy(max_queue_size=1), preferred_batch_sizes=(2,), max_queue_delay_us=500_000
    )
    async with open_server(simulated(Profile(0.0), batching=batching)) as server:
        await trio.testing.wait_all_tasks_blocked()
        reply = await server.submit(request_for())
        with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
            await server.submit(request_for())
        await reply.response()
        assert trio.current_time() == pytest.approx(0.5)
