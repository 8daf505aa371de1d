"""The actor, its mailbox, and the turn that delivers messages.

Whatever wakes the event loop (sockets that can be read, a thread that is done, a deadline) opens the turn, leaves
messages, and closes it. Then mail is delivered until there is none, and every connection that has something to write is
flushed once. So a small request goes from socket to socket in one task, and the order of everything follows from the
order of posting. What its client need not wait for, such as statistics, comes at the very end of the turn.

Rules of turns:
 1. A *recipient* (an actor, a reply) is posted when it has something to take in. It is on the list once, however often
    it is posted, and takes its turn in the order of posting.
 2. Posting is for the event loop's thread. Inside an open turn it is delivered at the end of that turn; outside, the
    turn's own task is woken and delivers in the loop's next pass, so that what several tasks post is decided together.
 3. Other threads have a function called in a turn (`call_from_thread`). All that they asked for until then is one
    turn.
 4. Nothing in a turn waits, and no turn is without end: after `MOST_DELIVERIES` the rest waits for the next turn. So
    does a recipient that is deferred, which hears of it when that turn begins (`resume`). The next turn begins with the
    next wake-up, at the latest in the loop's next pass.
 5. What a recipient raises concerns that recipient alone: its `fail` is called, and the turn goes on. A
    KeyboardInterrupt is no recipient's: a turn is protected from it, and trio raises it when the turn is over.

    IDLE ─ open ▶ OPEN ─ the outermost block ends ▶ DELIVERING ─ nothing left, or rule 4 ▶ IDLE
    IDLE ─ post ▶ DUE ─ the loop's next pass, or an earlier wake-up ▶ DELIVERING
    OPEN, DELIVERING: opening once more changes nothing, what is posted is delivered in this turn

Rules of actors:
 6. An actor owns its state alone. Others leave messages in its mailbox; in its turn it receives them, oldest first, and
    then acts once, however many there were.
 7. `receive` and `act` are synchronous. What waits (loading, closing) is for the actor's own task.
 8. The task is for supervision and for deadlines. It sleeps while the actor works: turns do that. When `deadline_s` has
    come, the actor takes a turn without a message. A deadline that is put off costs nothing: the task, or the turn's
    timer, wakes at the earlier one, and looks again.
 9. What `receive` or `act` raises ends the actor. It takes in no more mail, and its task raises the error to its
    supervisor.
10. The supervisor buries an actor that has ended, of that or of something else, and fails what it held, its mail
    included (`undelivered`). What still comes after that is given to `return_mail`.

    ALIVE ─ finish ▶ FINISHED: run returns
    ALIVE ─ receive or act raises ▶ FAILED: run raises it
    any ─ end ▶ BURIED
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import trio

from ..engine.clock import Timers, weakly

M = TypeVar("M")

MOST_DELIVERIES = 1_024
"""Of one turn (rule 4)."""

_MOST_CLOSING_TURNS = 1_000


class Recipient(ABC):
    """Who takes part in turns.

    Attributes:
        posted: it is on the turn's list. The turn's own.
    """

    __slots__ = ("posted",)

    def __init__(self) -> None:
        self.posted = False

    @abstractmethod
    def take_turn(self) -> None:
        """Take in all mail, then decide once. Does not wait."""

    def resume(self) -> None:
        """It was deferred until the turn that begins now, in which it is posted."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """`take_turn` or `resume` has raised this. Must not raise."""


class Flushable(Protocol):
    """A connection, once given to `flush_later`, is not given again before it was flushed."""

    def flush(self) -> None:
        """Write what there is. Does not wait, and does not raise."""
        ...


class Turn:
    """The one of a server. Opened by ``with turn:``, in whose block nothing may wait.

    Attributes:
        timers: what wakes actors at their deadlines; None if each does so in its own task.
        number: of the turn that is open, or was last.
        turned_away_in: the number of the last one in which a request was refused because its model's queue is full, and
            would have been by any later one, too.
    """

    __slots__ = (
        "_afterwards",
        "_calls",
        "_depth",
        "_idle",
        "_next",
        "_scope",
        "_token",
        "_unflushed",
        "_waiting",
        "number",
        "timers",
        "turned_away_in",
    )

    def __init__(self, timers: Timers | None = None) -> None:
        self.timers = timers
        self.number = 0
        self.turned_away_in = -1
        self._depth = 0
        self._waiting: deque[Recipient] = deque()
        self._next: dict[Recipient, None] = {}
        self._unflushed: list[Flushable] = []
        self._afterwards: list[tuple[Recipient, Callable[[], object]]] = []
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._idle = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        self._token = trio.lowlevel.current_trio_token()

    @trio.lowlevel.enable_ki_protection
    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self.number += 1
            if self._next:
                self._resume()

    @trio.lowlevel.enable_ki_protection
    def __exit__(self, *_error: object) -> None:
        if self._depth > 1:
            self._depth -= 1
            return
        try:
            self._deliver()
        finally:
            self._depth = 0
            if self._next or self._waiting:
                self._idle.unpark_all()

    def _resume(self) -> None:
        deferred, self._next = self._next, {}
        for recipient in deferred:
            try:
                recipient.resume()
            except Exception as error:  # noqa: BLE001 - rule 5
                recipient.fail(error)
            self.post(recipient)

    def post(self, recipient: Recipient) -> None:
        """Have a recipient take its turn."""
        if not recipient.posted:
            recipient.posted = True
            self._waiting.append(recipient)
            if not self._depth:
                self._idle.unpark_all()

    def defer(self, recipient: Recipient) -> None:
        """Have a recipient take part in the next turn, whatever it does in this one."""
        self._next[recipient] = None
        if not self._depth:
            self._idle.unpark_all()

    def deliver_ahead(self, recipient: Recipient) -> None:
        """Have a recipient take its turn now. For one whose answer decides what another has to say in its own turn."""
        try:
            recipient.take_turn()
        except Exception as error:  # noqa: BLE001 - rule 5
            recipient.fail(error)

    def flush_later(self, connection: Flushable) -> None:
        """Have a connection flushed at the end of the turn."""
        self._unflushed.append(connection)
        if not self._depth:
            self._idle.unpark_all()

    def afterwards(self, recipient: Recipient, function: Callable[[], object]) -> None:
        """Have a recipient's function called at the end of the turn, when all was delivered and flushed; what the
        function raises concerns it (rule 5)."""
        self._afterwards.append((recipient, function))
        if not self._depth:
            self._idle.unpark_all()

    def call_from_thread(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have a function called in a turn. From any thread.

        Args:
            function: must not raise.

        Raises:
            trio.RunFinishedError: the event loop has ended.
        """
        self._calls.append((function, arguments))
        try:
            self._token.run_sync_soon(self._make_calls, idempotent=True)
        except trio.RunFinishedError:
            self._calls.clear()  # or what they hold would be kept, and nothing makes them any more
            raise

    @property
    def called(self) -> bool:
        """A thread has asked for a call that was not made yet."""
        return bool(self._calls)

    def _make_calls(self) -> None:
        calls = self._calls
        with self:
            for _ in range(len(calls)):  # what comes meanwhile has asked to be called itself
                function, arguments = calls.popleft()
                function(*arguments)

    def _deliver(self) -> None:
        waiting = self._waiting
        left = MOST_DELIVERIES
        while True:
            while waiting and left:
                left -= 1
                recipient = waiting.popleft()
                recipient.posted = False
                try:
                    recipient.take_turn()
                except Exception as error:  # noqa: BLE001 - rule 5: the recipient's supervisor is told
                    recipient.fail(error)
            connections = self._unflushed
            if not connections:
                if not self._afterwards:
                    return
                self._finish()
                continue
            self._unflushed = []
            for connection in connections:
                connection.flush()  # which may find out that a client is gone, and post that

    def _finish(self) -> None:
        afterwards, self._afterwards = self._afterwards, []
        for recipient, function in afterwards:
            try:
                function()
            except Exception as error:  # noqa: BLE001 - rule 5
                recipient.fail(error)

    @property
    def _due(self) -> bool:
        return bool(self._waiting or self._next or self._unflushed or self._afterwards)

    async def keep_running(self, shielded: bool = False) -> None:
        """Run turns for those who post outside of any (rule 2), until `stop` or cancelled.

        Args:
            shielded: only `stop` ends this.
        """
        self._scope.shield = shielded
        with self._scope:
            while True:
                if self._due:
                    await trio.lowlevel.checkpoint()
                else:
                    await self._idle.park()
                with self:
                    pass

    def stop(self) -> None:
        """Let `keep_running` return, or not begin."""
        self._scope.cancel()

    def close(self) -> None:
        """Deliver what is left, now that `keep_running` has ended."""
        self._make_calls()
        for _ in range(_MOST_CLOSING_TURNS):
            if not self._due:
                break
            with self:
                pass

    def __repr__(self) -> str:
        state = "open" if self._depth else "due" if self._due else "idle"
        return f"<Turn {self.number}: {state}, {len(self._waiting)} recipients waiting, {len(self._next)} deferred>"


class MailboxFullError(trio.WouldBlock):
    """`Mailbox.send_nowait` found no room."""


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """Messages waiting, and how many there may be; as `trio.MemoryChannelStatistics` calls them."""

    current_buffer_used: int
    max_buffer_size: float


class Mailbox(Generic[M]):
    """A first-in, first-out queue of messages to one recipient, with the names of trio's memory channels.

    Its reader does not wait for messages: it is posted to the turn when the first one comes, and takes in all that is
    there. The bound is a promise between actors (an instance never has more batches coming than it has credits,
    say), so a full mailbox refuses loudly. A mailbox of requests has no bound of its own: each request in it holds a
    share of the server's budget, or belongs to a request that does.

    Args:
        name: whose mailbox it is, for people.
        owner: whom messages are for.
        bound: most messages that may wait in it.

    Attributes:
        messages: those that wait, oldest first; for the owner alone.
    """

    __slots__ = ("_owner", "_turn", "bound", "messages", "name")

    def __init__(self, name: str, turn: Turn, owner: Recipient, bound: float = math.inf) -> None:
        if bound < 1:
            raise ValueError(f"a mailbox holds at least one message, not {bound}")
        self.name = name
        self.bound = bound
        self._turn = turn
        self._owner = owner
        self.messages: deque[M] = deque()

    def send_nowait(self, message: M) -> None:
        """Leave a message, to be received in this turn.

        Raises:
            MailboxFullError: there is no room.
        """
        messages = self.messages
        if not messages:  # else it has been posted
            self._turn.post(self._owner)
        elif len(messages) >= self.bound:
            raise MailboxFullError(f"the mailbox of {self.name} holds its limit of {self.bound} messages")
        messages.append(message)

    def receive_all(self) -> list[M]:
        """Everything in the mailbox, oldest first; possibly nothing."""
        messages = list(self.messages)
        self.messages.clear()
        return messages

    def statistics(self) -> MailboxStatistics:
        return MailboxStatistics(len(self.messages), self.bound)

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        return f"<Mailbox of {self.name}: {len(self.messages)}/{self.bound}>"


class Actor(Recipient, Generic[M]):
    """What all actors have in common.

    Args:
        name: for people.
        bound: of the mailbox; see there.

    Attributes:
        alive: it takes in mail.
        failure: what it has ended of by rule 9.
    """

    def __init__(self, name: str, turn: Turn, bound: float = math.inf) -> None:
        super().__init__()
        self.mailbox: Mailbox[M] = Mailbox(name, turn, self, bound)
        self._turn = turn
        self._mail: deque[M] = deque()  # taken out of the mailbox, and not received yet
        self._deadline_s = math.inf
        self._timer: trio.CancelScope | None = None
        self._timer_s = math.inf
        self._running = False
        self._asleep = trio.lowlevel.ParkingLot()
        self.failure: Exception | None = None
        self.alive = True
        self._buried = False
        self._finished = False

    @abstractmethod
    def receive(self, message: M) -> None:
        """Take a message in."""

    def act(self) -> None:
        """Do what follows from the messages received, or from the deadline."""

    def tell(self, message: M) -> None:
        """Send it a message from a task: it has received that when this returns, unless a turn is open."""
        with self._turn:
            self.mailbox.send_nowait(message)

    @property
    def deadline_s(self) -> float:
        """When to take a turn without a message, in seconds of the event loop's clock; for `act` to set."""
        return self._deadline_s

    @deadline_s.setter
    def deadline_s(self, when_s: float) -> None:
        self._deadline_s = when_s
        if when_s < self._timer_s and self._running:
            self._set_timer(when_s)

    def _set_timer(self, when_s: float) -> None:
        self._timer_s = when_s
        timers = self._turn.timers
        if timers is not None:
            timers.call_at(when_s, weakly(self._timer_is_over))
        elif self._timer is not None:
            self._timer.deadline = when_s

    def _timer_is_over(self) -> None:
        """The turn's timers call. An earlier call may have been asked for meanwhile, and have come."""
        now = trio.current_time()
        if not self._running or now < self._timer_s:
            return
        self._timer_s = math.inf
        if self._deadline_s <= now:
            with self._turn:
                self._turn.post(self)
        if self._deadline_s < self._timer_s:
            self._set_timer(self._deadline_s)

    def take_turn(self) -> None:
        if self.alive:
            mailbox, spent = self.mailbox, self._mail
            mail = self._mail = mailbox.messages
            mailbox.messages = spent  # what comes from now on is for the next turn
            while mail:
                self.receive(mail[0])
                mail.popleft()  # it counts as undelivered until now
            self.act()
        elif self._buried:
            self.return_mail()

    def fail(self, error: Exception) -> None:
        if self.alive:
            self.alive = False
            self.failure = error
            self._asleep.unpark_all()

    def end(self) -> None:
        """Be buried (rule 10)."""
        self.alive = False
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
        self._asleep.unpark_all()

    async def run(self) -> None:
        """Wait for deadlines until finished or cancelled.

        Raises:
            Exception: rule 9.
        """
        self._running = True
        try:
            if self._turn.timers is None:
                await self._keep_deadlines()
            else:
                if self._deadline_s < math.inf:
                    self._set_timer(self._deadline_s)
                while self.alive and not self._finished:
                    await self._asleep.park()
        finally:
            self._running = False
        if self.failure is not None:
            raise self.failure

    async def _keep_deadlines(self) -> None:
        """Without timers: its own task sleeps until the deadline."""
        while self.alive and not self._finished:
            self._timer_s = self._deadline_s
            with trio.CancelScope(deadline=self._deadline_s) as self._timer:
                await self._asleep.park()
            expired, self._timer = self._timer.cancelled_caught, None
            if expired:
                with self._turn:
                    self._turn.post(self)
