"""The turn: how messages are delivered.

Whatever wakes the event loop (sockets that can be read, a thread that is done, a deadline) opens the turn, leaves
messages, and closes it. Then mail is delivered until there is none, and every connection that has something to write is
flushed once. So a small request goes from socket to socket in one task, and the order of everything follows from the
order of posting.

Rules:
 1. A *recipient* (an actor, a reply) is posted when it has something to take in. It is on the list once, however often
    it is posted, and takes its turn in the order of posting.
 2. Posting is for the event loop's thread. Inside an open turn it is delivered at the end of that turn; outside, the
    turn's own task is woken and delivers in the loop's next pass, so that what several tasks post is decided together.
 3. Other threads have a function called in a turn (`call_from_thread`). All that they asked for until then is one
    turn.
 4. Nothing in a turn waits, and no turn is without end: after `MOST_DELIVERIES` the rest waits for the next turn. So
    does a recipient that is deferred. The next turn begins with the next wake-up, at the latest in the loop's next
    pass.
 5. What a recipient raises concerns that recipient alone: its `fail` is called, and the turn goes on.

States:

    IDLE ─ open ▶ OPEN ─ the outermost block ends ▶ DELIVERING ─ nothing left, or rule 4 ▶ IDLE
    IDLE ─ post ▶ DUE ─ the loop's next pass, or an earlier wake-up ▶ DELIVERING
    OPEN, DELIVERING: opening once more changes nothing, what is posted is delivered in this turn
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import trio

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

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """`take_turn` has raised this. Must not raise."""


class Flushable(Protocol):
    """A connection, once given to `flush_later`, is not given again before it was flushed."""

    def flush(self) -> None:
        """Write what there is. Does not wait, and does not raise."""
        ...


@dataclass(frozen=True, slots=True)
class TurnStatistics:
    """`turns` that were run, and what waits for the next one: recipients, and calls from threads."""

    turns: int
    waiting: int
    calls: int


class Turn:
    """The one of a server. Opened by ``with turn:``, in whose block nothing may wait.

    Attributes:
        number: of the turn that is open, or was last.
    """

    __slots__ = ("_calls", "_depth", "_next", "_scope", "_task", "_token", "_unflushed", "_waiting", "number")

    def __init__(self) -> None:
        self.number = 0
        self._depth = 0
        self._waiting: deque[Recipient] = deque()
        self._next: dict[Recipient, None] = {}
        self._unflushed: list[Flushable] = []
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._task: trio.lowlevel.Task | None = None
        self._scope = trio.CancelScope()
        self._token = trio.lowlevel.current_trio_token()

    def __enter__(self) -> None:
        if not self._depth:
            self.number += 1
            if self._next:
                self._take_deferred()
        self._depth += 1

    def __exit__(self, *_error: object) -> None:
        if self._depth > 1:
            self._depth -= 1
            return
        try:
            self._deliver()
        finally:
            self._depth = 0
            if self._next or self._waiting:
                self._wake()

    def post(self, recipient: Recipient) -> None:
        """Have a recipient take its turn."""
        if not recipient.posted:
            recipient.posted = True
            self._waiting.append(recipient)
            if not self._depth:
                self._wake()

    def defer(self, recipient: Recipient) -> None:
        """Have a recipient take part in the next turn, whatever it does in this one."""
        self._next[recipient] = None
        if not self._depth:
            self._wake()

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
            self._wake()

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

    def _make_calls(self) -> None:
        calls = self._calls
        with self:
            for _ in range(len(calls)):  # what comes meanwhile has asked to be called itself
                function, arguments = calls.popleft()
                function(*arguments)

    def _take_deferred(self) -> None:
        deferred, self._next = self._next, {}
        for recipient in deferred:
            if not recipient.posted:
                recipient.posted = True
                self._waiting.append(recipient)

    def _deliver(self) -> None:
        waiting = self._waiting
        left = MOST_DELIVERIES
        while (waiting and left) or self._unflushed:
            while waiting and left:
                left -= 1
                recipient = waiting.popleft()
                recipient.posted = False
                try:
                    recipient.take_turn()
                except Exception as error:  # noqa: BLE001 - rule 5: the recipient's supervisor is told
                    recipient.fail(error)
            connections, self._unflushed = self._unflushed, []
            for connection in connections:
                connection.flush()  # which may find out that a client is gone, and post that

    @property
    def _due(self) -> bool:
        return bool(self._waiting or self._next or self._unflushed)

    def _wake(self) -> None:
        task = self._task
        if task is not None:
            self._task = None
            trio.lowlevel.reschedule(task)

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
                    self._task = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
                with self:
                    pass

    def stop(self) -> None:
        """Let `keep_running` return, or not begin."""
        self._scope.cancel()

    def _stop_waiting(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def close(self) -> None:
        """Deliver what is left, now that `keep_running` has ended."""
        self._make_calls()
        for _ in range(_MOST_CLOSING_TURNS):
            if not self._due:
                break
            with self:
                pass

    def statistics(self) -> TurnStatistics:
        return TurnStatistics(self.number, len(self._waiting) + len(self._next), len(self._calls))

    def __repr__(self) -> str:
        state = "open" if self._depth else "due" if self._due else "idle"
        return f"<Turn {self.number}: {state}, {len(self._waiting)} recipients waiting, {len(self._next)} deferred>"
