"""A run that is cut off from the outside: what its tasks see is what they saw."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
import trio

from trireme.simulations import clock as clock_module
from trireme.simulations.clock import JumpingClock
from trireme.simulations.determinism import deterministic_scheduling


def turns() -> list[str]:
    """Tasks that take turns with callbacks, some given by callbacks: who had a turn, in order."""
    said: list[str] = []
    clock = JumpingClock()

    async def main() -> None:
        token = trio.lowlevel.current_trio_token()

        async def work(name: int) -> None:
            for turn in range(6):
                said.append(f"{name}.{turn}")
                if turn % 2:
                    token.run_sync_soon(call, name, turn)
                if turn == 3:
                    await clock.sleep(0.5 * name)
                else:
                    await trio.lowlevel.checkpoint()

        def call(name: int, turn: int) -> None:
            said.append(f"called by {name}.{turn} at {clock.now_s()}")
            if turn == 1:
                token.run_sync_soon(call, name, 100)

        async with trio.open_nursery() as nursery:
            for name in range(3):
                nursery.start_soon(work, name)

    with deterministic_scheduling(7):
        trio.run(main, clock=clock)
    return said


def test_tasks_and_callbacks_have_the_same_turns_as_with_trio_s_own_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    isolated = turns()
    monkeypatch.setattr(clock_module, "isolate", lambda: None)
    assert isolated == turns()
    assert len([turn for turn in isolated if turn.startswith("called")]) == 3 * 3 + 3


@pytest.fixture
def alarm():
    """Have a handler called by a signal, soon."""
    before = signal.getsignal(signal.SIGALRM)

    def set_alarm(handler: Callable[[], None]) -> None:
        signal.signal(signal.SIGALRM, lambda *_: handler())
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    yield set_alarm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_run_without_waits_for_time_still_hears_of_signals(alarm) -> None:
    """As it must of Ctrl-C, which trio's own handler tells the same way."""

    async def main() -> None:
        interrupted = trio.Event()
        token = trio.lowlevel.current_trio_token()
        alarm(lambda: token.run_sync_soon(interrupted.set))
        await interrupted.wait()

    trio.run(main, clock=JumpingClock())
