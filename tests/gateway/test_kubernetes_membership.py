"""The fleet is as a Service of Kubernetes says, whatever becomes of the API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
from fleet_world import FleetWorld, opened_fleet
from kubernetes_api import endpoint, endpoint_slice, with_version
from trio.testing import MockClock, wait_all_tasks_blocked

from trireme.gateway.kubernetes_membership import KubernetesMembership
from trireme.gateway.kubernetes_settings import KubernetesSettings
from trireme.gateway.slice_watch import ApiServerError


class ScriptedSource:
    """Answers as it is told.

    Attributes:
        items: of the next list; or why there is none.
        watched: the versions that watches began from.
    """

    def __init__(self, *items: dict[str, Any]) -> None:
        self.items: list[dict[str, Any]] | ApiServerError = list(items)
        self.lists = 0
        self.watched: list[str] = []
        self.refuses: ApiServerError | None = None
        self._version = 10
        self._send: trio.MemorySendChannel[Any] | None = None

    async def list(self) -> dict[str, Any]:
        self.lists += 1
        await trio.lowlevel.checkpoint()
        if isinstance(self.items, ApiServerError):
            raise self.items
        items = [with_version(each, self._version) for each in self.items]
        return {"metadata": {"resourceVersion": str(self._version)}, "items": items}

    @asynccontextmanager
    async def watch(self, version: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        self.watched.append(version)
        await trio.lowlevel.checkpoint()
        if self.refuses is not None:
            raise self.refuses
        self._send, receive = trio.open_memory_channel[Any](10)
        yield self._events(receive)

    async def _events(self, receive: trio.MemoryReceiveChannel[Any]) -> AsyncIterator[dict[str, Any]]:
        async for event in receive:
            if isinstance(event, ApiServerError):
                raise event
            yield event

    async def tell(self, event: Any) -> None:
        assert self._send is not None
        self._send.send_nowait(event)
        await wait_all_tasks_blocked()

    async def put(self, document: dict[str, Any], kind: str = "MODIFIED") -> None:
        self._version += 1
        await self.tell({"type": kind, "object": with_version(document, self._version)})

    async def end(self) -> None:
        assert self._send is not None
        self._send.close()
        await wait_all_tasks_blocked()


@pytest.fixture
async def world(mock_clock: MockClock) -> AsyncIterator[FleetWorld]:
    async with opened_fleet() as world:
        yield world


async def followed(world: FleetWorld, nursery: trio.Nursery, source: ScriptedSource, **weights: float) -> None:
    settings = KubernetesSettings("replicas", "models", weights=weights)
    await nursery.start(KubernetesMembership(settings, source, Random(1)).follow, world.server)
    await wait_all_tasks_blocked()


def members(world: FleetWorld) -> dict[str, str]:
    return {name: each.address for name, each in world.server.members.items()}


def ready(name: str, number: int = 1, **conditions: bool) -> dict[str, Any]:
    return endpoint(name, f"10.0.0.{number}", **conditions)


async def test_pods_come_and_go(world: FleetWorld, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    source = ScriptedSource(endpoint_slice("one", ready("a", 1)))
    await followed(world, nursery, source, a=2.5)
    assert members(world) == {"a": "10.0.0.1:8001"}
    assert ("join", "a", 2.5) in world.router.told
    await source.put(endpoint_slice("two", ready("b", 2), ready("c", 3)), "ADDED")
    assert list(members(world)) == ["a", "b", "c"]
    await source.put(endpoint_slice("one"))
    await source.put(endpoint_slice("two", ready("b", 2)))
    assert list(members(world)) == ["b"]
    await source.put(endpoint_slice("two"), "DELETED")
    assert members(world) == {}
    assert "replicas of the Service replicas: a, b, c" in caplog.text
    assert "the Service replicas of the namespace models has no endpoints" in caplog.text


async def test_what_stays_is_left_alone(world: FleetWorld, nursery: trio.Nursery) -> None:
    """Fleets may be large, and events frequent. One that was to leave, and is ready again, stays."""
    source = ScriptedSource(endpoint_slice("one", ready("a"), ready("b", 2)))
    await followed(world, nursery, source)
    told = len(world.router.told)
    await source.put(endpoint_slice("one", ready("a"), ready("b", 2), ready("c", 3)))
    assert [each[:2] for each in world.router.told[told:]] == [("join", "c")]
    world.router.sequences["a"] = 1
    await source.put(endpoint_slice("one", ready("a", ready=False, terminating=True)))
    assert list(members(world)) == []
    await source.put(endpoint_slice("one", ready("a")))
    assert list(members(world)) == ["a"]


async def test_a_pod_that_starts_joins_when_it_is_ready(world: FleetWorld, nursery: trio.Nursery) -> None:
    source = ScriptedSource(endpoint_slice("one", ready("a", ready=False, serving=False)))
    await followed(world, nursery, source)
    assert members(world) == {}
    await source.put(endpoint_slice("one", ready("a")))
    assert list(members(world)) == ["a"]


async def test_a_gateway_that_starts_while_no_pod_is_ready_has_those_that_become_so(
    world: FleetWorld, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    """By the watch, one after the other, and without another list. Then one that is not ready any more stays."""
    unready = {"ready": False, "serving": False}
    source = ScriptedSource(endpoint_slice("one", ready("a", **unready), ready("b", 2, **unready)))
    await followed(world, nursery, source)
    assert members(world) == {}
    text = "the Service replicas of the namespace models has 2 pods, and none is ready: those that become so join"
    assert caplog.text.count(text) == 1
    await source.put(endpoint_slice("two", ready("c", 3, **unready)), "ADDED")
    assert members(world) == {}
    await source.put(endpoint_slice("one", ready("a", **unready), ready("b", 2)))
    assert members(world) == {"b": "10.0.0.2:8001"}
    await source.put(endpoint_slice("one", ready("a"), ready("b", 2, **unready)))
    await source.put(endpoint_slice("two", ready("c", 3)))
    assert sorted(members(world)) == ["a", "b", "c"]
    assert (source.lists, source.watched) == (1, ["10"])
    assert caplog.text.count("none is ready") == 1


async def test_one_that_is_not_ready_any_more_stays(world: FleetWorld, nursery: trio.Nursery) -> None:
    """Unless it is another one by now."""
    source = ScriptedSource(endpoint_slice("one", ready("a")))
    await followed(world, nursery, source)
    await source.put(endpoint_slice("one", ready("a", ready=False, serving=False)))
    assert list(members(world)) == ["a"]
    await source.put(endpoint_slice("one", ready("a", 9, ready=False, serving=False)))
    assert members(world) == {}
    await source.put(endpoint_slice("one", ready("a", 9)))
    assert members(world) == {"a": "10.0.0.9:8001"}


async def test_one_that_terminates_keeps_its_sequences(
    world: FleetWorld, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    """However long, while it is there; and a minute more when it does not serve."""
    source = ScriptedSource(endpoint_slice("one", ready("a"), ready("b", 2)))
    await followed(world, nursery, source)
    world.router.sequences["a"] = 1
    await source.put(endpoint_slice("one", ready("a", ready=False, terminating=True), ready("b", 2)))
    mock_clock.jump(3600)
    await wait_all_tasks_blocked()
    assert list(members(world)) == ["b"]
    assert world.server.replicas["a"].draining
    await source.put(endpoint_slice("one", ready("b", 2)))
    mock_clock.jump(59)
    await wait_all_tasks_blocked()
    assert list(world.server.replicas) == ["a", "b"]
    mock_clock.jump(2)
    await wait_all_tasks_blocked()
    assert list(world.server.replicas) == ["b"]


async def test_an_api_server_that_is_away_changes_nothing(
    world: FleetWorld, nursery: trio.Nursery, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    source = ScriptedSource(endpoint_slice("one", ready("a")))
    await followed(world, nursery, source)
    source.refuses = ApiServerError("localhost: connection refused")
    await source.tell(ApiServerError("it was lost"))
    for _ in range(20):
        mock_clock.jump(30)
        await wait_all_tasks_blocked()
    assert source.watched == ["10"] * 21
    assert list(members(world)) == ["a"]
    assert caplog.text.count("connection refused; the fleet stays as it was") == 1
    source.refuses = None
    mock_clock.jump(30)
    await wait_all_tasks_blocked()
    assert caplog.text.count("the API server of Kubernetes answers again") == 1
    await source.put(endpoint_slice("one", ready("a"), ready("b", 2)))
    assert list(members(world)) == ["a", "b"]


async def test_a_version_that_is_too_old_means_another_list(world: FleetWorld, nursery: trio.Nursery) -> None:
    source = ScriptedSource(endpoint_slice("one", ready("a")))
    await followed(world, nursery, source)
    source.items = [endpoint_slice("two", ready("b", 2))]
    await source.tell({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
    assert (source.lists, source.watched) == (2, ["10", "10"])
    assert list(members(world)) == ["b"]


async def test_a_watch_goes_on_from_where_it_ended(world: FleetWorld, nursery: trio.Nursery) -> None:
    source = ScriptedSource(endpoint_slice("one", ready("a")))
    await followed(world, nursery, source)
    await source.tell({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "77"}}})
    await source.end()
    assert (source.lists, source.watched) == (1, ["10", "77"])


async def test_it_starts_without_an_answer(
    world: FleetWorld, nursery: trio.Nursery, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    source = ScriptedSource()
    source.items = ApiServerError("it answers 403 to list", 403)
    await followed(world, nursery, source)
    assert "it answers 403 to list; the fleet stays as it was" in caplog.text
    source.items = [endpoint_slice("one", ready("a"))]
    mock_clock.jump(1)
    await wait_all_tasks_blocked()
    assert list(members(world)) == ["a"]


async def test_a_port_that_there_is_not_is_told_once(
    world: FleetWorld, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    other = {**endpoint_slice("one", ready("a")), "ports": [{"name": "http", "port": 8000}]}
    source = ScriptedSource(other)
    await followed(world, nursery, source)
    await source.put(other)
    text = "the Service replicas of the namespace models has no port 'grpc': found 'http'"
    assert caplog.text.count(text) == 1
