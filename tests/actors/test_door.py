"""Handing requests in: what is sent in one turn is decided together, before anybody else has a turn."""

from __future__ import annotations

import pytest
import trio

from trireme.engine.config.model import DynamicBatching, QueuePolicy
from trireme.engine.errors import UnavailableError
from trireme.engine.job import SealReason
from trireme.simulations.models import Profile


async def test_the_batch_is_on_its_way_before_anybody_else_has_a_turn(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(Profile(1.0), batching=DynamicBatching())) as server:
        with server.turn:
            replies = [server.admit_nowait(request_for()) for _ in range(3)]
            (entry,) = server.statistics("m")
            assert entry.statistics.pending == 0
        assert entry.statistics.pending == 0
        for reply in replies:
            await reply.response()
        assert entry.statistics.sealed[SealReason.IDLE] == entry.statistics.execution_count == 1, (
            "they went as one batch"
        )


async def test_what_several_tasks_send_in_one_pass_is_decided_together(
    autojump_clock, open_server, simulated, request_for
) -> None:
    async with open_server(simulated(Profile(1.0), batching=DynamicBatching())) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(server.infer, request_for())
        (entry,) = server.statistics("m")
        assert entry.statistics.execution_count == 1


async def test_a_delay_is_still_kept(autojump_clock, open_server, simulated, request_for) -> None:
    """The scheduler's timer, which ran without end, is set to it."""
    batching = DynamicBatching(max_queue_delay_us=500_000, preferred_batch_sizes=(4,))
    async with open_server(simulated(Profile(0.0), batching=batching)) as server:
        await trio.testing.wait_all_tasks_blocked()
        started_s = trio.current_time()
        with server.turn:
            reply = server.admit_nowait(request_for())
        await reply.response()
        assert trio.current_time() - started_s == pytest.approx(0.5)


async def test_a_full_queue_is_first_emptied_into_idle_instances(
    autojump_clock, open_server, simulated, request_for
) -> None:
    batching = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=1))
    async with open_server(simulated(Profile(1.0), batching=batching, max_batch_size=1)) as server:
        with server.turn:
            replies = [server.admit_nowait(request_for()) for _ in range(3)]
        assert [reply.final for reply in replies] == [False, False, True]
        assert not replies[2].accepted
        with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
            replies[2].answer()
        for reply in replies[:2]:
            await reply.response()
            assert reply.accepted


async def test_a_refusal_does_not_make_the_queue_forget_its_delay(
    autojump_clock, open_server, simulated, request_for
) -> None:
    batching = DynamicBatching(
        default_queue_policy=QueuePolicy(max_queue_size=1), preferred_batch_sizes=(2,), max_queue_delay_us=500_000
    )
    async with open_server(simulated(Profile(0.0), batching=batching)) as server:
        await trio.testing.wait_all_tasks_blocked()
        reply = await server.admit(request_for())
        with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
            await server.infer(request_for())
        await reply.response()
        assert trio.current_time() == pytest.approx(0.5)


async def test_a_request_to_a_scheduler_that_has_died_is_refused(
    autojump_clock, open_server, simulated, request_for
) -> None:
    """Whether its mail is there when it is buried, or comes afterwards."""
    async with open_server(simulated(Profile(1.0))) as server:
        (model,) = server._repository.models()
        with server.turn:
            before = server.admit_nowait(request_for())
            model.scheduler.bury(UnavailableError("gone"))
            after = server.admit_nowait(request_for())
        for reply in (before, after):
            with pytest.raises(UnavailableError, match="gone"):
                await reply.response()
            assert not reply.accepted
        assert server.budget_statistics().requests == 0
