"""An instance, as its scheduler knows it."""

from __future__ import annotations

from ..engine.config.instance_groups import UNLIMITED, RateLimit
from .mailbox import Mailbox
from .messages import InstanceMessage


class InstanceAddress:
    """Where to send an instance's batches.

    Args:
        most: batches that it may hold at once.
        limit: what it needs in order to execute, where that is limited.
        device: that of those resources which each device has.
        gpu: where it executes, if it is of kind KIND_GPU.

    Attributes:
        credits: the same as `most`.
        held: batches that it has.
        leaving: it gets no more.
    """

    __slots__ = ("credits", "device", "gpu", "held", "leaving", "limit", "mailbox", "name")

    def __init__(
        self,
        name: str,
        mailbox: Mailbox[InstanceMessage],
        most: int = 1,
        limit: RateLimit = UNLIMITED,
        device: int = 0,
        gpu: int | None = None,
    ) -> None:
        self.name = name
        self.mailbox = mailbox
        self.credits = most
        self.limit = limit
        self.device = device
        self.gpu = gpu
        self.held = 0
        self.leaving = False

    def __repr__(self) -> str:
        return f"<InstanceAddress {self.name}: {self.held} of {self.credits} credits in use>"
