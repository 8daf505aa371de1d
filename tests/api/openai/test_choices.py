"""A choice hands on what is neither a stop string nor half a character (api/openai/choices.py)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from trireme.api.openai.choices import TextChoice


def said(choice: TextChoice, pieces: list[bytes]) -> str:
    return "".join([choice.take(piece) for piece in pieces]) + choice.end()


@given(
    text=st.text("ab€", max_size=40),
    cuts=st.lists(st.integers(0, 120), max_size=8),
    stops=st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3),
)
def test_however_a_text_comes_it_ends_before_the_first_stop_string(
    text: str, cuts: list[int], stops: list[str]
) -> None:
    """Rules 1, 2 and 5; of two stop strings the one counts that is complete first, or begins first in one piece."""
    raw = text.encode()
    places = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    pieces = [raw[start:end] for start, end in pairwise(places)]
    choice = TextChoice(stops)
    found = said(choice, pieces)
    assert text.startswith(found)
    assert not any(stop in found for stop in stops)
    if any(stop in text for stop in stops):
        assert any(text[len(found) :].startswith(stop) for stop in stops)
    else:
        assert found == text
    assert choice.finish_reason == "stop"


def test_text_is_held_back_no_longer_than_needed() -> None:
    choice = TextChoice(["END"])
    assert choice.take(b"the E") == "the "
    assert choice.take(b"N") == ""
    assert choice.take(b"CODER") == "ENCODER"
    assert choice.take(b" END of it") == " "
    assert choice.take(b"more") == ""
    assert choice.finish_reason == "stop"


def test_pieces_count_as_tokens_where_the_model_counts_none() -> None:
    choice = TextChoice(most_pieces=2)
    assert choice.take(b"") == ""
    assert choice.take(b"one ") == "one "
    assert choice.finish_reason is None
    assert choice.take(b"two ") == "two "
    assert choice.finish_reason == "length"
    assert choice.end() == ""
    assert choice.output_tokens == 2


def test_what_the_model_says_counts() -> None:
    choice = TextChoice()
    choice.told("None")
    choice.count(7, 2)
    assert choice.take(b"a") == "a"
    choice.told("length")
    choice.count(7, 3)
    assert choice.take(b"b") == "b"
    assert choice.finish_reason is None  # its last response may still come
    assert choice.end() == ""
    assert (choice.finish_reason, choice.input_tokens, choice.output_tokens) == ("length", 7, 5)


def test_half_a_character_at_the_end_is_shown_as_unknown() -> None:
    assert said(TextChoice(), ["€".encode()[:2]]) == "\ufffd"
