"""Patterns of headers that become parameters: RE2's, which take linear time."""

from __future__ import annotations

import re

import pytest

from trireme.api.request_parameters import HeaderPattern, Restriction, compile_forward_pattern
from trireme.engine.errors import InvalidArgumentError


def compiled(pattern: str) -> HeaderPattern:
    found = compile_forward_pattern(pattern)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("x-fwd", "a-X-FWD-b", True),
        ("(?-i)MY_HEADER.*", "MY_HEADER", True),
        ("(?-i)MY_HEADER.*", "my_header", False),
        ("(?-i:MY)_header", "MY_HEADER", True),
        ("é", "É", True),
        ("^x$", "x\udcff", False),
        ("x", "x\udcff", True),
    ],
)
def test_what_matches(pattern: str, name: str, found: bool) -> None:
    assert compiled(pattern)(name) is found


def test_no_pattern_takes_exponential_time() -> None:
    """Python's own would take 2^5000 steps for this one; none that backtracks is used."""
    assert compiled("^(a+)+$")("a" * 5000 + "b") is False
    with pytest.raises(InvalidArgumentError):
        compile_forward_pattern(r"(a)\1")
    assert re.compile(r"(a)\1")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "missing ): ("),
        ("((a{100}){100}){100}", "invalid repetition size: {100}"),
        ("\ud800", "'utf-8' codec can't encode character"),
    ],
)
def test_what_is_no_pattern(pattern: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        compile_forward_pattern(pattern)
    assert refused.value.message.startswith(f"invalid header forward pattern '{pattern}': {reason}")


def test_an_empty_pattern_is_none() -> None:
    assert compile_forward_pattern("") is None


def test_a_sealed_restriction_admits_the_same_and_does_not_know_the_value() -> None:
    restriction = Restriction(("health",), "key", "välue")
    sealed = restriction.sealed()
    assert (sealed.categories, sealed.key) == (("health",), "key")
    assert "välue" not in repr(sealed)
    for given in ("välue".encode(), b"value", b"", None):
        assert sealed.admits(given) == restriction.admits(given)
    assert sealed != restriction.sealed()  # who has two cannot tell that the values are equal
