"""Cores are observed from the outside: what they are told and what they decide is heard of, in order."""

from __future__ import annotations

import trio

from trireme.engine.config.model import DynamicBatching, QueuePolicy
from trireme.engine.job import SealReason
from trireme.simulations.clock import JumpingClock
from trireme.simulations.history import Recorder
from trireme.simulations.models import Profile, simple_model, simple_request
from trireme.simulations.oracle import observed
from trireme.simulations.oracle.observed import (
    Admitted,
    CoreMade,
    Dispatched,
    Observation,
    RefusedAtDoor,
    Rejected,
    ToldCancelled,
    ToldGone,
    ToldIdle,
    ToldSeated,
    ToldSettled,
    ToldToStop,
    Waits,
)
from trireme.simulations.world import World, play_in_world

KINDS = [kind for kind in vars(observed).values() if isinstance(kind, type) and kind.__module__ == observed.__name__]


async def a_few_requests(world: World) -> None:
    """Four requests at once for one instance whose queue holds two; the client of the third gives up."""
    batching = DynamicBatching((1,), default_queue_policy=QueuePolicy(max_queue_size=2))
    async with (
        world.serve(simple_model("m", Profile(0.1), batching=batching)) as server,
        trio.open_nursery() as clients,
    ):
        replies = []
        for rows in (1, 2, 1):
            number = world.recorder.next_request()
            request = simple_request("m", rows)
            request.id = str(number)
            replies.append(server.admit_nowait(request))
            await world.clock.sleep(0.01)
        clients.start_soon(world.ask, simple_request("m"))
        await world.clock.sleep(0.01)
        replies[2].cancel()


def test_all_that_a_core_is_told_and_decides_is_heard_of_in_order() -> None:
    clock = JumpingClock()
    recorder = Recorder(clock)
    heard: list[Observation] = []
    recorder.listen(dict.fromkeys(KINDS, heard.append))
    play_in_world(a_few_requests, 1, 100.0, clock, recorder)
    story = [event for event in heard if not isinstance(event, Waits)]
    kinds = [type(event) for event in story]
    assert kinds[:6] == [CoreMade, ToldSeated, ToldIdle, Admitted, Dispatched, Admitted]
    assert [(event.request, event.rows) for event in story if isinstance(event, Admitted)] == [(1, 1), (2, 2), (3, 1)]
    assert [(event.requests, event.reason) for event in story if isinstance(event, Dispatched)] == [
        ((1,), SealReason.PREFERRED),
        ((2,), SealReason.FULL),
    ]
    refused = {(event.request, event.error) for event in story if isinstance(event, RefusedAtDoor)}
    assert refused == {(4, "[request id: 4] Exceeds maximum queue size")}  # its scheduler may ask once more
    assert [event.request for event in story if isinstance(event, ToldCancelled)] == [3]
    assert [(event.request, event.error) for event in story if isinstance(event, Rejected)] == [(3, "Cancelled")]
    assert [event.requests for event in story if isinstance(event, ToldSettled)] == [(1,), (2,)]
    assert kinds.count(ToldToStop) >= 1
    assert ToldGone in kinds
    assert not any(isinstance(event, tuple(KINDS)) for event in recorder.history().events), "histories stay as they are"
