"""The rate limiter actor: what it is told, and what it answers (docs/reference/scheduling.md#rate-limiter)."""

from __future__ import annotations

from dataclasses import dataclass

from trireme.actors.actor import Mailbox, Recipient, Turn
from trireme.actors.messages import Attach, Granted, Registered, SchedulerMessage
from trireme.actors.rate_limiter import Asking, RateLimiter
from trireme.engine.config.instance_groups import RateLimit, ResourceDemand
from trireme.engine.scheduling.rate_limiter import ExplicitResource

ONE = RateLimit((ResourceDemand("R", 1),))


class Scheduler(Recipient):
    """Notes what it is told."""

    def __init__(self, limiter: RateLimiter, turn: Turn) -> None:
        super().__init__()
        self.mailbox: Mailbox[SchedulerMessage] = Mailbox("a scheduler", turn, self)
        self.asking = Asking(limiter, self.mailbox, turn)
        self.told: list[str] = []

    def attach(self, instance: int, limit: RateLimit = ONE) -> None:
        nowhere: Mailbox = Mailbox("an instance", Turn(), self)
        self.asking.register(Attach(instance, 0, f"i{instance}", nowhere, 1, False, limit, 0, None))

    def take_turn(self) -> None:
        for message in self.mailbox.receive_all():
            if isinstance(message, Granted):
                self.told.append(f"granted {message.instance}")
            elif isinstance(message, Registered):
                self.told.append(f"registered {message.attach.instance}" if message.error is None else "refused")

    def fail(self, error: Exception) -> None:
        raise error


@dataclass
class World:
    turn: Turn
    limiter: RateLimiter
    first: Scheduler
    second: Scheduler


def world(resources: int = 1) -> World:
    turn = Turn()
    limiter = RateLimiter(turn, [ExplicitResource("R", resources)])
    return World(turn, limiter, Scheduler(limiter, turn), Scheduler(limiter, turn))


async def test_an_instance_is_registered_or_its_scheduler_is_told_why_not() -> None:
    at = world()
    with at.turn:
        at.first.attach(1)
        at.first.attach(2, RateLimit((ResourceDemand("R", 2),)))
    assert at.first.told == ["registered 1", "refused"]
    assert repr(at.limiter) == "<RateLimiter: 1 instances, 0 granted, 0 waiting>"


async def test_a_grant_goes_to_the_scheduler_that_asked_and_the_next_when_it_is_released() -> None:
    at = world()
    with at.turn:
        at.first.attach(1)
        at.second.attach(1)
        at.first.asking.tell("request", 1)
        at.second.asking.tell("request", 1)
    assert (at.first.told, at.second.told) == (["registered 1", "granted 1"], ["registered 1"])
    with at.turn:
        at.first.asking.tell("release", 1, True)
    assert at.second.told == ["registered 1", "granted 1"]


async def test_who_withdraws_or_asks_again_when_it_is_granted_has_one_grant_to_release() -> None:
    """The messages have crossed: the scheduler has not heard of its grant yet."""
    at = world()
    with at.turn:
        at.first.attach(1)
        at.second.attach(1)
        at.first.asking.tell("request", 1)
        at.first.asking.hurry()
        at.first.asking.tell("withdraw", 1)
        at.first.asking.tell("request", 1)
        at.second.asking.tell("request", 1)
    assert at.first.told == ["registered 1", "granted 1"]
    assert at.second.told == ["registered 1"]
    with at.turn:
        at.first.asking.tell("release", 1, False)
    assert at.first.told == ["registered 1", "granted 1"]
    assert at.second.told == ["registered 1", "granted 1"]


async def test_what_a_scheduler_asks_in_one_turn_is_received_before_anything_is_granted() -> None:
    at = world()
    with at.turn:
        at.first.attach(1)
        at.second.attach(1)
        at.first.asking.tell("request", 1)
        at.first.asking.tell("withdraw", 1)
        at.second.asking.tell("request", 1)
    assert (at.first.told, at.second.told) == (["registered 1"], ["registered 1", "granted 1"])


async def test_an_instance_that_is_gone_gives_back_what_it_had() -> None:
    at = world()
    with at.turn:
        at.first.attach(1)
        at.second.attach(1)
        at.first.asking.tell("request", 1)
        at.second.asking.tell("request", 1)
    with at.turn:
        at.first.asking.unregister(1)
    assert at.second.told == ["registered 1", "granted 1"]
