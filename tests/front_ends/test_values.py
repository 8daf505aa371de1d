"""Plain values in heads."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import given
from wired import JSON, wired

from trireme.engine.errors import (
    ErrorKind,
    FailureReason,
    InvalidArgumentError,
    LimitExceededError,
    RefusalReason,
    TriremeError,
)
from trireme.engine.tensor_limits import LimitError
from trireme.front_ends import values
from trireme.front_ends.link import MOST_HEAD_BYTES, LinkError

TEXTS = st.text(st.characters(), max_size=20)  # lone surrogates, too
PARAMETERS = st.booleans() | st.integers() | st.floats() | TEXTS


def sent(value: Any) -> Any:
    return wired([value])[0][0]


@given(st.dictionaries(TEXTS, PARAMETERS, max_size=5))
def test_parameters_arrive_as_they_are(parameters: dict[str, Any]) -> None:
    arrived = values.read_parameters(sent(values.write_parameters(parameters)))
    assert list(arrived) == list(parameters)
    for name, value in parameters.items():
        assert arrived[name].__class__ is value.__class__
        assert arrived[name] == value or math.isnan(value)


@pytest.mark.parametrize("kind", TriremeError.__subclasses__())
def test_errors_keep_their_kind_their_reason_and_their_text(kind: type[TriremeError]) -> None:
    if kind.__module__ != "trireme.engine.errors":
        return
    for reason in FailureReason:
        error = kind("no \udc80 such thing " * 40, reason=reason, refusal=RefusalReason.STOPPING)
        error.refusal_counted = reason is FailureReason.OTHER
        arrived = values.read_error(sent(values.write_error(error)))
        assert (arrived.__class__, arrived.reason, arrived.message) == (kind, reason, error.message)
        assert (arrived.refusal, arrived.refusal_counted) == (error.refusal, error.refusal_counted)


def test_an_error_that_knows_more_arrives_as_one_of_its_kind() -> None:
    arrived = values.read_error(sent(values.write_error(LimitError("too much"))))
    assert (type(arrived), arrived.message) == (InvalidArgumentError, "too much")


def test_when_to_try_again_arrives() -> None:
    arrived = values.read_error(sent(values.write_error(LimitExceededError("x", retry_after_s=2.5))))
    assert isinstance(arrived, LimitExceededError)
    assert arrived.retry_after_s == 2.5


def test_what_it_is_about_arrives() -> None:
    arrived = values.read_error(sent(values.write_error(InvalidArgumentError("no", about="structured_outputs"))))
    assert arrived.about == "structured_outputs"


def test_every_kind_of_error_has_a_class() -> None:
    for kind in ErrorKind:
        assert values.read_error([kind.value, "OTHER", "text", None, False, 0, ""]).kind is kind


READERS = (
    values.read_list,
    values.read_integer,
    values.read_bool,
    values.read_text,
    values.read_value,
    values.read_parameters,
    values.read_error,
)


@given(JSON, st.sampled_from(READERS))
def test_anything_else_is_an_error_of_the_link(value: Any, read: Any) -> None:
    with suppress(LinkError):
        read(value)


@pytest.mark.parametrize(
    "value", [["i", "9" * 5000], ["i", "0x1"], ["f", "one"], ["x", "zz"], ["x", "ff"], ["y", "00"], ["x"]]
)
def test_what_only_looks_like_a_value_is_none(value: Any) -> None:
    with pytest.raises(LinkError):
        values.read_value(value)


def test_what_is_nested_deeply_is_refused_as_well() -> None:
    with pytest.raises(LinkError, match="an integer"):
        values.read_integer(orjson.loads("[" * 1_000 + "]" * 1_000))


@given(st.text(st.characters(), min_size=1, max_size=4), st.integers(1, 400_000))
def test_errors_of_any_length_fit_into_a_head(text: str, times: int) -> None:
    error = InvalidArgumentError(text * times)
    written = orjson.dumps(values.write_error(error))
    assert len(written) < MOST_HEAD_BYTES
    again = values.read_error(orjson.loads(written)).message
    assert again == error.message or (len(error.message) > 32_768 and again.startswith(error.message[:32_768]))
