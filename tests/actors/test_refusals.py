"""Every request that the server refuses is counted once, by its reason, for the model that refused it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import trio
import trio.lowlevel
import trio.testing
from ensembles import ensemble, step

from trireme.actors import InferenceServer
from trireme.actors.messages import Stop
from trireme.actors.reply import Reply
from trireme.engine.config.model import DynamicBatching, QueuePolicy
from trireme.engine.datatypes import FP32
from trireme.engine.errors import RefusalReason, TriremeError, UnavailableError
from trireme.engine.job import Job
from trireme.engine.scheduling.queueing import QueueingCore
from trireme.engine.tensor import Tensor
from trireme.simulations.models import Profile, SimulatedModel, simple_request

WORK = Profile(1.0)
ONE_QUEUED = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=1))


def refused(server: InferenceServer) -> dict[str, int]:
    """Refusals by ``model.reason``; ``.reason`` for those of no model."""
    found = {
        f"{each.name}.{reason.value}": n
        for each in server.statistics()
        for reason, n in each.statistics.refused.items()
    }
    return found | {f".{reason.value}": count for reason, count in server.refusal_statistics().items() if count}


async def fails(server: InferenceServer, *names: str, **fields: object) -> None:
    for name in names:
        with pytest.raises(TriremeError):
            await server.infer(replace(simple_request(name), **fields))  # type: ignore[arg-type]


async def test_names_that_do_not_exist_make_no_series_of_their_own(autojump_clock, open_server, simulated) -> None:
    async with open_server(simulated(WORK)) as server:
        await fails(server, *(f"hostile-{number}" for number in range(20)))
        await fails(server, "m", model_version=7)
        await fails(server, "m", inputs=[])
        await server.infer(simple_request("m"))
        assert refused(server) == {".unknown_model": 21, "m.invalid": 1}


async def test_a_full_queue_refuses_and_what_waits_too_long_is_rejected(autojump_clock, open_server, simulated) -> None:
    policy = QueuePolicy(max_queue_size=1, default_timeout_us=500_000)
    async with open_server(simulated(WORK, batching=DynamicBatching(default_queue_policy=policy))) as server:
        replies = [await server.admit(simple_request("m")) for _ in range(3)]
        await trio.sleep(2.5)
        assert [reply.accepted for reply in replies] == [True, True, False]
        assert refused(server) == {"m.queue_full": 1, "m.queue_timeout": 1}


FULL = "Exceeds maximum queue size"


def fill(server: InferenceServer) -> list[Reply]:
    """An instance that works, a full queue, and one that was refused."""
    replies = []
    for _ in range(3):
        with server.turn:
            reply = server.admit_nowait(simple_request("m"))
        assert reply is not None
        replies.append(reply)
    assert [reply.final for reply in replies] == [False, False, True]
    return replies


def is_turned_away(server: InferenceServer) -> bool:
    """Whether a request is refused before it is a job."""
    with server.turn:
        try:
            reply = server.admit_nowait(replace(simple_request("m"), id="new"))
        except UnavailableError as error:
            return (error.message, error.refusal_counted) == (f"[request id: new] {FULL}", True)
        assert reply is not None
    return False


async def test_after_a_refusal_nothing_more_becomes_a_job_until_something_happens(
    autojump_clock, open_server, simulated
) -> None:
    async with open_server(simulated(WORK, batching=ONE_QUEUED)) as server:
        replies = fill(server)
        assert [is_turned_away(server) for _ in range(3)] == [True] * 3
        assert refused(server) == {"m.queue_full": 4}
        assert server.budget_statistics().requests == 2
        assert server.turn.turned_away_in == server.turn.number
        replies[1].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not is_turned_away(server)  # there was room: it is queued now
        assert not is_turned_away(server)  # it was looked whether there is some
        assert is_turned_away(server)
        await trio.sleep(1.5)
        assert not is_turned_away(server)
        await trio.sleep(2.5)
        assert refused(server) == {"m.queue_full": 6}


async def test_a_deadline_in_the_queue_makes_room_for_who_comes_then(autojump_clock, open_server, simulated) -> None:
    policy = QueuePolicy(max_queue_size=1, default_timeout_us=500_000)
    async with open_server(simulated(WORK, batching=DynamicBatching(default_queue_policy=policy))) as server:
        fill(server)
        await trio.sleep(0.4)
        assert is_turned_away(server)
        await trio.sleep(0.2)
        assert not is_turned_away(server)
        await trio.sleep(1)
        assert refused(server) == {"m.queue_full": 2, "m.queue_timeout": 1}


async def test_mail_that_was_not_received_may_make_room(autojump_clock, open_server, simulated) -> None:
    async with open_server(simulated(WORK, batching=ONE_QUEUED)) as server:
        replies = fill(server)
        with server.turn:
            replies[1].cancel()
            assert not is_turned_away(server)


async def test_while_a_model_stops_requests_hear_that_and_not_of_its_full_queue(
    autojump_clock, open_server, simulated
) -> None:
    async with open_server(simulated(WORK, batching=ONE_QUEUED)) as server:
        fill(server)
        server._repository.find("m").scheduler.mailbox.send_nowait(Stop())
        await trio.testing.wait_all_tasks_blocked()
        assert [is_turned_away(server) for _ in range(2)] == [False, False]
        assert refused(server) == {"m.queue_full": 1, "m.stopping": 2}


async def test_who_has_room_at_another_level_is_not_turned_away(autojump_clock, open_server, simulated) -> None:
    batching = replace(ONE_QUEUED, priority_levels=2, default_priority_level=1)
    async with open_server(simulated(WORK, batching=batching)) as server:
        fill(server)
        assert not is_turned_away(server)  # refused, as a job
        with server.turn:
            reply = server.admit_nowait(replace(simple_request("m"), priority=2))
        assert reply is not None
        assert not reply.final


async def test_a_cancelled_request_and_one_that_fails_were_not_refused(autojump_clock, open_server, simulated) -> None:
    async with open_server(simulated(WORK)) as server:
        first, second = [await server.admit(simple_request("m")) for _ in range(2)]
        second.cancel()
        first.cancel()
        await trio.sleep(2.5)
        assert first.final
        assert second.final
        assert refused(server) == {}


async def test_a_model_with_its_share_in_flight(autojump_clock, open_server, simulated) -> None:
    async with open_server(simulated(WORK), simulated(WORK, "other"), max_inflight_requests=1) as server:
        server.admit_nowait(simple_request("m"))
        request = simple_request("m")
        with pytest.raises(TriremeError) as caught:
            server.admit_nowait(request)
        server.note_refusal(caught.value, request.model_name, request.model_version)
        server.note_refusal(caught.value, request.model_name, request.model_version)
        assert refused(server) == {"m.model_share": 1}


class _Idle:
    async def __call__(self, spec: object, batch: object) -> None:
        raise AssertionError("an ensemble executes nothing")


async def test_the_member_of_an_ensemble_counts_the_step_that_it_refuses(
    autojump_clock, open_server, simulated
) -> None:
    steps = [step("a", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"})]
    config = ensemble(steps, ("INPUT0 FP32 4",), ("OUTPUT0 FP32 4",), max_batch_size=8, name="e")
    async with open_server(simulated(WORK, "a", batching=ONE_QUEUED), SimulatedModel(config, _Idle())) as server:
        replies = [await server.admit(simple_request("e")) for _ in range(3)]
        await trio.sleep(5)
        assert all(reply.final for reply in replies)
        assert refused(server) == {"a.queue_full": 1}


async def test_a_step_that_is_not_as_its_member_wants_it_counts_there(autojump_clock, open_server, simulated) -> None:
    steps = [step("a", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"})]
    config = ensemble(steps, ("INPUT0 FP32 -1",), ("OUTPUT0 FP32 4",), max_batch_size=8, name="e")
    async with open_server(simulated(WORK, "a"), SimulatedModel(config, _Idle())) as server:
        await fails(server, "e", inputs=[Tensor("INPUT0", FP32, (1, 2), array=np.zeros((1, 2), np.float32))])
        assert refused(server) == {"a.invalid": 1}


async def test_what_models_ask_of_models_is_counted(autojump_clock, open_server, simulated, request_for) -> None:
    many = simulated(WORK, "many", decoupled=True)
    async with open_server(simulated(WORK, batching=ONE_QUEUED), many) as server:
        calls = server._calls
        for name in ("gone", "many"):
            with pytest.raises(TriremeError):
                calls.ask(request_for(name), False, lambda _: None)
        for _ in range(3):
            calls.ask(request_for("m"), False, lambda _: None)
        await trio.sleep(2.5)
        assert refused(server) == {".unknown_model": 1, "many.invalid": 1, "m.queue_full": 1}


async def test_a_server_that_stops(autojump_clock, open_server, simulated) -> None:
    async with open_server(simulated(WORK)) as server:
        server.exiting = True
        await fails(server, "m")
        assert {reason for reason, count in server.refusal_statistics().items() if count} <= {RefusalReason.STOPPING}
        counted = server.refusals.counts[RefusalReason.STOPPING]
        counted += sum(each.statistics.refused.get(RefusalReason.STOPPING, 0) for each in server.statistics())
        assert counted == 1
        server.exiting = False


async def test_what_is_queued_when_the_last_instance_dies_for_good(autojump_clock, open_server, simulated) -> None:
    """Its supervisor has the scheduler refuse it."""
    async with open_server(simulated(WORK, batching=DynamicBatching())) as server:
        await server.admit(simple_request("m"))
        await trio.sleep(0.5)
        queued = await server.admit(simple_request("m"))
        await trio.lowlevel.checkpoint()
        scheduler = server._repository.find("m").scheduler
        scheduler.bury(TriremeError("it died"))
        assert queued.final
        assert refused(server)["m.not_ready"] == 1


async def test_a_queue_that_nothing_leaves_is_asked_once(
    autojump_clock, open_server, simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refusals are to be cheap: room is looked for, and the queue is asked again only if that has changed something."""
    asked: list[Job] = []
    genuine = QueueingCore.enqueue

    def enqueue(core: QueueingCore, job: Job, now: float) -> None:
        asked.append(job)
        genuine(core, job, now)

    monkeypatch.setattr(QueueingCore, "enqueue", enqueue)
    async with open_server(simulated(WORK, batching=ONE_QUEUED)) as server:
        replies = [await server.admit(simple_request("m")) for _ in range(5)]
        await trio.sleep(2.5)
        assert [reply.accepted for reply in replies] == [True, True, False, False, False]
        assert len(asked) == len(set(map(id, asked))) + 1  # the second one found room when the first was dispatched
        assert refused(server) == {"m.queue_full": 3}
