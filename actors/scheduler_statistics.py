"""What a scheduler, or the actor in its place, says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from .mailbox import MailboxStatistics


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """`inflight` counts jobs accepted and not finally answered, `queued` those of them that no instance has yet."""

    queued: int
    inflight: int
    instances: int
    mailbox: MailboxStatistics
