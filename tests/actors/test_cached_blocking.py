"""A response cache that may take its time: slow, full, broken, and back again."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from counted_models import CACHED, Counter, counted_request, counted_server, number_of, statistics_of, until
from gated_cache import GatedCache, install_gated_cache
from logs import said_by

from trireme.actors import InferenceServer, cache_access
from trireme.engine.cache import CacheError
from trireme.engine.cache import interface as guard
from trireme.engine.errors import CancelledError, UnavailableError
from trireme.engine.options import ControlMode
from trireme.engine.request import LATEST

Open = Callable[..., AbstractAsyncContextManager[tuple[InferenceServer, GatedCache]]]

ORDERED = CACHED + "dynamic_batching { preserve_ordering: true }\n"


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def opened(tmp_path: Path, counter: Counter, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    config = install_gated_cache(monkeypatch)

    @asynccontextmanager
    async def open_with(model: str = CACHED, **options: object) -> AsyncIterator[tuple[InferenceServer, GatedCache]]:
        with trio.fail_after(30):
            async with counted_server(tmp_path, counter, {"m": model}, config, **options) as server:
                cache = GatedCache.latest
                try:
                    yield server, cache
                finally:
                    cache.gate.set()

    yield open_with
    GatedCache.latest.gate.set()


@pytest.fixture
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that has failed rests for longer than a test takes."""
    monkeypatch.setattr(guard, "RETRY_S", 3600.0)


async def test_a_cache_of_ones_own_answers(opened: Open, counter: Counter) -> None:
    """Found by the entry-point group, and closed when the server ends."""
    async with opened() as (server, cache):
        cache.gate.set()
        await server.infer(counted_request())
        await until(lambda: statistics_of(server).cache_miss.count == 1)
        assert number_of(await server.infer(counted_request())) == 1
        assert statistics_of(server).cache_hit.count == 1
        assert statistics_of(server).cache_miss.count == 1
        assert not cache.closed
    assert counter.executed == 1
    assert cache.closed


async def test_requests_wait_for_a_thread_and_then_go_on(opened: Open) -> None:
    """Two lookups hang; the third request waits for one of their threads, but not longer than it should."""
    async with opened() as (server, cache):
        hanging = [await server.admit(counted_request((value,))) for value in (1, 2)]
        await until(lambda: cache.asked == 2)
        assert statistics_of(server).pending == 2
        cache.wait_s = 0.01
        await server.infer(counted_request((3,)))
        assert not any(reply.final for reply in hanging)
        cache.wait_s = 20
        waiting = await server.admit(counted_request((4,)))
        cache.gate.set()
        for reply in (*hanging, waiting):
            await reply.response()
        assert cache.asked == 3
        assert statistics_of(server).success.count == 4
        await until(lambda: len(cache.entries) == 3)


async def test_only_so_many_wait_for_a_thread(opened: Open, counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_access, "MOST_WAITING", 3)
    async with opened() as (server, cache):
        hanging = [await server.admit(counted_request((value,))) for value in range(2)]
        await until(lambda: cache.asked == 2)
        waiting = [await server.admit(counted_request((value,))) for value in range(2, 5)]
        await server.infer(counted_request((5,)))
        assert counter.executed == 1
        cache.gate.set()
        for reply in (*hanging, *waiting):
            await reply.response()
        assert cache.asked == 5


@pytest.mark.usefixtures("no_retries")
async def test_a_lookup_that_takes_too_long_is_given_up(
    opened: Open, counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    """And the cache is not asked again for a while; its thread counts as taken until it comes back."""
    async with opened() as (server, cache):
        cache.timeout_s = 0.01
        with caplog.at_level(logging.INFO, "trireme.cache"):
            for _ in range(3):
                await server.infer(counted_request())
        assert counter.executed == 3
        await until(lambda: cache.asked == 1)  # its thread may begin after it was given up
    assert said_by(caplog, "trireme.cache") == [
        "response cache 'gated' fails, requests go on without it: no answer within 0.01 s"
    ]


async def test_without_a_thread_requests_go_on(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As often as it happens: no place in the line is lost."""

    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(guard, "RETRY_S", 0.0)
    async with opened() as (server, cache):
        cache.gate.set()
        with monkeypatch.context() as patch:
            patch.setattr(trio.lowlevel, "start_thread_soon", none_left)
            for _ in range(2 * cache.calls_at_once):
                await server.infer(counted_request())
        await server.infer(counted_request())
        await until(lambda: statistics_of(server).cache_miss.count == 1)
        assert server.ready()
    assert "RuntimeError: can't start new thread" in caplog.text


@pytest.mark.usefixtures("no_retries")
async def test_a_cache_that_fails_is_left_alone_and_tried_again(
    opened: Open, counter: Counter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as (server, cache):
        cache.gate.set()
        cache.error = CacheError("gone fishing")
        with caplog.at_level(logging.INFO, "trireme.cache"):
            for _ in range(5):
                await server.infer(counted_request())
            assert cache.asked == 1
            monkeypatch.setattr(guard, "RETRY_S", 0.0)
            server._repository._context.cache._guard._rests_until_s = 0.0  # type: ignore[union-attr]
            cache.error = None
            await server.infer(counted_request())
            await until(lambda: bool(cache.entries))
            assert number_of(await server.infer(counted_request())) == 6
    assert said_by(caplog, "trireme.cache") == [
        "response cache 'gated' fails, requests go on without it: gone fishing",
        "response cache 'gated' answers again",
    ]


async def test_whatever_a_cache_raises_no_request_fails(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as (server, cache):
        cache.gate.set()
        cache.error = ZeroDivisionError("oops")
        assert number_of(await server.infer(counted_request())) == 1
        assert statistics_of(server).fail.count == 0
    assert "requests go on without it: ZeroDivisionError: oops" in caplog.text


async def test_what_is_no_entry_is_a_miss(opened: Open, counter: Counter) -> None:
    async with opened() as (server, cache):
        cache.gate.set()
        await server.infer(counted_request())
        await until(lambda: bool(cache.entries))
        (key,) = cache.entries
        for junk in (b"", b"TRC1", b"junk" * 100, cache.entries[key][:-1]):
            cache.entries[key] = junk
            await server.infer(counted_request())
        assert counter.executed == 5
        assert statistics_of(server).fail.count == 0


async def test_a_lookup_can_be_cancelled(opened: Open, counter: Counter) -> None:
    """Then the request is not executed, and counts as cancelled in a queue."""
    async with opened() as (server, cache):
        reply = await server.admit(counted_request())
        await until(lambda: cache.asked == 1)
        reply.cancel()
        with pytest.raises(CancelledError):
            await reply.response()
        counted = statistics_of(server)
        assert (counted.pending, counted.fail.count) == (0, 1)
        assert counter.executed == 0
        assert server.budget_statistics().requests == 0


async def test_who_leaves_while_waiting_for_a_lookup_leaves_nothing_behind(opened: Open, counter: Counter) -> None:
    async with opened() as (server, cache):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.infer, counted_request())
                await until(lambda: cache.asked == 1)
                scope.cancel()
        assert server.budget_statistics().requests == 0
        assert server.model_statistics()[0].inflight == 0
        assert counter.executed == 0


async def test_a_refusal_behind_the_lookup_is_the_answer(opened: Open, counter: Counter) -> None:
    """A full queue says the same as ever; it is not counted as a failure."""
    batching = "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    async with opened(CACHED.replace("max_batch_size: 8", batching)) as (server, cache):
        held = await server.admit(counted_request((1,), parameters={"gate": "g"}))
        cache.gate.set()
        await until(lambda: counter.executed == 1)
        replies = [await server.admit(counted_request((value,))) for value in (2, 3)]
        await until(lambda: any(reply.final for reply in replies))
        (refused,) = [reply for reply in replies if reply.final]
        with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
            await refused.response()
        counter.open("g")
        await held.response()
        assert statistics_of(server).fail.count == 0


async def test_requests_reach_the_scheduler_in_order_if_the_model_preserves_it(opened: Open, counter: Counter) -> None:
    """Also one that has to wait for a thread, behind two that are looked up."""
    order: list[str] = []
    async with opened(ORDERED) as (server, cache):
        replies = [await server.admit(counted_request((value,), id=str(value))) for value in (1, 2, 3)]
        for name, reply in enumerate(replies, start=1):
            reply.notify(lambda _reply, name=name: order.append(str(name)))
        await until(lambda: cache.asked == 2)
        assert counter.executed == 0
        cache.gate.set()
        await until(lambda: len(order) == 3)
    assert order == ["1", "2", "3"]


async def test_cancelling_the_first_lets_the_next_ones_go(opened: Open, counter: Counter) -> None:
    async with opened(ORDERED) as (server, cache):
        looked_up = [await server.admit(counted_request((value,))) for value in (1, 2)]
        await until(lambda: cache.asked == 2)
        cache.wait_s = 0.001
        last = await server.admit(counted_request((3,)))
        looked_up[1].cancel()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not last.final
        looked_up[0].cancel()
        await last.response()
        assert counter.executed == 1


async def test_a_model_that_is_unloaded_answers_what_is_being_looked_up(opened: Open) -> None:
    """And takes nothing new."""
    options = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("m",)}
    async with opened(**options) as (server, cache):
        reply = await server.admit(counted_request())
        await until(lambda: cache.asked == 1)
        (model,) = server._repository.models()
        await server.unload_model("m")
        assert model.draining
        cache.gate.set()
        assert number_of(await reply.response()) == 1
        await until(lambda: model.ended)


async def test_time_is_up_for_those_that_are_looked_up_too(opened: Open, counter: Counter) -> None:
    """A server that stops at once answers them with an error."""
    async with opened(exit_timeout_s=0) as (server, cache):
        reply = await server.admit(counted_request())
        await until(lambda: cache.asked == 1)
    with pytest.raises(UnavailableError, match="Server is stopping"):
        await reply.response()
    assert counter.executed == 0


async def test_reloads_cost_nobody_an_answer(opened: Open, tmp_path: Path) -> None:
    """Requests that are being looked up when their model is replaced are answered by the one that took them."""
    options = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("m",)}
    async with opened(**options) as (server, cache):
        cache.gate.set()
        reloading = True
        answered = 0

        async def hammer(first: int) -> None:
            nonlocal answered
            value = first
            while reloading:
                value = first + (value + 1) % 7
                answer = await server.infer(counted_request((value,)))
                assert answer.output("OUT").array.tolist() == [[2 * value]]
                answered += 1

        async with trio.open_nursery() as nursery:
            for first in (0, 100, 200):
                nursery.start_soon(hammer, first)
            weights = tmp_path / "m" / "1" / "weights"
            weights.touch()
            changed_ns = weights.stat().st_mtime_ns
            for reload in range(1, 16):
                seen = answered
                await until(lambda seen=seen: answered > seen + 5)
                os.utime(weights, ns=(changed_ns, changed_ns + reload * 1_000_000_000))
                before = server._repository.find("m", LATEST)
                await server.load_model("m", {})
                assert server._repository.find("m", LATEST) is not before
            reloading = False
        assert statistics_of(server).fail.count == 0
