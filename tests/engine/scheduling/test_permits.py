"""Leave to execute: what one scheduler tells the rate limiter of its instances."""

from __future__ import annotations

import pytest

from trireme.engine.scheduling.permits import Permits
from trireme.engine.scheduling.queueing import DefaultScheduler


class Told:
    """A limiter that writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[object, ...]] = []

    def __call__(self, event: str, instance: int, *executed: bool) -> None:
        self.said.append((event, instance, *executed))

    def take(self) -> list[tuple[object, ...]]:
        said, self.said = self.said, []
        return said


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def core() -> DefaultScheduler:
    return DefaultScheduler()


@pytest.fixture
def permits(told: Told) -> Permits:
    return Permits(told)


def test_an_instance_asks_when_there_is_work_for_it_and_no_more_than_there_is(permits, core, told, make_job) -> None:
    for instance in (1, 2):
        permits.idle(instance, core)
    permits.ask(core, news=True)
    assert told.take() == []
    core.enqueue(make_job(1), 0.0)
    permits.ask(core, news=True)
    assert told.take() == [("request", 1)]
    permits.ask(core, news=True)
    assert told.take() == [], "it has asked, and that is enough for one request"


def test_without_news_nobody_asks(permits, core, told, make_job) -> None:
    permits.idle(1, core)
    core.enqueue(make_job(1), 0.0)
    permits.ask(core, news=False)
    assert told.take() == []


def test_a_grant_without_a_batch_goes_back_unused(permits, core, told, make_job) -> None:
    permits.idle(1, core)
    core.enqueue(make_job(1), 0.0)
    permits.ask(core, news=True)
    assert permits.granted(1)
    core.instance_idle(1)
    permits.give_back(core)
    assert told.take() == [("request", 1), ("release", 1, False)]
    assert "0 idle" in repr(core)


def test_who_has_executed_and_has_more_work_asks_again_in_the_same_step(permits, core, told, make_job) -> None:
    permits.idle(1, core)
    for number in (1, 2):
        core.enqueue(make_job(number), 0.0)
    permits.ask(core, news=True)
    permits.granted(1)
    core.instance_idle(1)
    core.next_action(0.0)
    permits.use(1)
    told.take()
    permits.idle(1, core)
    assert told.take() == [("renew", 1)]
    assert permits.granted(1)
    core.instance_idle(1)
    core.next_action(0.0)
    permits.use(1)
    permits.idle(1, core)
    assert told.take() == [("release", 1, True)]


def test_who_has_no_work_any_more_withdraws_and_bears_a_grant_that_was_on_its_way(
    permits, core, told, make_job
) -> None:
    permits.idle(1, core)
    job = make_job(1)
    core.enqueue(job, 0.0)
    permits.ask(core, news=True)
    core.cancel(job)
    permits.ask(core, news=True)
    assert told.take() == [("request", 1), ("withdraw", 1)]
    assert permits.granted(1)
    permits.give_back(core)
    assert told.take() == [("release", 1, False)]


def test_a_grant_to_an_instance_that_has_gone_is_nobodys(permits, core, make_job) -> None:
    permits.idle(1, core)
    core.enqueue(make_job(1), 0.0)
    permits.ask(core, news=True)
    permits.gone(1)
    assert not permits.granted(1)
