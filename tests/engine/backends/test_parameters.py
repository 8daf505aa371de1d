"""Parameters are text; these say what they mean (docs/reference/backends.md#common-rules)."""

from __future__ import annotations

import pytest

from trireme.engine.backends.parameters import parse_bool, parse_int
from trireme.engine.errors import InvalidArgumentError


@pytest.mark.parametrize("text", ["true", "on", "1", "True", "ON", "tRuE"])
def test_true(text: str) -> None:
    assert parse_bool(text) is True


@pytest.mark.parametrize("text", ["false", "off", "0", "FALSE", "Off"])
def test_false(text: str) -> None:
    assert parse_bool(text) is False


@pytest.mark.parametrize("text", ["", "yes", "2", " true", "t"])
def test_no_boolean(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_bool(text)
    assert caught.value.message == f"failed to convert '{text}' to boolean"


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("-7", -7), ("+3", 3), (" 12", 12), ("2147483647", 2**31 - 1)])
def test_integers(text: str, number: int) -> None:
    assert parse_int(text) == number


@pytest.mark.parametrize("text", ["", "-", "1.5", "0x10", "1_000", "٣", "12a", "2147483648", "-2147483649"])
def test_no_integer(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_int(text)
    assert caught.value.message == f"failed to convert '{text}' to integral number"


def test_wider_integers() -> None:
    assert parse_int("2147483648", bits=64) == 2**31
