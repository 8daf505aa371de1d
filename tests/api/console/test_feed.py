"""Frames: how often, for how many, and what is left when the last console is closed; in virtual time."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest
import trio
from trio.testing import MockClock

from trireme.api.console.feed import LEAST_INTERVAL_S, MOST_CONSOLES, Feed
from trireme.engine.admission.budget import BudgetStatistics
from trireme.engine.description import ActorNode
from trireme.engine.errors import NotFoundError
from trireme.engine.job import SealReason
from trireme.engine.metrics.batch_tap import MOST_ENDED, TappedRequest
from trireme.engine.metrics.statistics import ModelStatistics, ModelStatisticsEntry
from trireme.engine.options import ServerOptions


class TickingClock:
    """Each look at it takes `step_ns`, so that frames seem to take time to be made."""

    def __init__(self, step_ns: int = 0) -> None:
        self.now = 0
        self.step_ns = step_ns

    def now_ns(self) -> int:
        self.now += self.step_ns
        return self.now


class CountedServer:
    """Models that count, and nothing behind them."""

    started = True
    options = ServerOptions()

    def __init__(self, *names: str) -> None:
        self.entries = [ModelStatisticsEntry(name, 1, ModelStatistics()) for name in names]

    def statistics(self) -> list[ModelStatisticsEntry]:
        return self.entries

    def describe(self, name: str, version: int) -> Any:
        raise NotFoundError(name)

    def repository_index(self) -> list[Any]:
        return []

    def open_requests(self, most: int) -> dict[Any, Any]:
        return {("", "m", 1): [TappedRequest(1, -1, -1)][:most]}

    def model_statistics(self) -> list[Any]:
        return []

    def budget_statistics(self) -> BudgetStatistics:
        return BudgetStatistics(0, 0, 0, 0, 0)

    def refusal_statistics(self) -> dict[Any, int]:
        return {}

    def actors(self) -> ActorNode:
        return ActorNode("server", "triton", "serving")


def seconds(count: float) -> int:
    """So many frames."""
    return round(count / LEAST_INTERVAL_S)


def feed_of(server: CountedServer, clock: TickingClock | None = None) -> Feed:
    clock = clock or TickingClock()
    return Feed(cast(Any, server), clock=cast(Any, clock), cpu_ns=clock.now_ns)


async def test_frames_are_made_once_for_all_and_at_an_interval(autojump_clock: MockClock) -> None:
    feed = feed_of(CountedServer("m"))
    seen: dict[int, list[tuple[float, int]]] = {0: [], 1: []}

    async def read(reader: int) -> None:
        number = 0
        with feed.reader():
            for _ in range(4):
                number, _ = await feed.next(number)
                seen[reader].append((round(trio.current_time(), 3), number))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for reader in seen:
            nursery.start_soon(read, reader)
    assert seen[0] == seen[1] == [(round(began + at * LEAST_INTERVAL_S, 3), at + 1) for at in range(4)]


async def test_a_slow_reader_misses_frames(autojump_clock: MockClock) -> None:
    feed = feed_of(CountedServer())
    with feed.reader(), feed.reader():
        numbers = [(await feed.next(0))[0]]
        for _ in range(8):
            numbers.append((await feed.next(numbers[-1]))[0])
        assert numbers == list(range(1, 10))
        assert (await feed.next(1))[0] == 9, "the one of now, and none of those in between"


async def test_frames_that_take_long_are_made_seldom(autojump_clock: MockClock) -> None:
    """No more than a hundredth of the time goes into them."""
    feed = feed_of(CountedServer(), TickingClock(20_000_000))
    with feed.reader():
        number, _ = await feed.next(0)
        began = trio.current_time()
        await feed.next(number)
        assert trio.current_time() - began == pytest.approx(2.0)


async def test_batches_are_noted_only_while_a_console_is_open(autojump_clock: MockClock) -> None:
    server = CountedServer("m")
    feed, tap = feed_of(server), server.entries[0].statistics.tap
    assert tap.left == 0
    with feed.reader():
        await feed.next(0)
        assert tap.left > 0
    assert tap.left == 0
    assert feed.readers == 0


async def test_requests_are_told_once_and_open_ones_again(autojump_clock: MockClock) -> None:
    server = CountedServer("m")
    feed, tap = feed_of(server), server.entries[0].statistics.tap
    with feed.reader():
        number, _ = await feed.next(0)
        for _ in range(MOST_ENDED + 1):
            tap.note_request(1, 2)
        lengths = []
        for _ in range(2):
            number, text = await feed.next(number)
            lengths.append(len(orjson.loads(text)["models"][0]["requests"]))
    assert lengths == [MOST_ENDED + 1, 1], "and one that is open"
    assert not tap.watched


async def test_a_stream_that_begins_anew_begins_with_a_new_frame(autojump_clock: MockClock) -> None:
    server = CountedServer("m")
    feed = feed_of(server)
    with feed.reader():
        first = await feed.next(0)
    server.entries[0].statistics.pending = 9
    with feed.reader():
        number, text = await feed.next(0)
    assert number > first[0]
    assert orjson.loads(text)["models"][0]["pending"] == 9


async def test_windows_grow_smaller_with_more_models(autojump_clock: MockClock) -> None:
    server = CountedServer(*(f"m{at}" for at in range(100)))
    feed = feed_of(server)
    with feed.reader():
        number, _ = await feed.next(0)
        for entry in server.entries:
            entry.statistics.execution_count += 10_000
        await feed.next(number)
        lefts = [entry.statistics.tap.left for entry in server.entries]
        assert sum(lefts) <= 64 * 12
        assert max(lefts) == 12


async def test_sentences_are_about_the_last_minute(autojump_clock: MockClock) -> None:
    server = CountedServer("m")
    counted = server.entries[0].statistics
    feed = feed_of(server)

    def execute() -> None:
        counted.record_execution(1, (0, 0, 0, 0), 1, SealReason.IDLE)

    execute()
    number = 0
    texts: list[str] = []
    with feed.reader():
        for at in range(seconds(125)):
            if at == seconds(1):
                execute()
            number, text = await feed.next(number)
            texts.append(orjson.loads(text)["models"][0]["why"][0])
    assert texts[0] == "No batch was executed in the last 1 s.", "what was before is not told"
    assert texts[seconds(10)].startswith("1 batch ran in the last 10 s")
    assert texts[seconds(59)].startswith("1 batch ran in the last minute")
    assert texts[-1] == "No batch was executed in the last minute."


async def test_so_many_consoles_and_no_more(autojump_clock: MockClock) -> None:
    from contextlib import ExitStack

    feed = feed_of(CountedServer())
    with ExitStack() as stack:
        for _ in range(MOST_CONSOLES):
            assert not feed.full
            stack.enter_context(feed.reader())
        assert feed.full
    assert not feed.full
