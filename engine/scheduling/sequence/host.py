"""What both strategies have in common: the slots of one instance, and how batches are made of their requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Row

from ...execution import SealReason
from ...job import Job
from ..core import InstanceId
from .slot import Slot

Batch = tuple[Row[Job], SealReason]


class Host(ABC):
    """An instance with its slots.

    Attributes:
        slots: those that are made, by number.
        ready: the slots in state READY, by number, in the order in which their requests were due.
        leaving: its slots get no new sequence.
        spare: it takes only a batch that could not grow if it waited (`SchedulerCore.instance_idle`).
        executing: batches handed to the instance and not settled.
        ripe_s: when a batch that was left to grow will be sent as it is; None if there is none.
    """

    def __init__(self, instance: InstanceId) -> None:
        self.instance = instance
        self.slots: dict[int, Slot] = {}
        self.ready: dict[int, Slot] = {}
        self.leaving = False
        self.spare = False
        self.executing = 0
        self.ripe_s: float | None = None

    def issue(self, now: float) -> None:
        """Move requests that may go from their slots to where batches are made, if that is another place."""

    @abstractmethod
    def form(self, now: float, draining: bool) -> Batch | None:
        """The batch to execute now; None to wait, until `ripe_s` at most."""

    def withdraw(self, job: Job) -> Slot | None:
        """Take a request back that was issued, and is in no batch yet.

        Returns:
            Its slot, in which it is still out; None if there is no such request.
        """
        return None

    def issued(self) -> Row[Job]:
        """The requests that are issued and in no batch yet."""
        return ()
