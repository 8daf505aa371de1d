"""The one-shot reply: how the answer to a request reaches whoever asked.

Rules:
 1. A reply is settled by exactly one final answer. What comes after it is dropped; what never comes is the fault of a
    supervisor, which fails what a dead child held.
 2. One task waits for it. Cancelling that task cancels the job: it leaves its queue, or the running backend can see
    that nobody wants the answer.
 3. The request's share of the server-wide budget is given back at the final answer, not when the client goes away:
    until then the job still occupies memory.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ..engine.errors import InternalError, TriremeError
from ..engine.job import Job, Outcome
from ..engine.response import InferenceResponse
from .budget import InflightBudget


class Reply:
    """What `InferenceServer.submit` returns.

    Args:
        budget: gets the request's share back at the final answer.
        nbytes: that share, in bytes.
    """

    __slots__ = ("_answers", "_budget", "_cancel", "_job", "_nbytes", "_waiter", "final")

    def __init__(self, budget: InflightBudget, nbytes: int) -> None:
        self.final = False
        self._budget = budget
        self._nbytes = nbytes
        self._job: Job | None = None
        self._cancel: Callable[[Job], None] | None = None
        self._answers: list[Outcome] = []
        self._waiter: trio.lowlevel.Task | None = None

    def attach(self, job: Job, cancel: Callable[[Job], None]) -> None:
        """Tell the reply whose it is: giving up waiting calls ``cancel(job)``."""
        self._job = job
        self._cancel = cancel

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        """An answer has come (on the event loop). See `engine.job.Reply`."""
        if self.final:
            return False
        if outcome is not None:
            self._answers.append(outcome)
        if not final:
            return False
        self.final = True
        self._job = None  # the job holds the reply: a cycle left here would be work for the garbage collector
        self._budget.release(self._nbytes)
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            trio.lowlevel.reschedule(waiter)
        return True

    async def response(self) -> InferenceResponse:
        """Wait for the answer of a model that gives exactly one.

        Raises:
            TriremeError: the request failed; or the model gave no answer, or several.
        """
        if not self.final:
            assert self._waiter is None, "two tasks wait for one reply"
            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._give_up)
        answers = self._answers
        if len(answers) != 1:
            raise InternalError(f"expected a single response, got {len(answers)}")
        answer = answers[0]
        if isinstance(answer, TriremeError):
            raise answer
        assert answer is not None
        return answer

    def _give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._waiter = None
        if self._job is not None and self._cancel is not None:
            self._cancel(self._job)
        return trio.lowlevel.Abort.SUCCEEDED

    def __repr__(self) -> str:
        state = "final" if self.final else "waited for" if self._waiter is not None else "open"
        return f"<Reply {state}, {len(self._answers)} answers>"
