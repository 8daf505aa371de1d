"""Operations on the same names wait for each other, in the order in which they came; others do not."""

from __future__ import annotations

import trio

from trireme.actors.model_control import NameLocks


async def test_who_shares_a_name_goes_one_after_the_other_and_nobody_is_overtaken(autojump_clock) -> None:
    locks = NameLocks()
    log: list[str] = []

    async def operate(label: str, names: str) -> None:
        async with locks.hold(frozenset(names)):
            log.append(f"{label} begins")
            await trio.sleep(1.5 if label == "other" else 1)
            log.append(f"{label} ends")

    async with trio.open_nursery() as nursery:
        for label, names in (("first", "a"), ("other", "c"), ("both", "ab"), ("late", "b")):
            nursery.start_soon(operate, label, names)
            await trio.testing.wait_all_tasks_blocked()
    assert log == [
        "first begins",
        "other begins",
        "first ends",
        "both begins",
        "other ends",
        "both ends",
        "late begins",
        "late ends",
    ]


async def test_who_gives_up_waiting_holds_nobody_up(autojump_clock) -> None:
    locks = NameLocks()
    async with trio.open_nursery() as nursery, locks.hold(frozenset("a")):
        entered = trio.Event()

        async def late() -> None:
            async with locks.hold(frozenset("b")):
                entered.set()

        with trio.move_on_after(1) as scope:
            nursery.start_soon(late)
            async with locks.hold(frozenset("ab")):
                raise AssertionError("a is held")
        assert scope.cancelled_caught
        await entered.wait()
