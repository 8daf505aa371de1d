"""Tokens become text as they come (`engine.generation.text`)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.generation.text import GeneratedText


def of_bytes(tokens: Sequence[int]) -> str:
    """A tokenizer of single bytes."""
    return bytes(tokens).decode(errors="replace")


def of_words(tokens: Sequence[int]) -> str:
    """A tokenizer of words, which puts blanks between them."""
    return " ".join("abcdefghij"[token] for token in tokens)


def pieces(text: str, stops: Sequence[str] = ()) -> tuple[list[str], bool]:
    """What comes with each byte of a text, and at its end; whether it was stopped."""
    generated = GeneratedText(of_bytes, stops)
    told = [generated.add(token) for token in text.encode()]
    return [*told, generated.end()], generated.stopped


@given(st.text(max_size=30))
def test_no_character_is_split_and_none_is_lost(text: str) -> None:
    told, _ = pieces(text)
    assert "".join(told) == text
    assert [each for each in told if each] == list(text)


def test_blanks_between_words_come_with_the_word_behind_them() -> None:
    generated = GeneratedText(of_words)
    assert [generated.add(token) for token in (0, 1, 2)] == ["a", " b", " c"]


def test_a_character_that_never_ends_is_told_in_the_end() -> None:
    generated = GeneratedText(of_bytes)
    assert [generated.add(token) for token in b"a\xf0\x9f"] == ["a", "", ""]
    assert generated.end() == "\N{REPLACEMENT CHARACTER}"


def test_bytes_that_are_no_character_do_not_wait_for_ever() -> None:
    generated = GeneratedText(of_bytes)
    told = "".join(generated.add(token) for token in [0xF0] * 12)
    assert len(told) == 12


@pytest.mark.parametrize("stops", [("###",), ("nothing", "###", "##"), ("##",)])
def test_a_stop_string_is_not_told_wherever_its_tokens_end(stops: Sequence[str]) -> None:
    told, stopped = pieces("one # two ### three", stops)
    assert ("".join(told), stopped) == ("one # two ", True)
    assert told[5:7] == ["# ", "t"], "what turns out to be no beginning of one is told"


def test_what_may_be_the_beginning_of_one_is_told_at_the_end() -> None:
    told, stopped = pieces("one ##", ("###",))
    assert told == [*"one ", "", "", "##"]
    assert not stopped


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_it_ends_where_the_first_stop_string_is_complete(text: str, stops: list[str]) -> None:
    told, stopped = pieces(text, stops)
    ends = [length for length in range(len(text) + 1) if any(stop in text[:length] for stop in stops)]
    if not ends:
        assert ("".join(told), stopped) == (text, False)
    else:
        before = text[: ends[0]]
        assert ("".join(told), stopped) == (before[: min(before.find(stop) for stop in stops if stop in before)], True)


def test_nothing_comes_after_the_end() -> None:
    generated = GeneratedText(of_bytes, ("b",))
    assert [generated.add(token) for token in b"abc"] == ["a", "", ""]
    assert generated.end() == ""
