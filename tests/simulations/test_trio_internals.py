"""The canary for trio's private parts: the switch, in a process that hypothesis has not touched, and a run that is cut
off from the outside, whose tasks see what they saw."""

from __future__ import annotations

import json
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from trireme.simulations import clock as clock_module
from trireme.simulations.clock import JumpingClock
from trireme.simulations.trio_internals import LoopView, UnknownTrioError, deterministic_scheduling, isolate

CANARY = """
import json, sys
import trio
from trireme.simulations.trio_internals import deterministic_scheduling

private = trio._core._run

def order():
    turns = []
    async def take_turns(number):
        for _ in range(3):
            turns.append(number)
            await trio.lowlevel.checkpoint()
    async def main():
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(take_turns, number)
    trio.run(main)
    return turns

def seeded(seed):
    with deterministic_scheduling(seed):
        return order()

switch_before, state_before = private._ALLOW_DETERMINISTIC_SCHEDULING, private._r.getstate()
seeds = [seeded(seed) for seed in (1, 2, 3, 1, 2, 3)]
with deterministic_scheduling(4):
    switch_within = private._ALLOW_DETERMINISTIC_SCHEDULING
try:
    with deterministic_scheduling(5):
        raise KeyError
except KeyError:
    pass
switch_after, restored = private._ALLOW_DETERMINISTIC_SCHEDULING, private._r.getstate() == state_before
print(json.dumps({
    "hypothesis": "hypothesis" in sys.modules,
    "switch": [switch_before, switch_within, switch_after],
    "restored": restored,
    "seeds": seeds,
    "unseeded": [order() for _ in range(20)],
}))
"""


def test_task_order_is_a_function_of_the_seed_within_the_block_and_of_chance_again_after_it(run_python) -> None:
    seen = json.loads(run_python("-c", CANARY))
    assert not seen["hypothesis"], "the canary must live where the switch is untouched"
    assert seen["switch"] == [False, True, False]
    assert seen["restored"], "trio's generator goes on where it was, after an exception too"
    assert seen["seeds"][:3] == seen["seeds"][3:]
    assert len({tuple(turns) for turns in seen["seeds"]}) == 3
    assert len({tuple(turns) for turns in seen["unseeded"]}) > 1


def test_two_processes_agree_on_the_order(run_python) -> None:
    first, second = (json.loads(run_python("-c", CANARY, hash_seed=seed))["seeds"] for seed in (1, 2))
    assert first == second


@pytest.mark.parametrize("name", ["_r", "_ALLOW_DETERMINISTIC_SCHEDULING"])
def test_a_trio_without_the_switch_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(trio._core._run, name)
    with pytest.raises(UnknownTrioError, match=rf"trio {trio.__version__} has no"), deterministic_scheduling(1):
        pytest.fail("entered")


def test_only_versions_of_trio_that_this_was_run_on_are_allowed() -> None:
    """From 0.31 on; when another comes, run this file with it, and raise the bound."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert [need for need in project["dependencies"] if need.startswith("trio")] == ["trio>=0.31,<0.36"]
    assert (0, 31) <= tuple(map(int, trio.__version__.split(".")[:2])) < (0, 36)


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


PARTS = (
    "entry_queue.wakeup.wait_woken",
    "entry_queue.wakeup.wakeup_thread_and_signal_safe",
    "entry_queue.queue",
    "entry_queue.idempotent_queue",
    "io_manager.get_events",
    "io_manager.process_events",
    "io_manager.close",
    "instruments.data",
)


VIEWED = ("runq", "deadlines.next_deadline", "entry_queue.queue", "entry_queue.idempotent_queue")


@pytest.mark.parametrize(
    ("need", "parts", "path"),
    [*((isolate, PARTS, path) for path in PARTS), *((LoopView, VIEWED, path) for path in VIEWED)],
)
def test_a_trio_without_one_of_these_parts_is_named_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, need: Callable[[], object], parts: tuple[str, ...], path: str
) -> None:
    lacking = SimpleNamespace()
    for part in parts:
        owner = lacking
        *inner, last = part.split(".")
        for name in inner:
            vars(owner).setdefault(name, SimpleNamespace())
            owner = getattr(owner, name)
        if part != path:
            setattr(owner, last, SimpleNamespace())
    monkeypatch.setattr(trio._core._run, "GLOBAL_RUN_CONTEXT", SimpleNamespace(runner=lacking))
    before = repr(lacking)
    with pytest.raises(UnknownTrioError, match=path.rpartition(".")[2]):
        need()
    assert repr(lacking) == before
