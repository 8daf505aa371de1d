"""Where batches are executed: the rules of `Placement`, one by one, and what holds whatever is measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.instances import executing as rules
from trireme.engine.instances.executing import (
    BETWEEN,
    DELAYED_NS,
    MOST_WEIGHT,
    SHORT_NS,
    STEADY,
    TRIALS,
    Placement,
)

LONG_NS = DELAYED_NS + 1
LATE_NS = SHORT_NS + 1


def measure(placement: Placement, times: int, nbytes: int = 100, took_ns: int = SHORT_NS) -> None:
    for _ in range(times):
        placement.measured(nbytes, took_ns)


def trusted(nbytes: int = 100) -> Placement:
    placement = Placement()
    measure(placement, TRIALS, nbytes)
    assert placement.in_place(min(nbytes, rules.MOST_BYTES))
    return placement


def trials_needed(placement: Placement, nbytes: int = 100) -> int:
    """Short batches until the next one is executed in place."""
    count = 0
    while not placement.in_place(nbytes):
        placement.measured(nbytes, SHORT_NS)
        count += 1
    return count


class TestRule1:
    @pytest.mark.parametrize("nbytes", [0, 1, 1 << 40])
    def test_an_instance_begins_on_its_thread(self, nbytes: int) -> None:
        assert not Placement().in_place(nbytes)


class TestRule2:
    def test_trust_needs_a_number_of_short_batches(self) -> None:
        assert trials_needed(Placement()) == TRIALS

    @pytest.mark.parametrize(
        ("took_ns", "batches"),
        [
            (SHORT_NS, TRIALS),
            (SHORT_NS // 2 + 1, TRIALS),
            (SHORT_NS // 2, TRIALS // 2),
            (SHORT_NS // MOST_WEIGHT, TRIALS // MOST_WEIGHT),
            (1, TRIALS // MOST_WEIGHT),
            (0, TRIALS // MOST_WEIGHT),
        ],
    )
    def test_the_shorter_they_are_the_fewer_it_needs(self, took_ns: int, batches: int) -> None:
        placement = Placement()
        measure(placement, batches - 1, took_ns=took_ns)
        assert not placement.in_place(0)
        measure(placement, 1, took_ns=took_ns)
        assert placement.in_place(100)

    def test_a_delayed_one_takes_back_some_of_them(self) -> None:
        placement = Placement()
        measure(placement, TRIALS - 1)
        measure(placement, 1, nbytes=500, took_ns=DELAYED_NS)
        assert trials_needed(placement) == 1 + BETWEEN
        assert not placement.in_place(101), "of its own size nothing has been short"

    def test_but_not_more_than_there_are(self) -> None:
        placement = Placement()
        measure(placement, BETWEEN)
        measure(placement, 1, took_ns=LATE_NS)
        assert trials_needed(placement) == TRIALS

    def test_an_instance_on_a_busy_machine_is_trusted_in_the_end(self) -> None:
        """One batch in eight waits for the interpreter while it is on the thread: 32 in a row would never come."""
        placement = Placement()
        for number in range(1, 24):
            waits = number % 8 == 0 and not placement.in_place(100)
            measure(placement, 1, took_ns=4 * SHORT_NS if waits else SHORT_NS // 4)
        assert placement.in_place(100)

    def test_large_batches_stay_on_the_thread(self) -> None:
        """However short they are: their inputs are copied, and much copying is not for the event loop."""
        placement = trusted(1 << 30)
        assert placement.in_place(rules.MOST_BYTES)
        assert not placement.in_place(rules.MOST_BYTES + 1)

    def test_they_must_come_in_a_row(self) -> None:
        placement = Placement()
        measure(placement, TRIALS - 1)
        measure(placement, 1, took_ns=LONG_NS)
        assert trials_needed(placement) == TRIALS

    def test_up_to_the_largest_of_them_and_no_further(self) -> None:
        placement = Placement()
        measure(placement, 1, nbytes=500)
        measure(placement, TRIALS - 1, nbytes=10)
        assert placement.in_place(0)
        assert placement.in_place(500)
        assert not placement.in_place(501)

    def test_a_large_batch_before_a_long_one_does_not_count(self) -> None:
        placement = Placement()
        measure(placement, 1, nbytes=500)
        measure(placement, 1, nbytes=500, took_ns=LONG_NS)
        measure(placement, TRIALS, nbytes=10)
        assert placement.in_place(10)
        assert not placement.in_place(11)

    def test_batches_without_bytes_can_be_trusted(self) -> None:
        placement = trusted(0)
        assert not placement.in_place(1)

    def test_a_larger_batch_that_was_short_on_the_thread_widens_the_trust(self) -> None:
        placement = trusted(100)
        measure(placement, 1, nbytes=200)
        assert placement.in_place(200)
        assert not placement.in_place(201)

    def test_a_larger_batch_that_was_long_on_the_thread_costs_no_trust(self) -> None:
        placement = trusted(100)
        measure(placement, 5, nbytes=200, took_ns=LONG_NS)
        assert placement.in_place(100)
        assert not placement.in_place(200)


class TestRule3:
    def test_a_long_batch_in_place_sends_the_instance_back(self) -> None:
        placement = trusted(100)
        measure(placement, 1, nbytes=50, took_ns=LONG_NS)
        assert not placement.in_place(0)

    def test_soon_after_it_takes_twice_as_many_trials_each_time(self) -> None:
        placement = trusted()
        for factor in (2, 4, 8):
            measure(placement, STEADY - 1)
            measure(placement, 1, took_ns=LONG_NS)
            assert trials_needed(placement) == factor * TRIALS

    def test_but_no_more_than_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rules, "MOST_TRIALS", 3 * TRIALS)
        placement = trusted()
        for expected in (2 * TRIALS, 3 * TRIALS, 3 * TRIALS):
            measure(placement, 1, took_ns=LONG_NS)
            assert trials_needed(placement) == expected

    def test_an_instance_that_was_trusted_for_long_is_forgiven(self) -> None:
        placement = trusted()
        measure(placement, 1, took_ns=LONG_NS)
        assert trials_needed(placement) == 2 * TRIALS
        measure(placement, STEADY)
        measure(placement, 1, took_ns=LONG_NS)
        assert trials_needed(placement) == TRIALS

    def test_a_batch_that_the_system_delayed_is_forgiven_once_in_a_while(self) -> None:
        placement = trusted()
        for _ in range(3):
            measure(placement, BETWEEN)
            measure(placement, 1, took_ns=DELAYED_NS)
            assert placement.in_place(100)
        measure(placement, BETWEEN - 1)
        measure(placement, 1, took_ns=LATE_NS)
        assert not placement.in_place(0)

    @pytest.mark.parametrize("took_ns", [LATE_NS, DELAYED_NS])
    def test_the_first_of_all_is_not(self, took_ns: int) -> None:
        placement = trusted()
        measure(placement, 1, took_ns=took_ns)
        assert not placement.in_place(0)

    def test_nor_is_one_that_was_long(self) -> None:
        placement = trusted()
        measure(placement, STEADY)
        measure(placement, 1, took_ns=LONG_NS)
        assert not placement.in_place(0)

    def test_what_was_trusted_before_is_forgotten(self) -> None:
        placement = trusted(1000)
        measure(placement, 1, took_ns=LONG_NS)
        assert trials_needed(placement, 10) == 2 * TRIALS
        assert not placement.in_place(11)


RUNS = st.lists(
    st.tuples(st.integers(1, 3 * TRIALS), st.integers(0, 5), st.sampled_from([0, SHORT_NS, LATE_NS, LONG_NS])),
    max_size=12,
)
"""(batches, bytes of each, time of each)."""


@given(RUNS)
def test_in_place_is_only_what_was_proved(runs: list[tuple[int, int, int]]) -> None:
    """Whatever is measured: what is executed in place is no larger than a batch that was short, and came after as many
    short batches as a long one in place asks for at least."""
    placement = Placement()
    largest_short = -1
    proved = since_late = 0
    for times, nbytes, took_ns in runs:
        for _ in range(times):
            in_place = placement.in_place(nbytes)
            was_trusted = placement.trusted_bytes >= 0
            if in_place:
                assert nbytes <= largest_short
                assert proved >= TRIALS
            placement.measured(nbytes, took_ns)
            if took_ns <= SHORT_NS:
                largest_short = max(largest_short, nbytes)
                proved += MOST_WEIGHT if took_ns == 0 else 1
                since_late += was_trusted
            elif in_place and took_ns == LATE_NS and since_late >= BETWEEN:
                since_late = 0
            elif not was_trusted and took_ns == LATE_NS and proved > BETWEEN:
                proved -= BETWEEN
            elif in_place or placement.trusted_bytes < 0:
                largest_short = -1
                proved = since_late = 0
            assert not placement.in_place(largest_short + 1)
