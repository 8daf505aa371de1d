"""The mailbox: bounded, ordered, one reader, everything at once."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from trireme.actors.mailbox import Mailbox, MailboxFullError


async def test_messages_come_out_in_order_and_all_at_once() -> None:
    box: Mailbox[int] = Mailbox("tests", 3)
    for number in (1, 2, 3):
        box.put_nowait(number)
    assert await box.get_all() == [1, 2, 3]
    assert len(box) == 0


async def test_a_full_box_refuses_and_says_whose_it_is() -> None:
    box: Mailbox[int] = Mailbox("instance digits_0", 1)
    box.put_nowait(1)
    with pytest.raises(MailboxFullError, match="instance digits_0 holds its limit of 1"):
        box.put_nowait(2)
    assert await box.get_all() == [1]


async def test_put_waits_for_room_and_keeps_order() -> None:
    box: Mailbox[int] = Mailbox("tests", 2)

    async with trio.open_nursery() as nursery:

        async def write() -> None:
            for number in range(6):
                await box.put(number)

        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        assert box.statistics().used == 2
        assert box.statistics().writers_waiting == 1
        seen: list[int] = []
        while len(seen) < 6:
            seen += await box.get_all()
        assert seen == list(range(6))
    assert box.statistics().peak == 2


async def test_a_waiting_reader_is_woken_by_a_message() -> None:
    box: Mailbox[str] = Mailbox("tests", 4)
    heard: list[str] = []
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            heard.extend(await box.get_all())

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        box.put_nowait("a")
        box.put_nowait("b")
    assert heard == ["a", "b"]


async def test_a_cancelled_reader_loses_nothing() -> None:
    box: Mailbox[int] = Mailbox("tests", 4)
    with trio.move_on_after(0) as scope:
        await box.get_all()
    assert scope.cancelled_caught
    box.put_nowait(7)
    assert await box.get_all() == [7]


def test_a_mailbox_has_a_bound() -> None:
    with pytest.raises(ValueError, match="at least one message"):
        Mailbox("tests", 0)


def test_repr_says_how_full_it_is() -> None:
    box: Mailbox[int] = Mailbox("scheduler of digits", 3)
    box.put_nowait(1)
    assert repr(box) == "<Mailbox of scheduler of digits: 1/3>"
