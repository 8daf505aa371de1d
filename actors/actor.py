"""The actor: a mailbox, a decision, a deadline, and a task under its supervisor.

Rules:
 1. An actor owns its state alone. Others leave messages in its mailbox; in its turn it receives them, oldest first, and
    then acts once, however many there were.
 2. `receive` and `act` are synchronous. What waits (loading, closing) is for the actor's own task.
 3. The task is for supervision and for deadlines. It sleeps while the actor works: turns do that. When `deadline_s` has
    come, the actor takes a turn without a message. A deadline that is put off costs nothing: the task wakes at the
    earlier one, and looks again.
 4. What `receive` or `act` raises ends the actor. It takes in no more mail, and its task raises the error to its
    supervisor.
 5. The supervisor buries an actor that has ended, of that or of something else, and fails what it held, its mail
    included (`undelivered`). What still comes after that is given to `return_mail`.

States:

    ALIVE ─ finish ▶ FINISHED: run returns
    ALIVE ─ receive or act raises ▶ FAILED: run raises it
    any ─ end ▶ BURIED
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from typing import Generic, TypeVar

import trio

from .mailbox import Mailbox
from .turn import Recipient, Turn

M = TypeVar("M")


class Actor(Recipient, Generic[M]):
    """What all actors have in common.

    Args:
        name: for people.
        bound: of the mailbox; see there.

    Attributes:
        deadline_s: when to take a turn without a message, in seconds of the event loop's clock; for `act` to set.
    """

    def __init__(self, name: str, turn: Turn, bound: float = math.inf) -> None:
        super().__init__()
        self.mailbox: Mailbox[M] = Mailbox(name, turn, self, bound)
        self.deadline_s = math.inf
        self._turn = turn
        self._mail: deque[M] = deque()  # received, and not dealt with
        self._timer: trio.CancelScope | None = None
        self._timer_s = math.inf
        self._task: trio.lowlevel.Task | None = None
        self._failure: Exception | None = None
        self._alive = True
        self._buried = False
        self._finished = False

    @property
    def alive(self) -> bool:
        return self._alive

    @property
    def failed(self) -> bool:
        """It has ended by rule 4."""
        return self._failure is not None

    @abstractmethod
    def receive(self, message: M) -> None:
        """Take a message in."""

    def act(self) -> None:
        """Do what follows from the messages received, or from the deadline."""

    def tell(self, message: M) -> None:
        """Send it a message from a task: it has received that when this returns, unless a turn is open."""
        with self._turn:
            self.mailbox.send_nowait(message)

    def take_turn(self) -> None:
        if self._alive:
            mail = self._mail = self.mailbox.receive_all()
            while mail:
                self.receive(mail[0])
                mail.popleft()  # it counts as undelivered until now
            self.act()
            if self.deadline_s < self._timer_s and self._timer is not None:
                self._timer_s = self._timer.deadline = self.deadline_s
        elif self._buried:
            self.return_mail()

    def fail(self, error: Exception) -> None:
        if self._alive:
            self._alive = False
            self._failure = error
            self._wake()

    def end(self) -> None:
        """Be buried (rule 5)."""
        self._alive = False
        self._buried = True

    def undelivered(self) -> list[M]:
        """The mail of an actor that has ended; it is the caller's from now on."""
        mail = [*self._mail, *self.mailbox.receive_all()]
        self._mail.clear()
        return mail

    def return_mail(self) -> None:
        """Do what is to be done about the mail of an actor that is buried; nothing, unless it holds something."""
        self.undelivered()

    def finish(self) -> None:
        """Let `run` return."""
        self._finished = True
        self._wake()

    async def run(self) -> None:
        """Wait for deadlines until finished or cancelled.

        Raises:
            Exception: rule 4.
        """
        while self._alive and not self._finished:
            self._timer_s = self.deadline_s
            with trio.CancelScope(deadline=self.deadline_s) as self._timer:
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._stop_sleeping)
            expired, self._timer = self._timer.cancelled_caught, None
            if expired:
                with self._turn:
                    self._turn.post(self)
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _stop_sleeping(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
