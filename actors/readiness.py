"""The models' own readiness checks (docs/reference/python-backend.md#readiness).

Rules:
 1. An instance is asked once at a time. Who asks meanwhile waits for the same answer.
 2. No caller waits longer than `LIMIT_S`; after that the instance counts as not ready. The question stays open, and who
    asks later waits for its answer.
 3. An instance that dies has answered: it is not ready.
 4. Why an instance is not ready is logged, when that changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import trio

from ..engine.backends.interface import ProcessInstance
from ..engine.errors import InternalError, TriremeError

logger = logging.getLogger("trireme.model")

LIMIT_S = 5.0


class ReadinessCheck:
    """One instance's own check.

    Args:
        name: of the instance, for people.
        instance: one that `checks_itself`.
        limit_s: rule 2.
    """

    def __init__(self, name: str, instance: ProcessInstance, limit_s: float = LIMIT_S) -> None:
        self._name = name
        self._instance = instance
        self._limit_s = limit_s
        self._question: _Question | None = None
        self._last = ""
        instance.on_ready = self._answered

    async def ask(self) -> TriremeError | None:
        """Why the instance is not ready; None if it is."""
        question = self._question
        if question is None:
            question = self._question = _Question()
            self._instance.ask_ready()
        with trio.move_on_after(self._limit_s) as limit:
            await question.answered.wait()
        error = question.error
        if limit.cancelled_caught:
            error = InternalError("Timed out waiting for user-defined is_ready() response")
        self._log(error)
        return error

    def _answered(self, error: TriremeError | None) -> None:
        question, self._question = self._question, None
        if question is not None:
            question.error = error
            question.answered.set()

    def _log(self, error: TriremeError | None) -> None:
        """Rule 4."""
        text = "" if error is None else error.message
        if text == self._last:
            return
        self._last = text
        if text:
            logger.warning("instance '%s' is not ready: %s", self._name, text)
        else:
            logger.info("instance '%s' is ready again", self._name)

    def __repr__(self) -> str:
        return f"<ReadinessCheck of {self._name}{'' if self._question is None else ', asked'}>"


@dataclass(slots=True, eq=False)
class _Question:
    """An open question, and its answer."""

    answered: trio.Event = field(default_factory=trio.Event)
    error: TriremeError | None = None


async def all_pass(checks: Iterable[ReadinessCheck]) -> bool:
    """Ask all of them side by side."""
    passed: list[bool] = []

    async def ask(check: ReadinessCheck) -> None:
        passed.append(await check.ask() is None)

    async with trio.open_nursery() as nursery:
        for check in checks:
            nursery.start_soon(ask, check)
    return all(passed)
