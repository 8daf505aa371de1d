"""The gateway's server, over links and a router that are told what to do."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from fleet_world import MANY, ONE, FleetWorld, opened_fleet, request
from trio.testing import MockClock

from trireme.actors.reply import Reply
from trireme.engine.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RefusalReason,
    TriremeError,
    UnavailableError,
    UnsupportedError,
)
from trireme.engine.fleet.types import AttemptEnd, Refuse, ReplicaLostError, SendTo, WaitForReplica
from trireme.engine.request import InferenceRequest


@pytest.fixture
async def world() -> Any:
    async with opened_fleet() as world:
        await world.join("a", ONE, MANY)
        await world.join("b", ONE, MANY)
        yield world


def admitted(world: FleetWorld, name: str = "one", **given: Any) -> Reply:
    reply = world.server.admit_nowait(request(name, **given))
    assert reply is not None
    return reply


def budget_of(world: FleetWorld) -> tuple[int, int]:
    statistics = world.server.budget_statistics()
    return statistics.requests, statistics.bytes


async def test_a_request_goes_to_a_replica_and_its_answer_to_the_client(world: FleetWorld) -> None:
    reply = admitted(world, id="7", correlation_id=3, sequence_start=True)
    ((sent, decoupled, _),) = world.links["a"].calls.values()
    assert (sent.id, sent.model_name, decoupled) == ("7", "one", False)
    (asked,) = world.router.asked
    assert (asked.name, asked.sequence, asked.start, asked.end, asked.id) == ("one", 3, True, False, "7")
    assert budget_of(world) == (1, 16)
    world.answer("a", value=2.0)
    assert (await reply.response()).outputs[0].array[0] == 2.0
    assert reply.accepted
    assert world.router.ends == [AttemptEnd.ANSWERED]
    assert budget_of(world) == (0, 0)


async def test_an_error_of_a_replica_is_the_client_s(world: FleetWorld) -> None:
    reply = admitted(world)
    world.fail("a", InvalidArgumentError("unexpected shape"))
    with pytest.raises(InvalidArgumentError, match=r"^unexpected shape$"):
        await reply.response()
    assert reply.accepted
    assert budget_of(world) == (0, 0)


async def test_a_refusal_is_told_from_a_failure(world: FleetWorld) -> None:
    reply = admitted(world)
    world.fail("a", UnavailableError("full", refusal=RefusalReason.QUEUE_FULL), executed=False)
    with pytest.raises(UnavailableError):
        await reply.response()
    assert not reply.accepted
    assert world.router.ends == [AttemptEnd.REFUSED]


async def test_what_was_not_executed_goes_to_another_replica_if_the_router_says_so(world: FleetWorld) -> None:
    world.router.after.append(lambda sent: SendTo(sent.request, "b", True))
    reply = admitted(world)
    world.fail("a", ReplicaLostError("gone"), executed=False)
    assert world.router.ends == [AttemptEnd.UNREACHABLE]
    assert len(world.links["b"].calls) == 1
    world.answer("b")
    await reply.response()
    assert world.server.replicas["b"].retries == 1
    assert world.server.replicas["a"].sent == world.server.replicas["b"].sent == 0


async def test_a_link_may_refuse_at_once(world: FleetWorld) -> None:
    world.links["a"].refuses = ReplicaLostError("gone")
    world.router.after.append(lambda sent: SendTo(sent.request, "b", True))
    reply = admitted(world)
    assert len(world.links["b"].calls) == 1
    reply.cancel()
    assert world.links["b"].cancelled == [1]


async def test_the_router_may_refuse_after_an_attempt(world: FleetWorld) -> None:
    world.router.after.append(lambda sent: Refuse(sent.request, UnavailableError("start the sequence again")))
    reply = admitted(world)
    world.fail("a", ReplicaLostError("gone"))
    with pytest.raises(UnavailableError, match="start the sequence again"):
        await reply.response()


async def test_a_request_may_wait_for_a_replica(world: FleetWorld, autojump_clock: MockClock) -> None:
    world.router.target = None
    reply = admitted(world)
    assert world.server.waiting == 1
    world.router.due = [SendTo(world.router.asked[0], "b")]
    world.router.due_s = trio.current_time() + 1
    world.server.look_ahead()
    await trio.sleep(1.5)
    world.answer("b")
    await reply.response()
    assert world.server.waiting == 0


async def test_a_request_that_waits_may_be_refused(world: FleetWorld) -> None:
    world.router.after.append(lambda sent: WaitForReplica(sent.request, 9.0))
    reply = admitted(world)
    world.fail("a", ReplicaLostError("gone"), executed=False)
    world.router.due = [Refuse(world.router.asked[0], UnavailableError("no replica"))]
    world.router.due_s = trio.current_time()
    with world.turn:
        world.server.look_ahead()
    with pytest.raises(UnavailableError, match="no replica"):
        await reply.response()


async def test_a_client_that_gives_up_takes_its_request_with_it(world: FleetWorld) -> None:
    reply = admitted(world)
    reply.cancel()
    assert world.links["a"].cancelled == [1]
    assert world.router.ends == [AttemptEnd.CANCELLED]
    assert budget_of(world) == (0, 0)
    reply.cancel()


async def test_a_client_may_give_up_while_its_request_waits(world: FleetWorld, autojump_clock: MockClock) -> None:
    world.router.target = None
    reply = admitted(world)
    with trio.move_on_after(1):
        await reply.response()
    assert ("cancel", "one") in world.router.told
    assert world.server.waiting == 0
    assert budget_of(world) == (0, 0)


async def test_many_answers_come_as_fast_as_they_are_taken(world: FleetWorld) -> None:
    reply = admitted(world, "many")
    assert world.links["a"].calls[1][1]
    world.answer("a", 1, final=False)
    world.answer("a", 1, final=False)
    assert world.links["a"].took == []
    assert len(reply.take()) == 2
    assert world.links["a"].took == [(1, 2)]
    with world.turn:
        world.links["a"].calls[1][2].answered(None, True)
    assert reply.take() == [(None, True)]
    assert world.links["a"].took == [(1, 2)], "nothing is told of a request that is over"


async def test_a_stream_of_answers_may_break(world: FleetWorld) -> None:
    reply = admitted(world, "many")
    world.answer("a", 1, final=False)
    world.fail("a", ReplicaLostError("gone"))
    (_, final), (error, last) = reply.take()
    assert not final
    assert last
    assert isinstance(error, ReplicaLostError)
    assert world.router.ends == [AttemptEnd.LOST]


async def test_unknown_models_go_no_further(world: FleetWorld) -> None:
    with pytest.raises(NotFoundError, match="Request for unknown model: 'two' is not found"):
        world.server.admit_nowait(request("two"))
    assert budget_of(world) == (0, 0)


async def test_at_the_bound_of_the_budget_requests_wait() -> None:
    async with opened_fleet(max_inflight_requests=2) as world:
        await world.join("a", ONE)
        first = admitted(world)
        with pytest.raises(UnavailableError, match="model 'one' has too many requests in flight"):
            world.server.admit_nowait(request())
        with pytest.raises(UnavailableError):
            world.server.check_room("one")
        async with trio.open_nursery() as nursery:
            replies: list[Reply] = []

            @nursery.start_soon
            async def admit() -> None:
                replies.append(await world.server.admit(request()))

            await trio.testing.wait_all_tasks_blocked()
            assert not replies
            world.answer("a", 1)
        await first.response()
        assert len(world.links["a"].calls) == 2


async def test_a_lease_is_closed_with_its_request(world: FleetWorld) -> None:
    lease = world.server.lease("one")
    await lease.grow(16)
    reply = await world.server.admit(request(), lease)
    assert budget_of(world) == (1, 16)
    world.answer("a")
    await reply.response()
    assert budget_of(world) == (0, 0)
    lease = world.server.lease("two")
    with pytest.raises(NotFoundError):
        await world.server.admit(request("two"), lease)
    assert world.server.budget_statistics().leases == 0


async def test_bytes_alone_become_the_input_that_the_model_has(world: FleetWorld) -> None:
    await world.server.admit(InferenceRequest("one", raw_input=bytes(16)))
    sent = world.links["a"].calls[1][0]
    (tensor,) = sent.inputs
    assert (tensor.name, tensor.shape, sent.raw_input) == ("IN", (4,), None)


async def test_a_gateway_that_stops_lets_sequences_go_on(world: FleetWorld) -> None:
    reply = admitted(world)
    async with trio.open_nursery() as nursery:
        done: list[bool] = []

        @nursery.start_soon
        async def stop() -> None:
            done.append(await world.server.stop(10))

        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(UnavailableError, match="Server is stopping"):
            world.server.admit_nowait(request())
        second = admitted(world, correlation_id=5)
        world.answer("a", 1)
        world.answer("a", 2)
        await reply.response()
        await second.response()
    assert done == [True]


async def test_what_is_not_answered_in_time_is_not_waited_for(world: FleetWorld, autojump_clock: MockClock) -> None:
    admitted(world)
    assert not await world.server.stop(1)


async def test_a_replica_without_room_is_told_to_the_router(world: FleetWorld) -> None:
    world.links["a"].room = False
    admitted(world)
    assert ("room", "a", False) in world.router.told
    with world.turn:
        world.links["a"].events.room()
    assert ("room", "a", True) in world.router.told


async def test_ready_is_a_gateway_with_a_replica_that_serves(world: FleetWorld) -> None:
    assert world.server.ready()
    with world.turn:
        world.links["a"].events.lost("gone")
    assert world.server.ready()
    world.tell("b", state="draining", everything=False)
    assert not world.server.ready()
    world.tell("b", everything=False)
    assert world.server.ready()
    world.server.begin_drain()
    assert not world.server.ready()


async def test_regions_are_refused(world: FleetWorld) -> None:
    with pytest.raises(UnsupportedError, match="no shared memory"):
        world.server.shared_memory.slice("region", 0, 4)


async def test_a_replica_that_leaves_ends_what_it_has_first(world: FleetWorld, autojump_clock: MockClock) -> None:
    reply = admitted(world)
    world.router.sequences["a"] = 1
    link = world.links["a"]
    world.server.leave("a")
    assert world.router.reports["a"].draining
    assert list(world.server.members) == ["b"]
    await trio.sleep(1)
    assert ("leave", "a") not in world.router.told, "a sequence is there"
    world.router.sequences["a"] = 0
    world.answer("a")
    await reply.response()
    await trio.sleep(1)
    assert ("leave", "a") in world.router.told
    assert list(world.server.replicas) == ["b"]
    assert not link.runs


async def test_sequences_at_a_replica_that_leaves_have_a_limit(world: FleetWorld, autojump_clock: MockClock) -> None:
    world.router.sequences["a"] = 1
    world.server.leave("a", 5.0)
    await trio.sleep(6)
    assert ("leave", "a") in world.router.told


async def test_a_replica_may_come_back_while_it_leaves(world: FleetWorld, autojump_clock: MockClock) -> None:
    world.router.sequences["a"] = 1
    world.server.leave("a")
    await world.server.join("a", "a:1", 2.0)
    assert not world.router.reports["a"].draining
    assert world.router.told[-1] == ("join", "a", 2.0)
    world.router.sequences["a"] = 0
    await trio.sleep(100)
    assert ("leave", "a") not in world.router.told


async def test_one_that_came_back_and_leaves_again_has_the_time_of_the_latter(
    world: FleetWorld, autojump_clock: MockClock
) -> None:
    world.router.sequences["a"] = 1
    world.server.leave("a", 5.0)
    await trio.sleep(1)
    await world.server.join("a", "a:1", 1.0)
    world.server.leave("a", 100.0)
    await trio.sleep(50)
    assert ("leave", "a") not in world.router.told
    await trio.sleep(60)
    assert ("leave", "a") in world.router.told


async def test_a_replica_at_another_address_is_another_one(world: FleetWorld, autojump_clock: MockClock) -> None:
    reply = admitted(world)
    old = world.links["a"]
    await world.server.join("a", "elsewhere:1", 1.0)
    assert [each for each in world.router.told if each[1] == "a"][-2:] == [("leave", "a"), ("join", "a", 1.0)]
    assert world.server.replicas["a"].link is not old
    with world.turn:
        old.calls[1][2].answered(None, True)
    await trio.sleep(1)
    assert not old.runs
    assert reply.final
    with world.turn:
        old.events.report({})
        old.events.lost("closed")
        old.events.connected()
        old.events.room()
    assert world.router.told[-1] == ("join", "a", 1.0)


@pytest.mark.parametrize("document", [{}, {"models": [{}]}, {"models": 3, "all": True}])
async def test_a_report_that_is_none_changes_nothing(world: FleetWorld, document: dict[str, Any]) -> None:
    with world.turn:
        world.links["a"].events.report(document)
    world.server.describe("one")
    admitted(world)


async def test_loads_are_told_to_the_router_by_model(world: FleetWorld) -> None:
    world.tell("a", everything=False, loads={"one:1": [3, 500], "one:2": [2, 1500]})
    load = world.router.reports["a"].loads["one"]
    assert (load.pending, load.queue_s) == (5, 0.0015)
    assert world.router.reports["a"].models == {"one": {1: True}, "many": {1: True}}


async def test_an_unexpected_error_is_an_answer_too(world: FleetWorld) -> None:
    reply = admitted(world)
    world.fail("a", InternalError("boom"))
    with pytest.raises(TriremeError, match="boom"):
        await reply.response()
    assert world.router.ends == [AttemptEnd.FAILED]
