"""The rate limiter actor: one for all models of a server (docs/reference/scheduling.md#rate-limiter).

With ``--rate-limit=execution_count`` an instance that is idle is not free to execute: it rests until there is work,
asks, and gets its batch when it is granted what its group demands. So the batch is formed as late as without a limiter.
When a scheduler asks, and for whom, is for its `Permits` to say.

Rules:
 1. All messages of a turn are received before anything is granted.
 2. A grant stands until it is given back. Messages cross: one that withdraws, or asks once more, when it has been
    granted changes nothing by that, and a scheduler that is granted what it has no use for releases it.
 3. An instance for which there is not enough is not registered, and its scheduler is told why.

Messages: below; what it answers (`Registered`, `Granted`) goes to the mailbox of the scheduler. The states of an
instance are those of the core (`engine.scheduling.rate_limiter`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..engine.errors import TriremeError
from ..engine.scheduling.core import InstanceId
from ..engine.scheduling.permits import LimiterEvent
from ..engine.scheduling.rate_limiter import ExplicitResource, RateLimiterCore
from .actor import Actor, Mailbox, Turn
from .messages import Attach, Granted, Registered, SchedulerMessage

Key = tuple[Mailbox[SchedulerMessage], InstanceId]
"""An instance of any model: the mailbox of its scheduler, and its identity there."""


@dataclass(slots=True, eq=False)
class Register:
    """A new instance. Is answered by `Registered`."""

    scheduler: Mailbox[SchedulerMessage]
    attach: Attach


@dataclass(slots=True, eq=False)
class Told:
    """What happens to an instance, for the method of the core that has this name.

    Attributes:
        executed: what "release" takes.
    """

    event: LimiterEvent | Literal["unregister"]
    key: Key
    executed: tuple[bool, ...] = ()


LimiterMessage = Register | Told


class RateLimiter(Actor[LimiterMessage]):
    """Grants resources. Its mailbox holds at most a few messages of each instance.

    Args:
        explicit: ``--rate-limit-resource``.
    """

    core_class: ClassVar[type[RateLimiterCore[Key]]] = RateLimiterCore

    def __init__(self, turn: Turn, explicit: Iterable[ExplicitResource] = ()) -> None:
        super().__init__("the rate limiter", turn)
        self._core = self.core_class(explicit)

    def receive(self, message: LimiterMessage) -> None:
        if isinstance(message, Told):
            getattr(self._core, message.event)(message.key, *message.executed)
            return
        scheduler, attach = message.scheduler, message.attach
        error = None
        try:
            self._core.register((scheduler, attach.instance), attach.limit, attach.device)
        except TriremeError as refusal:
            error = refusal
        scheduler.send_nowait(Registered(attach, error))

    def act(self) -> None:
        while (key := self._core.next_grant()) is not None:
            scheduler, instance = key
            scheduler.send_nowait(Granted(instance))

    def __repr__(self) -> str:
        return repr(self._core)


class Asking:
    """One scheduler's messages to the rate limiter. See `Permits`, which says when."""

    def __init__(self, limiter: RateLimiter, scheduler: Mailbox[SchedulerMessage], turn: Turn) -> None:
        self._limiter = limiter
        self._turn = turn
        self._send = limiter.mailbox.send_nowait
        self._scheduler = scheduler

    def hurry(self) -> None:
        """Have it answer what it was asked until now, instead of later in this turn."""
        self._turn.deliver_ahead(self._limiter)

    def register(self, attach: Attach) -> None:
        self._send(Register(self._scheduler, attach))

    def tell(self, event: LimiterEvent, instance: InstanceId, *executed: bool) -> None:
        """For its `Permits`."""
        self._send(Told(event, (self._scheduler, instance), executed))

    def unregister(self, instance: InstanceId) -> None:
        self._send(Told("unregister", (self._scheduler, instance)))
