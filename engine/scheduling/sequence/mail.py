"""What a sequence batcher says to its slots: small objects, never changed. The answers are in `slot_core`.

Both sides are told in one turn, so whatever the batcher says is answered before it decides about batches. *Settled*
says that nothing of the slot is with an instance any more: its next request may go.
"""

from __future__ import annotations

from collections.abc import Sequence as Row
from dataclasses import dataclass

from ...job import Job


@dataclass(slots=True, eq=False)
class Serve:
    """A sequence has got the slot, with the requests that it has so far."""

    jobs: Row[Job]
    settled: bool


@dataclass(slots=True, eq=False)
class Put:
    """Another request of the sequence."""

    job: Job
    settled: bool


@dataclass(slots=True, eq=False)
class Settle:
    """The request that was handed on last is done with."""


@dataclass(slots=True, eq=False)
class Again:
    """The request that was handed on last is to be executed again, before all others."""

    job: Job


@dataclass(slots=True, eq=False)
class Drop:
    """This request was cancelled. The answer is `Dropped`."""

    job: Job


@dataclass(slots=True, eq=False)
class Dismiss:
    """The slot is not needed any more."""


SlotMessage = Serve | Put | Settle | Again | Drop | Dismiss
