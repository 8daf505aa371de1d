"""Documents are read as Triton reads them: its dialect, its reasons, its offsets (docs/reference/json.md#reading)."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.http.json import reader as json_reader
from trireme.engine.errors import ErrorKind, InternalError, InvalidArgumentError

# What the real Triton answers, without "failed to parse the request JSON buffer: ".
SYNTAX_ERRORS = [
    (b"", "The document is empty. at 0"),
    (b" ", "The document is empty. at 1"),
    (b"\x00{}", "The document is empty. at 0"),
    (b"{bad", "Missing a name for object member. at 1"),
    (b"{'a':1}", "Missing a name for object member. at 1"),
    (b'{"a":1,}', "Missing a name for object member. at 7"),
    (b'{"a"', "Missing a colon after a name of object member. at 4"),
    (b'{"a":', "Invalid value. at 5"),
    (b'{"a":1', "Missing a comma or '}' after an object member. at 6"),
    (b'{"a":1 "b":2}', "Missing a comma or '}' after an object member. at 7"),
    (b"[1", "Missing a comma or ']' after an array element. at 2"),
    (b"[1,]", "Invalid value. at 3"),
    (b"{}  x", "The document root must not be followed by other values. at 4"),
    (b"01", "The document root must not be followed by other values. at 1"),
    (b'"\\x"', "Invalid escape character in string. at 1"),
    (b'"a\x01"', "Invalid escape character in string. at 2"),
    (b'"a\nb"', "Invalid escape character in string. at 2"),
    (b'"ab', "Missing a closing quotation mark in string. at 3"),
    (b'"a\x00b"', "Missing a closing quotation mark in string. at 2"),
    (b'"\\u12g4"', "Incorrect hex digit after \\u escape in string. at 1"),
    (b'"\\ud800"', "The surrogate pair in string is invalid. at 1"),
    (b'"\\ud800\\u0041"', "The surrogate pair in string is invalid. at 1"),
    (b"1e999", "Number too big to be stored in double. at 0"),
    (b"[1," + b"9" * 400 + b"]", "Number too big to be stored in double. at 3"),
    (b"1.", "Miss fraction part in number. at 2"),
    (b"1e+", "Miss exponent in number. at 3"),
    (b"nan", "Invalid value. at 1"),
    (b"Infini", "Invalid value. at 6"),
    (b"-Infinit", "Invalid value. at 8"),
    (b"-Inf x", "The document root must not be followed by other values. at 5"),
    (b"/**/1", "Invalid value. at 0"),
    (b"\xff", "Invalid value. at 0"),
    (b"\xef\xbb\xbf{bad", "Missing a name for object member. at 4"),
    (b"\xef{bad", "Missing a name for object member. at 2"),
    (b"\xbf\xef{bad", "Invalid value. at 1"),
    (b'"\xff" x', "The document root must not be followed by other values. at 4"),
    (b'"\xc3\xa9" x', "The document root must not be followed by other values. at 5"),
    (b'["\xff\xc3\xa9\xfe", x', "Invalid value. at 9"),
]


@pytest.mark.parametrize(("body", "text"), SYNTAX_ERRORS)
def test_a_syntax_error_names_reason_and_byte_offset(body: bytes, text: str) -> None:
    with pytest.raises(InternalError) as caught:
        json_reader.parse(body)
    assert caught.value.message == f"failed to parse the request JSON buffer: {text}"


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"Inf", math.inf),
        (b"[-Infinity,Infinity,-Inf]", [-math.inf, math.inf, -math.inf]),
        (b"\xef\xbb\xbf[1]", [1]),
        (b"{}\x00trailing bytes behind a NUL are never seen", {}),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", float(2**64)),
        (b"[NaN,18446744073709551616]", None),
        (b"-9223372036854775809", -float(2**63)),
        (b"1e-400", 0.0),
    ],
)
def test_the_dialect(body: bytes, value: Any) -> None:
    if value is None:
        nan, number = json_reader.parse(body)
        assert math.isnan(nan)
        assert type(number) is float
    else:
        parsed = json_reader.parse(body)
        assert parsed == value
        assert type(parsed) is type(value)


def test_nan_is_a_number() -> None:
    assert all(math.isnan(value) for value in json_reader.parse(b"[NaN,-NaN]"))


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a":1,"a":2}', {"a": 1}),
        (b'{"a":1,"b":"x:y","a":2}', {"a": 1, "b": "x:y"}),
        (b'{"a" :1,"b":"\\":","a":2}', {"a": 1, "b": '":'}),
        (b'[[0],[{"a":1,"a":2}]]', [[0], [{"a": 1}]]),
        (b'[0,{"a":1,"a":2}]', [0, {"a": 1}]),
        (b'{"o":{"a":{"x":1},"a":{"x":2,"y":3}}}', {"o": {"a": {"x": 1}}}),
        (b'{"a":NaN,"b":1,"b":2,"a":3}', None),
        (b'{"\\u0061":1,"a":2}', {"a": 1}),
    ],
)
def test_the_first_of_duplicate_members_wins(body: bytes, value: Any) -> None:
    parsed = json_reader.parse(body)
    if value is None:
        assert list(parsed) == ["a", "b"]
        assert math.isnan(parsed["a"])
        assert parsed["b"] == 1
    else:
        assert parsed == value


def test_colons_in_strings_are_no_members() -> None:
    body = b'{"url":"http://host:1/x","data":[":",":a","\\":"],"t":"1:2"}'
    assert json_reader.parse(body) == json.loads(body)


_NAMES = st.sampled_from(["a", "b", ":", '":', "c d", "\\"])
_PAIRS = st.deferred(lambda: st.lists(st.tuples(_NAMES, _VALUES), max_size=4))
_VALUES = st.deferred(
    lambda: (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=4)
        | st.sampled_from(["x:y", '":', ":"])
        | st.lists(_VALUES, max_size=3)
        | _PAIRS.map(tuple)
    )
)


def _write(value: Any, colon: str) -> str:
    if isinstance(value, tuple):
        return "{" + ",".join(json.dumps(name) + colon + _write(item, colon) for name, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_write(item, colon) for item in value) + "]"
    return json.dumps(value)


def _first_wins(value: Any) -> Any:
    if isinstance(value, tuple):
        return {name: _first_wins(item) for name, item in reversed(value)}
    return [_first_wins(item) for item in value] if isinstance(value, list) else value


@settings(deadline=None)
@given(_VALUES, st.sampled_from([":", " : ", "\t:"]))
def test_documents_with_duplicates_are_read_as_a_plain_reader_that_keeps_the_first(value: Any, colon: str) -> None:
    body = _write(value, colon).encode()
    parsed = json_reader.parse(body)
    expected = _first_wins(value)
    assert _same(parsed, expected)


def _same(got: Any, want: Any) -> bool:
    """Equal, types included; doubles to a few ulp, which is what Triton's reader promises."""
    if type(got) is not type(want):
        return False
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(_same(got[name], want[name]) for name in want)
    if isinstance(want, list):
        return len(got) == len(want) and all(map(_same, got, want))
    return math.isclose(got, want, rel_tol=1e-14, abs_tol=5e-324) if isinstance(want, float) else got == want


@settings(deadline=None)
@given(st.binary(max_size=12), st.binary(max_size=6))
def test_bytes_in_strings_survive_whatever_they_are(content: bytes, name: bytes) -> None:
    content, name = (bytes(byte for byte in raw if byte >= 0x20 and byte not in b'"\\') for raw in (content, name))
    parsed = json_reader.parse(b'{"' + name + b'":["' + content + b'","\\u00e9"]}')
    [(got_name, (got, escaped))] = parsed.items()
    assert got.encode("utf-8", "surrogateescape") == content
    assert got_name.encode("utf-8", "surrogateescape") == name
    assert escaped == "é"


def test_every_byte_survives() -> None:
    content = bytes(byte for byte in range(0x20, 0x100) if byte not in b'"\\')
    assert json_reader.parse(b'"' + content + b'"').encode("utf-8", "surrogateescape") == content


@pytest.mark.parametrize("character", ["\U0010ff80".encode(), b"\\udbff\\udfff"])
def test_bad_bytes_beside_the_characters_that_stand_in_for_them_are_refused(character: bytes) -> None:
    assert json_reader.parse(b'"' + character + b'"') >= "\U0010ff80"
    with pytest.raises(InternalError, match=r"Invalid encoding in string\. at 6"):
        json_reader.parse(b'["\xff","' + character + b'"]')


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("levels", [2_000, 100_000])
@pytest.mark.parametrize("tail", [b"", b"1", b"NaN"])
def test_nesting_beyond_reason_is_an_error_not_a_crash(opening: bytes, levels: int, tail: bytes) -> None:
    with pytest.raises((InternalError, InvalidArgumentError)) as caught:
        json_reader.parse(opening * levels + tail)
    assert caught.value.kind in (ErrorKind.INTERNAL, ErrorKind.INVALID_ARGUMENT)


@pytest.mark.parametrize("number", [b"1", b"NaN"])
def test_the_error_of_nesting_names_the_limit_that_was_exceeded(number: bytes) -> None:
    """Not that of tensor data, which this is not."""
    assert json_reader.parse(b'{"x":' + b"[" * 500 + number + b"]" * 500 + b"}")
    with pytest.raises(InvalidArgumentError, match=r"exceeds maximum allowed limit \(about 1000, and 100 in the data"):
        json_reader.parse(b'{"x":' + b"[" * 2_000 + number + b"]" * 2_000 + b"}")


def test_a_memoryview_is_as_good_as_bytes() -> None:
    assert json_reader.parse(memoryview(b'xx{"a":1}')[2:]) == {"a": 1}


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_anything_is_a_value_or_an_error(body: bytes) -> None:
    with contextlib.suppress(InternalError):
        json_reader.parse(body)


STRING = "attempt to access JSON non-string as string"
BOOL = "attempt to access JSON non-boolean as boolean"
UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
SIGNED = "attempt to access JSON non-signed-integer as signed-integer"
DOUBLE = "attempt to access JSON non-number as double"
ARRAY = "attempt to access JSON non-array as array"
OBJECT = "attempt to access JSON non-object as object"


@pytest.mark.parametrize(
    ("access", "good", "bad", "text"),
    [
        (json_reader.as_string, ["", "a"], [None, 1, True, [], {}], STRING),
        (json_reader.as_bool, [True, False], [0, 1, "true", None], BOOL),
        (json_reader.as_unsigned, [0, 2**64 - 1], [-1, 2**64, 1.0, "1", True, None], UNSIGNED),
        (json_reader.as_signed, [-(2**63), 2**63 - 1], [2**63, -(2**63) - 1, 1.0, "1", False], SIGNED),
        (json_reader.as_double, [0.5, 1, -3, 2**63], [True, "1", None, []], DOUBLE),
        (json_reader.as_array, [[], [1]], [{}, "a", None, 1], ARRAY),
        (json_reader.as_object, [{}, {"a": 1}], [[], "a", None, 1], OBJECT),
    ],
)
def test_values_are_told_apart_by_type(access: Any, good: list[Any], bad: list[Any], text: str) -> None:
    for value in good:
        assert access(value) == value
    for value in bad:
        with pytest.raises(InternalError) as caught:
            access(value)
        assert caught.value.message == text


def test_members_of_objects() -> None:
    assert json_reader.member({"a": None}, "a") is None
    assert json_reader.members({"b": 1, "a": 2}) == ["b", "a"]
    for value in ({}, 5, []):
        with pytest.raises(InternalError, match=r"^attempt to access non-existing object member 'K'$"):
            json_reader.member(value, "K")
    with pytest.raises(InternalError, match=r"^attempt to get members for non-object$"):
        json_reader.members([])
