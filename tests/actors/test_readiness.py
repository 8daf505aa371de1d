"""Checks of models' own: one call for all who ask, a limit, and an answer when the instance dies."""

from __future__ import annotations

import logging
from typing import cast

import pytest
import trio
import trio.testing

from trireme.actors.instance import ReadinessCheck, all_pass
from trireme.engine.backends.interface import ProcessInstance
from trireme.engine.errors import InternalError, TriremeError, UnavailableError

TOO_LATE = "Timed out waiting for user-defined is_ready() response"


class Asked:
    """What a check needs of an instance: it answers when the test says so."""

    def __init__(self) -> None:
        self.questions = 0
        self.answers_at_once = False

    def ask_ready(self) -> None:
        self.questions += 1
        if self.answers_at_once:
            self.on_ready(None)

    def on_ready(self, error: TriremeError | None) -> None:
        raise AssertionError("replaced by the check")


@pytest.fixture
def instance() -> Asked:
    return Asked()


@pytest.fixture
def check(instance: Asked) -> ReadinessCheck:
    return ReadinessCheck("m_0", cast(ProcessInstance, instance))


async def test_whoever_asks_meanwhile_shares_the_answer(
    instance: Asked, check: ReadinessCheck, autojump_clock: trio.testing.MockClock
) -> None:
    answers: list[TriremeError | None] = []

    async def ask() -> None:
        answers.append(await check.ask())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
        await trio.sleep(1)
        assert instance.questions == 1
        instance.on_ready(None)
    assert answers == [None, None, None]
    instance.answers_at_once = True
    assert await check.ask() is None
    assert instance.questions == 2


async def test_a_late_answer_is_that_of_who_asks_later(
    instance: Asked, check: ReadinessCheck, autojump_clock: trio.testing.MockClock
) -> None:
    began = trio.current_time()
    late = await check.ask()
    assert isinstance(late, InternalError)
    assert late.message == TOO_LATE
    assert trio.current_time() - began == pytest.approx(5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_answer_after, instance, 2)
        assert await check.ask() is None
    assert instance.questions == 1


async def _answer_after(instance: Asked, delay_s: float) -> None:
    await trio.sleep(delay_s)
    instance.on_ready(None)


async def test_one_that_does_not_pass_is_enough(
    instance: Asked, check: ReadinessCheck, autojump_clock: trio.testing.MockClock
) -> None:
    instance.answers_at_once = True
    assert await all_pass([check, check])
    assert not await all_pass([check, ReadinessCheck("m_1", cast(ProcessInstance, Asked()))])


async def test_why_is_logged_when_it_changes(
    instance: Asked, check: ReadinessCheck, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trireme.model")
    for error in (None, UnavailableError("no"), UnavailableError("no"), InternalError("worse"), None, None):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(check.ask)
            await trio.testing.wait_all_tasks_blocked()
            instance.on_ready(error)
    assert caplog.messages == [
        "instance 'm_0' is not ready: no",
        "instance 'm_0' is not ready: worse",
        "instance 'm_0' is ready again",
    ]


async def test_an_answer_that_nobody_waits_for_is_no_matter(instance: Asked, check: ReadinessCheck) -> None:
    instance.on_ready(InternalError("gone"))
    instance.answers_at_once = True
    assert await check.ask() is None
