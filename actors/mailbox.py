"""A bounded mailbox: how actors talk.

Why not ``trio.open_memory_channel``? An actor here is woken once for all that has arrived: a scheduler that finds forty
messages decides once. `Mailbox.get_all` hands over everything in one go, which a channel cannot, and costs a third of a
channel's round trip. In exchange there is exactly one reader, the actor that owns the box.

The bound is a promise about the protocol between two actors (an instance never has more batches coming than it has
credits), so `put_nowait` on a full box is refused loudly; who can wait uses `put`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class MailboxFullError(Exception):
    """`Mailbox.put_nowait` found no room."""


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """Messages waiting, the most that ever waited, the bound, and writers waiting for room."""

    used: int
    peak: int
    bound: int
    writers_waiting: int


class Mailbox(Generic[T]):
    """A first-in, first-out queue of at most `bound` messages with one reader.

    Args:
        name: whose mailbox it is, for people.
        bound: most messages that may wait in it.
    """

    __slots__ = ("_messages", "_peak", "_reader", "_writers", "bound", "name")

    def __init__(self, name: str, bound: int) -> None:
        if bound < 1:
            raise ValueError(f"a mailbox holds at least one message, not {bound}")
        self.name = name
        self.bound = bound
        self._messages: deque[T] = deque()
        self._peak = 0
        self._reader: trio.lowlevel.Task | None = None
        self._writers: trio.lowlevel.ParkingLot | None = None  # made when the first one has to wait

    def put_nowait(self, message: T) -> None:
        """Leave a message.

        Raises:
            MailboxFullError: there is no room.
        """
        messages = self._messages
        if len(messages) >= self.bound:
            raise MailboxFullError(f"the mailbox of {self.name} holds its limit of {self.bound} messages")
        messages.append(message)
        if len(messages) > self._peak:
            self._peak = len(messages)
        reader = self._reader
        if reader is not None:
            self._reader = None
            trio.lowlevel.reschedule(reader)

    async def put(self, message: T) -> None:
        """Leave a message, waiting for room if there is none."""
        while len(self._messages) >= self.bound:
            if self._writers is None:
                self._writers = trio.lowlevel.ParkingLot()
            await self._writers.park()
        self.put_nowait(message)

    async def get_all(self) -> list[T]:
        """Everything in the box, oldest first; waits while it is empty. Never an empty list."""
        while not self._messages:
            assert self._reader is None, f"two readers on the mailbox of {self.name}"
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_reading)
        return self.drain()

    def drain(self) -> list[T]:
        """Everything in the box, oldest first, without waiting; possibly nothing."""
        messages = list(self._messages)
        self._messages.clear()
        if self._writers is not None:
            self._writers.unpark_all()
        return messages

    def _stop_reading(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    def statistics(self) -> MailboxStatistics:
        return MailboxStatistics(len(self._messages), self._peak, self.bound, len(self._writers or ()))

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"<Mailbox of {self.name}: {len(self._messages)}/{self.bound}>"
