"""The reply: how the answers to a request reach their reader.

Rules:
 1. A reply is settled by exactly one final answer. What comes after it is dropped; what never comes is the fault of a
    supervisor, which fails what a dead child held.
 2. There is one reader, in one of three manners: a task that waits for the only answer (`response`), a callback at the
    final answer (`notify`), or a callback at each answer (`notify_each`), which takes them. Callbacks are made in the
    reply's own turn, so what they raise does not get into the actor that answers; it is logged.
 3. When the reader gives up (its task is cancelled, or it calls `cancel`), so does the job: it leaves its queue, or the
    running backend can see that the answer is not wanted.
 4. The request's share of the server-wide budget is given back at the final answer, not when the client goes away:
    until then the job still occupies memory.
 5. A job is accepted, or refused: then its only answer is why (`accepted` tells the two apart).
 6. A model that answers many times is held back while `ANSWER_WINDOW` answers wait to be taken. A reader of a single
    answer takes none, so only the first two are kept for it: enough to see that it was not the only one. All are kept
    as long as it is not known who reads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncGenerator, Callable
from copy import copy
from functools import partial
from typing import Protocol

import trio

from ..engine.errors import InternalError, TriremeError
from ..engine.instances.answer_window import AnswerWindow
from ..engine.job import Job, Outcome
from ..engine.request import InferenceResponse
from .actor import Recipient, Turn
from .messages import Cancel

logger = logging.getLogger("trireme.server")

ANSWER_WINDOW = 64
"""Answers of one request that wait for their reader before the model is held back."""


class HeldPlace(Protocol):
    """Of what a request holds of the server: its share of the budget, and what counts with it."""

    def release(self, nbytes: int, /) -> None:
        """The request has its final answer."""


class Reply(Recipient):
    """What `InferenceServer.admit` returns.

    Args:
        turn: in which the reader is called.
        holder: gets the request's share of the budget back at the final answer.
        nbytes: that share, in bytes; a lease knows for itself.
        many: the model may answer any number of times.

    Attributes:
        final: the final answer is here.
        accepted: and the job was accepted before; known from the final answer on.
        window: holds the model back; None for a model that answers once.
    """

    __slots__ = (
        "_answers",
        "_cancel",
        "_dropped",
        "_each",
        "_holder",
        "_job",
        "_listener",
        "_nbytes",
        "_seen",
        "_turn",
        "accepted",
        "final",
        "window",
    )

    def __init__(self, turn: Turn, holder: HeldPlace, nbytes: int, window: int) -> None:
        self.posted = False
        self.final = False
        self.accepted = False
        self.window = AnswerWindow(window, threading.get_ident()) if window else None
        self._turn = turn
        self._holder = holder
        self._nbytes = nbytes
        self._job: Job | None = None
        self._cancel: Callable[[Cancel], None] | None = None
        self._answers: list[tuple[Outcome, bool]] = []
        self._dropped = 0  # answers that were not kept
        self._seen = 0  # by `newest`
        self._listener: Callable[[Reply], None] | None = None
        self._each = window > 0  # the reader wants all; until it is known that it wants one

    def attach(self, job: Job, cancel: Callable[[Cancel], None]) -> None:
        """Tell the reply whose it is, before the job is handed in: giving up calls ``cancel(Cancel(job))``."""
        self._job = job
        self._cancel = cancel
        job.window = self.window

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        """An answer has come (on the event loop). See `engine.job.ReplyTarget`."""
        if self.final:
            return False
        if self._each or (outcome is not None and len(self._answers) < 2):
            self._answers.append((outcome, final))
        else:
            self._dropped += outcome is not None
            if self.window is not None:
                self.window.leave(1)
        if final:
            self.final = True
            if self.window is not None:
                self.window.open_up()
            if self._job is not None:
                self.accepted = self._job.accepted
                self._job = None  # the job holds the reply: a cycle left here would be work for the garbage collector
            self._holder.release(self._nbytes)
        if self._listener is not None and (final or self._each):
            self._turn.post(self)
        return final

    def take_turn(self) -> None:
        listener = self._listener
        if listener is not None:
            if self.final:
                self._listener = None
            listener(self)

    def fail(self, error: Exception) -> None:
        logger.error("unexpected failure of who reads a reply", exc_info=error)

    async def admitted(self) -> None:
        """Wait until the job is accepted. Cancelling this cancels the request.

        Raises:
            TriremeError: it is refused.
        """
        if self._job is not None and not self._job.accepted:
            self._job.when_accepted(partial(self._turn.post, self))
            await self._change()
        if self.final and not self.accepted:
            self.answer()

    # A reader of one answer.

    def notify(self, callback: Callable[[Reply], None]) -> None:
        """Have `callback` called once, at the final answer; in this turn if it is here."""
        self._listener = callback
        if self._each:
            self._keep_two()
        if self.final:
            self._turn.post(self)

    def _keep_two(self) -> None:
        """The reader wants one answer (rule 6)."""
        self._each = False
        answers = self._answers
        given = [answer for answer in answers if answer[0] is not None]
        self._answers = given[:2]
        self._dropped += len(given[2:])
        if self.window is not None:
            self.window.leave(len(answers) - len(self._answers))

    def answer(self) -> InferenceResponse:
        """The answer of a model that gives exactly one, once the reply is `final`.

        Raises:
            TriremeError: the request failed; or the model gave no answer, or several.
        """
        if len(self._answers) != 1:
            raise InternalError(f"expected a single response, got {len(self._answers) + self._dropped}")
        answer = self._answers[0][0]
        if isinstance(answer, TriremeError):
            # It is kept, and requests of one batch share it. What is raised comes to hold all frames that it passes,
            # and with them the instance that has died, and its memory.
            raise copy(answer)
        assert answer is not None
        return answer

    async def response(self) -> InferenceResponse:
        """Wait for the answer of a model that gives exactly one. Cancelling this cancels the request.

        Raises:
            TriremeError: see `answer`.
        """
        if self._each:
            self._keep_two()
        if not self.final:
            await self._change()
        return self.answer()

    # A reader of many.

    def notify_each(self, callback: Callable[[Reply], None]) -> None:
        """Have `callback` called whenever there is something to `take`; in this turn if there is."""
        self._each = True
        self._listener = callback
        if self._answers or self.final:
            self._turn.post(self)

    def newest(self) -> list[Outcome]:
        """The answers that have come since the last call, and have not been taken."""
        answers = [outcome for outcome, _ in self._answers[self._seen :]]
        self._seen = len(self._answers)
        return answers

    def take(self) -> list[tuple[Outcome, bool]]:
        """The answers since the last call, each with whether it is the final one; None is a final answer without a
        response. Taking makes room for more."""
        answers = self._answers
        self._answers = []
        self._seen = 0
        if self.window is not None:
            self.window.leave(len(answers))
        return answers

    def fetch(self) -> list[tuple[Outcome, bool]]:
        """`take`, for who passes them on: there is room for more only when the client has `taken` them."""
        answers, self._answers = self._answers, []
        self._seen = 0
        return answers

    def taken(self, count: int) -> None:
        """So many answers that were fetched have been taken."""
        if self.window is not None:
            self.window.leave(count)

    def when_accepted(self, call: Callable[[], None]) -> None:
        """Have something called when the job is accepted; now, if it is. Not if it is final: `accepted` tells then."""
        if self._job is not None:
            if self._job.accepted:
                call()
            else:
                self._job.when_accepted(call)

    async def responses(self) -> AsyncGenerator[InferenceResponse, None]:
        """The responses, as they come. Cancelling this, or closing it before the end, cancels the request.

        Raises:
            TriremeError: the request failed.
        """
        self._each = True
        try:
            while True:
                for outcome, final in self.take():
                    if isinstance(outcome, TriremeError):
                        raise copy(outcome)  # see `answer`
                    if outcome is not None:
                        yield outcome
                    if final:
                        return
                if not self._answers:  # more may have come while the reader was busy with these
                    await self._change()
        finally:
            if not self.final:
                self.cancel()

    def cancel(self) -> None:
        """The answers are not wanted any more."""
        if self.window is not None:
            self.window.open_up()
        if self._job is not None and self._cancel is not None:
            self._cancel(Cancel(self._job))

    async def _change(self) -> None:
        """Wait for what the listener is told of."""
        assert self._listener is None, "two tasks wait for one reply"
        task = trio.lowlevel.current_task()

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._listener = None
            self.cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        def wake(_reply: Reply) -> None:
            self._listener = None
            trio.lowlevel.reschedule(task)

        self._listener = wake
        await trio.lowlevel.wait_task_rescheduled(give_up)

    def __repr__(self) -> str:
        state = "final" if self.final else "listened to" if self._listener is not None else "open"
        return f"<Reply {state}, {len(self._answers)} answers>"
