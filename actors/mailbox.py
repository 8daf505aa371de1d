"""A bounded mailbox: how actors talk.

Its names are those of trio's memory channels. Unlike a channel it has exactly one reader, which does not wait for
messages: the mailbox posts it to the turn when the first one comes, and the reader takes in all that there is at once.

The bound is a promise between actors: an instance never has more batches coming than it has credits, say. So a full
mailbox refuses loudly. A mailbox of requests has no bound of its own: each request in it holds a share of the server's
budget, or belongs to a request that does.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

from .turn import Recipient, Turn

T = TypeVar("T")


class MailboxFullError(trio.WouldBlock):
    """`Mailbox.send_nowait` found no room."""


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """Messages waiting, the most that ever waited, and the bound."""

    used: int
    peak: int
    bound: float


class Mailbox(Generic[T]):
    """A first-in, first-out queue of messages to one recipient.

    Args:
        name: whose mailbox it is, for people.
        owner: whom messages are for.
        bound: most messages that may wait in it.
    """

    __slots__ = ("_messages", "_owner", "_peak", "_turn", "bound", "name")

    def __init__(self, name: str, turn: Turn, owner: Recipient, bound: float = math.inf) -> None:
        if bound < 1:
            raise ValueError(f"a mailbox holds at least one message, not {bound}")
        self.name = name
        self.bound = bound
        self._turn = turn
        self._owner = owner
        self._messages: deque[T] = deque()
        self._peak = 0

    def send_nowait(self, message: T) -> None:
        """Leave a message, to be received in this turn.

        Raises:
            MailboxFullError: there is no room.
        """
        messages = self._messages
        used = len(messages)
        if used >= self.bound:
            raise MailboxFullError(f"the mailbox of {self.name} holds its limit of {self.bound} messages")
        messages.append(message)
        if used >= self._peak:
            self._peak = used + 1
        if not self._owner.posted:
            self._turn.post(self._owner)

    def receive_all(self) -> deque[T]:
        """Everything in the mailbox, oldest first; possibly nothing."""
        messages, self._messages = self._messages, deque()
        return messages

    def statistics(self) -> MailboxStatistics:
        return MailboxStatistics(len(self._messages), self._peak, self.bound)

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"<Mailbox of {self.name}: {len(self._messages)}/{self.bound}>"
