"""Sequences that wait for a slot, and their deadlines."""

from __future__ import annotations

from random import Random

import pytest

from trireme.engine.scheduling.sequence.backlog import Backlog
from trireme.engine.scheduling.sequence.slot import Sequence

MANY = 500


def sequence(number: int) -> Sequence:
    return Sequence(number, number)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The deadlines of which it was asked whether they still mean anything."""
    looked: list[object] = []
    is_live = Backlog._is_live

    def asked(self: Backlog, entry: tuple[float, int, Sequence]) -> bool:
        looked.append(entry)
        return is_live(self, entry)

    monkeypatch.setattr(Backlog, "_is_live", asked)
    return looked


def test_deadlines_are_not_swept_while_most_of_them_count(looked_at: list[object]) -> None:
    backlog = Backlog()
    for number in range(1, MANY):
        each = sequence(number)
        backlog.add(each)
        backlog.limit(each, 1000.0 + number)
    assert len(looked_at) < 4 * MANY


def test_deadlines_that_earlier_ones_replace_are_swept(looked_at: list[object]) -> None:
    backlog = Backlog()
    each = sequence(1)
    backlog.add(each)
    for number in range(MANY):
        backlog.limit(each, 1000.0 - number)
    assert len(backlog._deadlines) < 200
    assert backlog.closest_deadline_s == 1001.0 - MANY


def test_sequences_expire_in_the_order_of_their_deadlines_however_often_these_were_swept() -> None:
    chance, backlog = Random(5), Backlog()
    waiting = [sequence(number) for number in range(1, 60)]
    for each in waiting:
        backlog.add(each)
    for latest in range(40, 0, -1):
        for each in waiting:
            backlog.limit(each, latest + chance.random())
    expired = backlog.expire(50.0)
    assert sorted(expired, key=lambda each: each.number) == waiting
    deadlines = [each.deadline_s for each in expired if each.deadline_s is not None]
    assert len(deadlines) == len(expired)
    assert deadlines == sorted(deadlines)
