"""The mailbox: bounded, first in, first out, and its owner hears of the first message."""

from __future__ import annotations

import pytest
import trio

from trireme.actors.actor import Mailbox, MailboxFullError, MailboxStatistics, Recipient, Turn


class Owner(Recipient):
    def __init__(self) -> None:
        super().__init__()
        self.turns = 0

    def take_turn(self) -> None:
        self.turns += 1

    def fail(self, error: Exception) -> None:
        raise AssertionError from error


async def test_messages_come_in_order_and_all_at_once() -> None:
    turn, owner = Turn(), Owner()
    mailbox: Mailbox[int] = Mailbox("tests", turn, owner)
    with turn:
        for number in range(3):
            mailbox.send_nowait(number)
        assert len(mailbox) == 3
    assert owner.turns == 1
    assert list(mailbox.receive_all()) == [0, 1, 2]
    assert not mailbox.receive_all()


async def test_a_full_mailbox_refuses() -> None:
    mailbox: Mailbox[int] = Mailbox("tests", Turn(), Owner(), 2)
    mailbox.send_nowait(1)
    mailbox.send_nowait(2)
    with pytest.raises(MailboxFullError, match="the mailbox of tests holds its limit of 2 messages"):
        mailbox.send_nowait(3)
    with pytest.raises(trio.WouldBlock):
        mailbox.send_nowait(3)
    assert mailbox.statistics() == MailboxStatistics(current_buffer_used=2, max_buffer_size=2)
    assert repr(mailbox) == "<Mailbox of tests: 2/2>"


async def test_a_mailbox_holds_at_least_one_message() -> None:
    with pytest.raises(ValueError, match="at least one message, not 0"):
        Mailbox("tests", Turn(), Owner(), 0)
