"""Virtual time that jumps."""

from __future__ import annotations

import trio

from trireme.simulations.clock import JumpingClock, Sleeper


def run(clock: JumpingClock, *sleeps: tuple[str, float]) -> list[tuple[str, float]]:
    """Sleep these at once, each in a task; who woke when."""
    woke: list[tuple[str, float]] = []

    async def sleep(name: str, duration_s: float) -> None:
        if name == "trio":
            await trio.sleep(duration_s)
        else:
            await clock.sleep(duration_s)
        woke.append((name, clock.now_s()))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for each in sleeps:
                nursery.start_soon(sleep, *each)

    trio.run(main, clock=clock)
    return woke


def test_it_stops_at_every_deadline_whether_trio_s_or_its_own() -> None:
    clock = JumpingClock()
    assert run(clock, ("a", 3.0), ("trio", 1.0), ("b", 2.0), ("c", 1e6)) == [
        ("trio", 1.0),
        ("b", 2.0),
        ("a", 3.0),
        ("c", 1e6),
    ]
    assert (clock.now_ns(), clock.wall_ms()) == (10**15, 10**9)


def test_it_says_when_nothing_is_left_to_do_at_an_instant() -> None:
    """`on_quiet` comes once an instant, when all who woke there have had their turns."""
    clock = JumpingClock()
    seen: list[tuple[float, int]] = []
    turns = 0

    async def work() -> None:
        nonlocal turns
        await clock.sleep(1.0)
        for _ in range(5):
            turns += 1
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        clock.on_quiet = lambda: seen.append((clock.now_s(), turns))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            nursery.start_soon(work)
            nursery.start_soon(clock.sleep, 2.0)

    trio.run(main, clock=clock)
    assert seen == [(0.0, 0), (1.0, 10)]


def test_it_does_not_jump_past_callbacks_that_wait_for_the_loop() -> None:
    """What a backend's thread would say by `run_sync_soon` happens at the instant at which it was said."""
    clock = JumpingClock()
    heard: list[float] = []

    async def main() -> None:
        token = trio.lowlevel.current_trio_token()
        await clock.sleep(1.0)
        token.run_sync_soon(lambda: heard.append(clock.now_s()))
        await clock.sleep(1.0)

    trio.run(main, clock=clock)
    assert heard == [1.0]


def test_a_sleeper_that_is_cancelled_does_not_wake_again() -> None:
    clock = JumpingClock()

    async def main() -> None:
        with trio.move_on_after(1.0):
            await clock.sleep(5.0)
        assert clock.now_s() == 1.0
        await clock.sleep(10.0)
        assert clock.now_s() == 11.0

    trio.run(main, clock=clock)


def test_a_sleeper_can_be_woken_earlier_and_is_woken_once() -> None:
    clock = JumpingClock()

    async def main() -> None:
        sleeper = Sleeper(trio.lowlevel.current_task())
        clock.call_at(5.0, sleeper.wake)
        clock.call_at(2.0, sleeper.wake)
        await trio.lowlevel.wait_task_rescheduled(sleeper.give_up)
        assert clock.now_s() == 2.0
        await clock.sleep(6.0)
        assert clock.now_s() == 8.0

    trio.run(main, clock=clock)
