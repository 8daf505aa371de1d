"""The watchdog sees from outside that a loop is held up. Time is the test's own; the loop waits until it is seen."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from trireme.actors import InferenceServer
from trireme.actors import watchdog as module
from trireme.api.metrics.collector import ServerCollector
from trireme.engine.metrics.families import HostReadings
from trireme.engine.metrics.page import write_text
from trireme.engine.options import ServerOptions


class SteppedClock:
    """Time that passes only when told to; read from two threads."""

    def __init__(self) -> None:
        self.s = 100.0

    def now_s(self) -> float:
        return self.s

    def now_ns(self) -> int:
        return int(self.s * 1e9)

    def wall_ms(self) -> int:
        return 0


class Lines(logging.Handler):
    """Tells when a line with a text was logged, from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            self.texts.append(record.getMessage())
            self._changed.notify_all()

    def wait_for(self, text: str) -> str:
        with self._changed:
            found = lambda: next((each for each in self.texts if text in each), "")  # noqa: E731
            assert self._changed.wait_for(found, 60), f"nobody said {text!r}: {self.texts}"
            return found()


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logger = logging.getLogger("trireme.server")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread looks a hundred times as often; what counts as a stall is still up to the clock."""
    monkeypatch.setattr(module, "_BEAT_S", 0.0025)
    monkeypatch.setattr(module, "STALL_S", 0.01)


def hold_the_loop_up(lines: Lines, clock: SteppedClock) -> str:
    """Until the watchdog has said so twice; what it said last. What it said first may be about what the loop did before
    that, which can take 10 ms on a busy machine."""
    lines.wait_for("the event loop has been held up for")
    clock.s += 6
    return lines.wait_for("and the server not ready")


async def pass_time(server: InferenceServer, clock: SteppedClock, seconds: float) -> None:
    """In steps that are no stalls, each of which the watchdog takes in."""
    watchdog = server._watchdog
    assert watchdog is not None
    beat, beats = watchdog._beat, 0

    def counted() -> None:
        nonlocal beats
        beats += 1
        beat()

    watchdog._beat = counted  # type: ignore[method-assign]
    for _ in range(int(seconds / 0.5) + 1):
        clock.s += 0.5
        seen = beats
        with trio.fail_after(60):
            while beats < seen + 3:
                await trio.lowlevel.checkpoint()
    watchdog._beat = beat  # type: ignore[method-assign]


async def test_a_stall_is_logged_with_its_stack_and_counted_and_makes_not_ready_until_recovered(
    tmp_path: Path, lines: Lines
) -> None:
    clock = SteppedClock()
    options = ServerOptions(model_repository=(tmp_path,), watchdog_limit_s=5)
    async with InferenceServer(options, clock=clock) as server:
        assert server.ready()
        said = hold_the_loop_up(lines, clock)
        assert "in hold_the_loop_up" in said, "it says where the loop is"
        assert not server.ready()
        assert not await server.check_ready()
        await trio.to_thread.run_sync(lines.wait_for, "the event loop was held up for 6.00 s")
        text = write_text(ServerCollector(server, HostReadings, clock=clock).collect())
        assert "trireme_loop_stall_count 1\n" in text
        assert "trireme_loop_longest_stall_seconds 5.99" in text, "counted from when the beat was due"
        assert not server.ready(), "it has not recovered yet"
        await pass_time(server, clock, 10)
        lines.wait_for("the event loop has recovered")
        assert server.ready()
    assert "trireme watchdog" not in [thread.name for thread in threading.enumerate()]


async def test_a_stall_in_which_the_thread_could_not_run_either_is_counted(tmp_path: Path, lines: Lines) -> None:
    """As when one call holds the interpreter's lock: the thread finds that it should have asked long ago."""
    clock = SteppedClock()
    options = ServerOptions(model_repository=(tmp_path,), watchdog_limit_s=5)
    async with InferenceServer(options, clock=clock) as server:
        await pass_time(server, clock, 1)
        clock.s += 6
        said = await trio.to_thread.run_sync(lines.wait_for, "the event loop was held up for")
        assert "for 6.0" in said or "for 5.9" in said
        assert not server.ready()


async def test_a_stall_that_begins_before_the_thread_has_heard_of_the_last_beat_is_counted(
    tmp_path: Path, lines: Lines
) -> None:
    clock = SteppedClock()
    options = ServerOptions(model_repository=(tmp_path,), watchdog_limit_s=5)
    async with InferenceServer(options, clock=clock) as server:
        watchdog = server._watchdog
        assert watchdog is not None
        beat = watchdog._beat

        def held_up_after_it() -> None:
            watchdog._beat = beat  # type: ignore[method-assign]
            beat()
            clock.s += 6

        watchdog._beat = held_up_after_it  # type: ignore[method-assign]
        await trio.to_thread.run_sync(lines.wait_for, "the event loop was held up for")


async def test_without_a_limit_nobody_watches(tmp_path: Path) -> None:
    async with InferenceServer(ServerOptions(model_repository=(tmp_path,))):
        assert "trireme watchdog" not in [thread.name for thread in threading.enumerate()]
