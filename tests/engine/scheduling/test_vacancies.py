"""Which of the free slots a sequence gets."""

from __future__ import annotations

from trireme.engine.scheduling.sequence.backlog import Vacancies
from trireme.engine.scheduling.sequence.slot import Slot, SlotState


def slot(instance: int, number: int) -> Slot:
    return Slot(instance, number, False, lambda _slot, _before: None, SlotState.FREE)


def taken(vacancies: Vacancies) -> list[tuple[int, int]]:
    return [vacancies.pop()[:2] for _ in range(len(vacancies))]


def test_the_lowest_number_goes_first_and_of_equal_ones_the_one_that_was_free_first() -> None:
    vacancies = Vacancies()
    for each in (slot(3, 1), slot(9, 0), slot(1, 0), slot(5, 0), slot(4, 0)):
        vacancies.add(each)
    assert taken(vacancies) == [(9, 0), (1, 0), (5, 0), (4, 0), (3, 1)]


def test_new_slots_stand_in_line_with_those_that_were_used() -> None:
    vacancies = Vacancies()
    vacancies.add_new(7, 0, 2)
    vacancies.add(slot(1, 0))
    assert [vacancies.pop()[:2] for _ in range(3)] == [(7, 0), (1, 0), (7, 1)]
    assert not vacancies
