"""What errors show of what clients sent."""

from __future__ import annotations

import copy
import re

import pytest

from trireme.engine.errors import (
    _LONG,
    LONGEST_MESSAGE,
    LONGEST_SHOWN,
    FailureReason,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    request_prefix,
)
from trireme.engine.repository.catalog import Catalog
from trireme.engine.tensor_limits import DEFAULT_LIMITS, LimitError

LONG = 200_000


def test_texts_of_ordinary_length_stay_as_they_are() -> None:
    texts = [
        f"unexpected inference input '{'x' * LONGEST_SHOWN}' for model '{'m' * LONGEST_SHOWN}'",
        "one two three " * 60 + "'",
        "Traceback:\n" + "  File 'model.py', line 1, in execute\n    return [1, 2, 3]\n" * 200,
        f"Expected [{','.join(['9223372036854775807'] * 64)}], got [1]",
    ]
    for text in texts:
        assert InvalidArgumentError(text).message == text
    assert request_prefix("x" * LONGEST_SHOWN) == f"[request id: {'x' * LONGEST_SHOWN}] "
    assert request_prefix("") == "[request id: <id_unknown>] "


@pytest.mark.parametrize("letters", ["x", "two words ", "\u00e9", "a,b"])
def test_a_long_name_is_shown_by_its_beginning_and_its_length(letters: str) -> None:
    name = (letters * LONG)[:LONG]
    error = InvalidArgumentError(f"{request_prefix(name)}unexpected inference input '{name}' for model 'm'")
    assert len(error.message) < 3 * LONGEST_SHOWN
    assert error.message.startswith(f"[request id: {name[:LONGEST_SHOWN]}... (200000 characters)] unexpected")
    assert error.message.endswith(f"'{name[:LONGEST_SHOWN]}... (200000 characters)' for model 'm'")
    assert (str(error), copy.copy(error).message) == (error.message, error.message)


@pytest.mark.parametrize(
    "letters", ["'", "a'b", "two 'words' ", 'say "so"\n', "x" * 250 + "'", "two words " * 200 + '"']
)
def test_a_name_full_of_quotes_does_not_come_back_whole_either(letters: str) -> None:
    name = (letters * LONG)[:LONG]
    error = InvalidArgumentError(f"unexpected inference input '{name}' for model 'm'")
    assert len(error.message) < LONGEST_MESSAGE + 2 * LONGEST_SHOWN
    assert error.message.startswith(f"unexpected inference input '{letters[:200]}")
    assert error.message.endswith("' for model 'm'")
    assert re.search(r"\.\.\. \(\d{6} characters\) \.\.\.", error.message)


def test_a_text_that_is_not_too_long_stays_whole() -> None:
    text = ("a'b" * LONGEST_MESSAGE)[:LONGEST_MESSAGE]
    assert InvalidArgumentError(text).message == text
    assert len(InvalidArgumentError(text + "'").message) > LONGEST_MESSAGE


@pytest.mark.parametrize("pattern", _LONG)
def test_what_is_almost_too_long_is_gone_through_once(pattern: re.Pattern[str]) -> None:
    text = "x" * LONG
    assert pattern.match(text)
    assert not any(pattern.match(text, at) for at in range(1, 4 * LONGEST_SHOWN))


def test_what_a_backend_says_stays_whole() -> None:
    assert InternalError("x" * LONG, reason=FailureReason.BACKEND).message == "x" * LONG


def test_no_long_name_comes_back_whole() -> None:
    name = "n" * LONG
    with pytest.raises(NotFoundError) as model:
        Catalog(namespacing=False).find(name)
    with pytest.raises(LimitError) as tensor:
        DEFAULT_LIMITS.check_rank(name, 100)
    beginning = name[:LONGEST_SHOWN]
    assert model.value.message == f"Request for unknown model: '{beginning}... (200000 characters)' is not found"
    assert tensor.value.message.startswith(f"invalid shape for input '{beginning}... (200000 characters)': it has 100")
