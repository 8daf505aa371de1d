"""The answers that all handlers make alike."""

from __future__ import annotations

import sys

import orjson
import pytest

from trireme.api.http.exchange import error_body


@pytest.mark.parametrize(("length", "kept"), [(100, True), (100_000, False)])
def test_bodies_of_errors_are_kept_unless_they_are_long(length: int, kept: bool) -> None:
    """What a model raises may be as long as it likes, and each time different."""
    message = '"é' * (length // 2)
    before = sys.getrefcount(message)
    assert orjson.loads(error_body(message)) == {"error": message}
    assert (sys.getrefcount(message) > before) is kept
    assert (error_body(message) is error_body(message)) is kept
