"""When it is worth polling: the rules of `engine.polling`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.polling import EARNED, FEWEST_SKIPPED, MOST_CREDITS, MOST_SKIPPED, TAKEN_AWAY_S, PollRecord

LIMIT_S = 60e-6


def polled(record: PollRecord, found: bool, lasted_s: float = 10e-6) -> bool:
    """A wait, of which a poll would find something or not; whether it was polled."""
    if not record.poll_s():
        return False
    record.polled(found, lasted_s)
    return True


def skipped(record: PollRecord) -> int:
    """How many waits are not polled from now on; the one after them finds nothing."""
    count = 0
    while not polled(record, found=False):
        count += 1
    return count


def test_without_a_limit_nothing_is_polled() -> None:
    record = PollRecord(0)
    assert not any(polled(record, found=True) for _ in range(10))


def test_polling_goes_on_while_it_finds_something() -> None:
    record = PollRecord(LIMIT_S)
    assert record.poll_s() == LIMIT_S
    assert all(polled(record, found=True) for _ in range(1000))


def test_credits_outlast_some_polls_in_vain_and_are_bounded() -> None:
    record = PollRecord(LIMIT_S)
    for _ in range(1000):
        polled(record, found=True)
    assert all(polled(record, found=False) for _ in range(MOST_CREDITS))
    assert not polled(record, found=True)


def test_where_every_third_poll_finds_something_polling_goes_on() -> None:
    record = PollRecord(LIMIT_S)
    polled(record, found=True)
    assert EARNED == 2
    assert all(polled(record, found=wait % 3 == 0) for wait in range(999))


def test_trials_in_vain_become_rare_and_one_that_finds_something_ends_that() -> None:
    record = PollRecord(LIMIT_S)
    assert polled(record, found=False)
    rests = [skipped(record) for _ in range(9)]
    assert rests == [min(FEWEST_SKIPPED << count, MOST_SKIPPED) for count in range(9)]
    assert rests[-1] == MOST_SKIPPED
    while not polled(record, found=True):
        pass
    assert all(polled(record, found=False) for _ in range(EARNED))
    assert skipped(record) == FEWEST_SKIPPED


def test_who_loses_the_core_meanwhile_loses_all_credits() -> None:
    record = PollRecord(LIMIT_S)
    for _ in range(1000):
        polled(record, found=True)
    assert polled(record, found=True, lasted_s=LIMIT_S + TAKEN_AWAY_S)
    assert polled(record, found=True, lasted_s=LIMIT_S + 2 * TAKEN_AWAY_S)
    assert skipped(record) == FEWEST_SKIPPED


@given(st.lists(st.booleans(), max_size=2000))
def test_what_is_polled_in_vain_is_bounded_by_what_was_found(finds: list[bool]) -> None:
    record = PollRecord(LIMIT_S)
    found = in_vain = 0
    for find in finds:
        if polled(record, find):
            found += find
            in_vain += not find
    trials = 1 + len(finds) // FEWEST_SKIPPED
    assert in_vain <= EARNED * found + trials
    if not found:
        assert in_vain <= 8 + len(finds) // MOST_SKIPPED
