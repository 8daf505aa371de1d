"""Which of one scheduler's instances have leave to execute (docs/reference/scheduling.md#rate-limiter).

Rules:
 1. An instance that is idle is *resting*; when there is work for it, it is *asking*, then *granted*, and *executing*
    when it has its batch. So the batch is formed as late as without a limiter.
 2. One that is granted and gets no batch (the queue waits for its delay) gives the grant back at once, and asks again
    when something has changed.
 3. One for which there is no work any more (its request expired) withdraws: it might hold up others. It may have been
    granted already; then rule 2 applies.
 4. One that has executed, and for which there is more work, asks again in the same step in which it gives back.

    RESTING ─ ask ▶ ASKING ─ granted ▶ GRANTED ─ use ▶ EXECUTING ─ idle ▶ RESTING, or ASKING (rule 4)
    ASKING ─ ask ▶ RESTING (rule 3);  GRANTED ─ give_back ▶ RESTING (rule 2);  RESTING ─ granted ▶ GRANTED
"""

from __future__ import annotations

from typing import Literal, Protocol

from .core import InstanceId, SchedulerCore

LimiterEvent = Literal["request", "withdraw", "renew", "release"]
"""What the limiter is told of an instance: it has work; it has none any more, and if it has been granted, that stands;
it has executed and has more work; it gives back what it was granted."""


class Tell(Protocol):
    def __call__(self, event: LimiterEvent, instance: InstanceId, /, *executed: bool) -> None:
        """`executed`: whether what is given back ("release") was used."""
        ...


class Permits:
    """Of the instances of one scheduler.

    Args:
        tell: the limiter.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._resting: dict[InstanceId, None] = {}
        self._asking: dict[InstanceId, None] = {}
        self._granted: dict[InstanceId, None] = {}
        self._executing: set[InstanceId] = set()

    def gone(self, instance: InstanceId) -> None:
        """An instance takes no more batches."""
        for state in (self._resting, self._asking, self._granted):
            state.pop(instance, None)
        self._executing.discard(instance)

    def idle(self, instance: InstanceId, core: SchedulerCore) -> None:
        """An instance is new, or done with its batch (rule 4), or with what it has executed without leave."""
        if instance not in self._executing:
            if instance not in self._asking and instance not in self._granted:
                self._resting[instance] = None
            return
        self._executing.remove(instance)
        if core.wants(instance, len(self._granted) + len(self._asking)):
            self._asking[instance] = None
            self._tell("renew", instance)
        else:
            self._resting[instance] = None
            self._tell("release", instance, True)

    def ask(self, core: SchedulerCore, news: bool) -> None:
        """Withdraw instances that have no work any more, and ask for those that have some, if there is news."""
        others = len(self._granted)
        resting = list(self._resting) if news else []
        for instance in list(self._asking):
            if core.wants(instance, others):
                others += 1
            else:
                del self._asking[instance]
                self._resting[instance] = None
                self._tell("withdraw", instance)
        for instance in resting:
            if core.wants(instance, others):
                others += 1
                del self._resting[instance]
                self._asking[instance] = None
                self._tell("request", instance)

    def granted(self, instance: InstanceId) -> bool:
        """An instance was granted what it asked for; False if it has gone in the meantime."""
        if instance not in self._asking and instance not in self._resting:
            return False
        self._asking.pop(instance, None)
        self._resting.pop(instance, None)
        self._granted[instance] = None
        return True

    def use(self, instance: InstanceId) -> None:
        """A granted instance has got a batch."""
        del self._granted[instance]
        self._executing.add(instance)

    def give_back(self, core: SchedulerCore) -> None:
        """Rule 2."""
        while self._granted:
            instance, _ = self._granted.popitem()
            core.instance_paused(instance)
            self._resting[instance] = None
            self._tell("release", instance, False)
