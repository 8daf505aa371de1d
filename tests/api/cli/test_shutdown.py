"""Signals and time, from the first one to the stop (docs/reference/command-line.md#shutdown)."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trireme.api.cli.command import ServeCommand, build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import UsageError, parse
from trireme.api.cli.shutdown import EndSignals


@asynccontextmanager
async def heeding(drain_s: float) -> AsyncIterator[tuple[EndSignals, trio.MemorySendChannel[int], list[float]]]:
    """A server that serves; what stands in for its signals; and when it was to stop."""
    shutdown = EndSignals({signal.SIGTERM: drain_s})
    shutdown.serving = True
    signals, heard = trio.open_memory_channel[int](1)
    stopped_s: list[float] = []

    async def stop() -> None:
        await shutdown.until_asked()
        await shutdown.until_stop()
        stopped_s.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shutdown.heed, heard)
        nursery.start_soon(stop)
        yield shutdown, signals, stopped_s
        nursery.cancel_scope.cancel()


async def test_the_drain_takes_its_time(mock_clock: MockClock) -> None:
    async with heeding(5.0) as (shutdown, signals, stopped_s):
        mock_clock.jump(100)
        await wait_all_tasks_blocked()
        assert not shutdown.asked
        await signals.send(signal.SIGTERM)
        await wait_all_tasks_blocked()
        assert (shutdown.asked, shutdown.drains_s) == (True, 5.0)
        mock_clock.jump(4.5)
        await wait_all_tasks_blocked()
        assert (shutdown.drains_s, stopped_s) == (0.5, [])
        mock_clock.jump(0.5)
        await wait_all_tasks_blocked()
        assert (shutdown.drains_s, len(stopped_s)) == (0.0, 1)


@pytest.mark.parametrize("drain_s", [5.0, float("inf")])
async def test_a_second_signal_skips_it_and_a_third_does_nothing(
    drain_s: float, mock_clock: MockClock, capfd: pytest.CaptureFixture[str]
) -> None:
    async with heeding(drain_s) as (shutdown, signals, stopped_s):
        await signals.send(signal.SIGTERM)
        await wait_all_tasks_blocked()
        assert stopped_s == []
        await signals.send(signal.SIGINT)
        await wait_all_tasks_blocked()
        assert len(stopped_s) == 1
        await signals.send(signal.SIGTERM)
        await wait_all_tasks_blocked()
        assert (shutdown.drains_s, len(stopped_s)) == (0.0, 1)


async def test_without_a_drain_the_first_signal_stops(mock_clock: MockClock) -> None:
    async with heeding(0.0) as (shutdown, signals, stopped_s):
        await signals.send(signal.SIGTERM)
        await wait_all_tasks_blocked()
        assert (shutdown.drains_s, len(stopped_s)) == (0.0, 1)


async def test_a_signal_during_the_start_ends_everything(mock_clock: MockClock) -> None:
    async with heeding(5.0) as (shutdown, signals, _):
        shutdown.serving = False
        await signals.send(signal.SIGTERM)
        await wait_all_tasks_blocked()
        assert shutdown.everything.cancel_called


def command(*words: str) -> ServeCommand:
    return build_command(parse(words, FLAGS), {})


@pytest.mark.parametrize(
    ("words", "drain_s"),
    [
        ((), {signal.SIGTERM: 5.0}),
        (("--http-address=127.0.0.1",), {signal.SIGTERM: 5.0}),
        (("--http-address=localhost", "--grpc-address=::1"), {}),
        (("--http-address=127.0.0.1", "--grpc-address=10.0.0.1", "--allow-grpc=false"), {}),
        (("--allow-http=false", "--grpc-address=127.0.0.2"), {}),
        (("--metrics-address=0.0.0.0", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"), {}),
        (("--drain-secs=0",), {signal.SIGINT: 0.0, signal.SIGTERM: 0.0}),
        (
            ("--drain-secs=2.5", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"),
            {signal.SIGINT: 2.5, signal.SIGTERM: 2.5},
        ),
    ],
)
def test_a_server_drains_for_as_long_as_told_or_if_others_reach_it(
    words: tuple[str, ...], drain_s: dict[int, float]
) -> None:
    """docs/reference/command-line.md#draining"""
    assert command("--model-repository=m", *words).drain_s == drain_s


def test_a_negative_drain_is_a_usage_error() -> None:
    with pytest.raises(UsageError) as raised:
        command("--drain-secs=-1")
    assert "at least 0" in raised.value.message
