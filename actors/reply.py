"""The reply: how the answers to a request reach whoever asked.

Rules:
 1. A reply is settled by exactly one final answer. What comes after it is dropped; what never comes is the fault of a
    supervisor, which fails what a dead child held.
 2. There is one reader, in one of three manners: a task that waits for the only answer (`response`), a callback at the
    final answer (`notify`), or a callback at each answer (`notify_each`), which takes them. Callbacks run on the event
    loop, inside the actor that delivers; they must not raise.
 3. When the reader gives up (its task is cancelled, or it calls `cancel`), so does the job: it leaves its queue, or the
    running backend can see that nobody wants the answer.
 4. The request's share of the server-wide budget is given back at the final answer, not when the client goes away:
    until then the job still occupies memory.
 5. A model that answers many times is held back while `WINDOW` answers wait to be taken. A reader of a single answer
    takes none, so only the first two are kept for it: enough to see that it was not the only one.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable
from copy import copy

import trio

from ..engine.answer_window import AnswerWindow
from ..engine.errors import InternalError, TriremeError
from ..engine.job import Job, Outcome
from ..engine.response import InferenceResponse
from .lease import Lease, ModelShare

WINDOW = 64
"""Answers of one request that wait for their reader before the model is held back."""


class Reply:
    """What `InferenceServer.submit` returns.

    Args:
        holder: gets the request's share of the budget back at the final answer.
        nbytes: that share, in bytes; a lease knows for itself.
        many: the model may answer any number of times.

    Attributes:
        final: the final answer is here.
        window: holds the model back; None for a model that answers once.
    """

    __slots__ = ("_answers", "_cancel", "_count", "_each", "_holder", "_job", "_listener", "_nbytes", "final", "window")

    def __init__(self, holder: ModelShare | Lease, nbytes: int, *, many: bool = False) -> None:
        self.final = False
        self.window = AnswerWindow(WINDOW, threading.get_ident()) if many else None
        self._holder = holder
        self._nbytes = nbytes
        self._job: Job | None = None
        self._cancel: Callable[[Job], None] | None = None
        self._answers: list[tuple[Outcome, bool]] = []
        self._count = 0
        self._listener: Callable[[Reply], None] | None = None
        self._each = False

    def attach(self, job: Job, cancel: Callable[[Job], None]) -> None:
        """Tell the reply whose it is: giving up calls ``cancel(job)``."""
        if self.final:
            return  # answered at the door
        self._job = job
        self._cancel = cancel
        job.window = self.window

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        """An answer has come (on the event loop). See `engine.job.Reply`."""
        if self.final:
            return False
        if outcome is not None:
            self._count += 1
        if self._each or (outcome is not None and self._count <= 2):
            self._answers.append((outcome, final))
        elif self.window is not None:
            self.window.leave(1)
        if final:
            self.final = True
            if self.window is not None:
                self.window.open_up()
            self._job = None  # the job holds the reply: a cycle left here would be work for the garbage collector
            self._holder.release(self._nbytes)
        listener = self._listener
        if listener is not None and (final or self._each):
            if final:
                self._listener = None
            listener(self)
        return final

    # A reader of one answer.

    def notify(self, callback: Callable[[Reply], None]) -> None:
        """Have `callback` called once, at the final answer; at once if it is here."""
        if self.final:
            callback(self)
        else:
            self._listener = callback

    def answer(self) -> InferenceResponse:
        """The answer of a model that gives exactly one, once the reply is `final`.

        Raises:
            TriremeError: the request failed; or the model gave no answer, or several.
        """
        if self._count != 1:
            raise InternalError(f"expected a single response, got {self._count}")
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
        if not self.final:
            await self._change()
        return self.answer()

    # A reader of many.

    def notify_each(self, callback: Callable[[Reply], None]) -> None:
        """Have `callback` called whenever there is something to `take`; at once if there is."""
        self._each = True
        self._listener = callback
        if self._answers or self.final:
            callback(self)

    @property
    def newest(self) -> Outcome:
        """The newest of the answers that have not been taken; None if there is none, or it has no response."""
        return self._answers[-1][0] if self._answers else None

    def take(self) -> list[tuple[Outcome, bool]]:
        """The answers since the last call, each with whether it is the final one; None is a final answer without a
        response. Taking makes room for more."""
        answers = self._answers
        self._answers = []
        if self.window is not None:
            self.window.leave(len(answers))
        return answers

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
        """Nobody wants the answers any more."""
        if self.window is not None:
            self.window.open_up()
        if self._job is not None and self._cancel is not None:
            self._cancel(self._job)

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
