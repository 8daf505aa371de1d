"""Which texts an encoder's steps compute: `Encodings`."""

from __future__ import annotations

import re

import hypothesis.strategies as st
from hypothesis import given

import trireme.engine.generation.encodings as module
from trireme.engine.generation.encodings import EncodedText, Encodings, TextState


def arrived(core: Encodings, *lengths: int, level: int = 1) -> list[EncodedText]:
    texts = [EncodedText(length, level) for length in lengths]
    for text in texts:
        core.arrive(text)
    return texts


def test_a_step_is_full_of_whole_texts() -> None:
    core = Encodings(10)
    texts = arrived(core, 4, 7, 3, 2, 3)
    assert list(core.begin_step()) == [texts[0], texts[2], texts[3]]
    assert list(core.begin_step()) == [], "one step at a time"
    assert list(core.end_step()) == [texts[0], texts[2], texts[3]]
    assert list(core.begin_step()) == [texts[1], texts[4]]
    core.end_step()
    assert (core.steps, core.texts, core.tokens, core.pending, core.running) == (2, 5, 19, 0, 0)


def test_one_that_is_longer_than_a_step_is_one_by_itself() -> None:
    core = Encodings(10)
    long, short = arrived(core, 30, 1)
    assert list(core.begin_step()) == [long]
    core.end_step()
    assert list(core.begin_step()) == [short]


def test_long_ones_do_not_starve() -> None:
    core = Encodings(10)
    arrived(core, 6)
    (long,) = arrived(core, 9)
    for _ in range(3):
        arrived(core, 4, 4)
        if long in core.begin_step():
            break
        core.end_step()
    assert long.state is TextState.RUNNING
    assert core.steps == 2


def test_lower_levels_go_first() -> None:
    core = Encodings(4)
    late = arrived(core, 3, level=2)
    early = arrived(core, 3, level=1)
    assert list(core.begin_step()) == early
    core.end_step()
    assert list(core.begin_step()) == late


def test_who_is_too_late_leaves() -> None:
    core = Encodings(4)
    late, other = EncodedText(2, deadline_s=1.0), EncodedText(2, deadline_s=3.0)
    core.arrive(late)
    core.arrive(other)
    assert core.expire(0.5) == []
    assert core.expire(1.0) == [late]
    assert list(core.begin_step()) == [other]
    assert core.expire(9.0) == [], "what has begun is not late"


def test_what_leaves_during_a_step_is_not_among_its_results() -> None:
    core = Encodings(4)
    gone, other = arrived(core, 2, 2)
    core.begin_step()
    core.leave(gone)
    assert list(core.end_step()) == [other]
    core.leave(other)
    assert other.state is TextState.OVER


def test_the_table_names_all_states() -> None:
    assert module.__doc__ is not None
    table = module.__doc__.partition("States of a text:")[2]
    assert set(re.findall(r"[A-Z]{4,}", table)) == {state.name for state in TextState}


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3), st.integers(0, 2)), max_size=40),
    st.integers(1, 16),
)
def test_each_is_computed_once_within_the_budget(texts: list[tuple[int, int, int]], budget: int) -> None:
    """What comes, between steps and during them, is computed or has left; the first one pending is always computed."""
    core = Encodings(budget)
    computed: list[EncodedText] = []
    left = set()
    for tokens, level, then in texts:
        text = EncodedText(tokens, level)
        core.arrive(text)
        if then == 0:
            step = core.begin_step()
            assert len(step) <= 1 or sum(each.tokens for each in step) <= budget
            computed += core.end_step()
        elif then == 1:
            core.begin_step()
            core.leave(text)
            left.add(text)
            computed += core.end_step()
    while step := core.begin_step():
        first = min(step, key=lambda each: each.order)
        assert all(first.order < each.order for each in core._pending)
        computed += core.end_step()
    assert len(computed) == len(set(computed))
    assert len(set(computed) | left) == len(texts)
    assert not set(computed) & left
