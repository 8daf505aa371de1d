"""Which texts the next step of an encoder computes (dynamic batching by tokens).

An encoder reads a text as a whole, once; nothing of it is kept. A step computes several texts as one row of tokens,
without padding. Rules:

 1. One step is under way at a time. Texts come and leave between two of them, and during one.
 2. A step computes whole texts, no more than `most_tokens` together; one that is longer than that by itself.
 3. Order: the lower level first, then the earlier arrival. The first one pending is always in the step, so that long
    ones do not starve. Of the others, in this order, each is that there is room left for, so that steps are full.
 4. One that is cancelled or too late leaves before the next step. If it is in the one under way, it is over with that,
    and its result is dropped.

States of a text:

    PENDING ─ room ▶ RUNNING ─ computed, failed ▶ OVER
    PENDING ─ cancelled, expired ▶ OVER
    RUNNING ─ cancelled ▶ OVER
"""

from __future__ import annotations

import enum
import itertools
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass


class TextState(enum.Enum):
    """Where a text is."""

    PENDING = "pending"
    RUNNING = "running"
    OVER = "over"


@dataclass(slots=True, eq=False)
class EncodedText:
    """A text to be computed.

    Args:
        tokens: its length.
        level: of priority; 1 goes before 2.
        deadline_s: when it is too late for it to begin.

    Attributes:
        order: what comes first: by level, then by arrival.
    """

    tokens: int
    level: int = 1
    deadline_s: float | None = None
    order: tuple[int, int] = (0, 0)
    state: TextState = TextState.PENDING


class Encodings:
    """Decides what the steps of an encoder are.

    Args:
        most_tokens: of a step (rule 2).

    Attributes:
        steps, tokens, texts: how many there have been in all.
    """

    def __init__(self, most_tokens: int) -> None:
        self.most_tokens = most_tokens
        self.steps = 0
        self.tokens = 0
        self.texts = 0
        self._arrivals = itertools.count()
        self._pending: list[EncodedText] = []  # in order
        self._step: Sequence[EncodedText] = ()

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def running(self) -> int:
        return len(self._step)

    def arrive(self, text: EncodedText) -> None:
        """A text is to be computed."""
        text.order = (text.level, next(self._arrivals))
        insort(self._pending, text, key=_order)

    def leave(self, text: EncodedText) -> None:
        """A text is wanted no more (rule 4). One that is over is left alone."""
        if text.state is TextState.PENDING:
            self._pending.remove(text)
        text.state = TextState.OVER

    def expire(self, now_s: float) -> list[EncodedText]:
        """Those that are too late leave."""
        late = [each for each in self._pending if each.deadline_s is not None and each.deadline_s <= now_s]
        for each in late:
            self.leave(each)
        return late

    def begin_step(self) -> Sequence[EncodedText]:
        """What is to be computed now; empty if a step is under way, or there is nothing to do."""
        if self._step or not self._pending:
            return ()
        first, *others = self._pending
        step, kept, left = [first], [], self.most_tokens - first.tokens
        for each in others:
            if each.tokens <= left:
                step.append(each)
                left -= each.tokens
            else:
                kept.append(each)
        for each in step:
            each.state = TextState.RUNNING
        self._step, self._pending = step, kept
        self.steps += 1
        self.texts += len(step)
        self.tokens += sum(each.tokens for each in step)
        return step

    def end_step(self) -> Sequence[EncodedText]:
        """The step has been computed, or has failed: those of it that are still wanted."""
        wanted = [each for each in self._step if each.state is TextState.RUNNING]
        for each in wanted:
            each.state = TextState.OVER
        self._step = ()
        return wanted


def _order(text: EncodedText) -> tuple[int, int]:
    return text.order
