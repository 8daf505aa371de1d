"""What a slot knows of the sequence that it serves: its requests in order, its idle deadline, its implicit state.

Rules:
 1. Requests are offered in the order in which they came, one at a time: the next one when the one before is settled. So
    they are executed strictly in order, whatever their instance does at the same time.
 2. An offered request has its control inputs, and the state that the request before it has left behind.
 3. A request that is to be executed again is offered before all others, without its flags.
 4. With a cancelled request go those that continue it: all up to the next START.
 5. A slot is idle when nothing has come for max_sequence_idle; the time counts from the last request, or from when the
    sequence got the slot. It only reports that, and reports it again later: whether a sequence is over, or the slot is
    dismissed, is for the batcher to say, which knows what else is on its way.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence as Row
from dataclasses import dataclass

from ...job import Job
from .controls import Controls
from .slot import Again, Assign, Discard, Put, Slot, SlotMessage
from .state import SequenceState

_AGAIN_S = 1.0
"""The least time between two reports that nothing comes."""


@dataclass(slots=True, eq=False)
class SlotReport:
    """What a slot says to its batcher."""

    slot: Slot


@dataclass(slots=True, eq=False)
class Offer(SlotReport):
    """The next request of the sequence, its inputs completed."""

    job: Job


@dataclass(slots=True, eq=False)
class Discarded(SlotReport):
    """These requests, which continue one that was cancelled, are taken out, too."""

    jobs: Row[Job]


@dataclass(slots=True, eq=False)
class Idle(SlotReport):
    """Nothing has come for too long; unless something is on its way."""


@dataclass(slots=True, eq=False)
class Failed(SlotReport):
    """The slot has died."""


class SlotCore:
    """The decisions of a slot.

    Args:
        slot: what the batcher knows it as.
        max_idle_s: rule 5.

    Attributes:
        idle_s: when it will have been idle for too long.
    """

    __slots__ = ("_controls", "_jobs", "_max_idle_s", "_offered", "_slot", "_state", "idle_s")

    def __init__(self, slot: Slot, controls: Controls, max_idle_s: float) -> None:
        self._slot = slot
        self._controls = controls
        self._max_idle_s = max_idle_s
        self._jobs: deque[Job] = deque()
        self._offered = 0  # the arrival of the request that is not settled; the request itself is not kept
        self._state: SequenceState | None = None
        self.idle_s = math.inf

    def __len__(self) -> int:
        """Requests that it has not offered."""
        return len(self._jobs)

    def receive(self, message: SlotMessage, now: float) -> SlotReport | None:
        """Take a message in; what is to be answered at once."""
        if isinstance(message, Put):
            self._jobs.append(message.job)
            if message.settled:
                self._offered = 0
        elif isinstance(message, Discard):
            return self._drop(message.job)
        elif isinstance(message, Assign):
            self._state = None
            self._jobs.extend(message.jobs)
            if message.settled:
                self._offered = 0
        else:
            self._offered = 0
            if not isinstance(message, Again):
                return None
            request = message.job.request
            request.sequence_start = request.sequence_end = False
            self._state = message.job.state
            self._jobs.appendleft(message.job)
        self.idle_s = now + self._max_idle_s
        return None

    def next_report(self, now: float) -> SlotReport | None:
        """What there is to say when all messages have been received; None if there is nothing more."""
        if self._jobs and not self._offered:
            job = self._jobs.popleft()
            self._offered = job.arrival
            self._complete(job)
            return Offer(self._slot, job)
        if now >= self.idle_s:
            self.idle_s = now + max(self._max_idle_s, _AGAIN_S)
            return Idle(self._slot)
        return None

    def _complete(self, job: Job) -> None:
        """Rule 2."""
        request = job.request
        state = self._controls.complete(job, None if request.sequence_start else self._state)
        self._state = None if request.sequence_end else state  # the request itself keeps it

    def _drop(self, job: Job) -> Discarded:
        """Rule 4."""
        jobs = self._jobs
        before: list[Job] = []
        if job.arrival == self._offered:
            self._offered = 0
        elif job in jobs:
            while (first := jobs.popleft()) is not job:
                before.append(first)
        else:
            return Discarded(self._slot, ())  # it went with another one
        dropped: list[Job] = []
        while jobs and not jobs[0].request.sequence_start:
            dropped.append(jobs.popleft())
        jobs.extendleft(reversed(before))
        if not jobs:
            self._state = None
        return Discarded(self._slot, dropped)

    def __repr__(self) -> str:
        return f"<SlotCore of {self._slot}: {len(self._jobs)} requests>"
