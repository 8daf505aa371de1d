"""The request log: what is written can be read, and what cannot be read is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.logs.request_log import LoggedRequest, RequestLog, read_request_log
from trireme.engine.request import InferenceRequest

ARRIVALS = st.builds(
    LoggedRequest,
    offset_s=st.floats(0, 1e9),
    model=st.text(),
    version=st.integers(-1, 9),
    rows=st.integers(1, 99),
    priority=st.integers(0, 2**32),
    timeout_us=st.integers(0, 2**63),
    sequence=st.integers(0, 2**64) | st.text(),
    start=st.booleans(),
    end=st.booleans(),
)


class Steps:
    """A clock that goes on by a quarter of a second at each reading."""

    def __init__(self) -> None:
        self.readings = 0

    def now_ns(self) -> int:
        self.readings += 1
        return 5_000_000_000 + self.readings * 250_000_000

    def now_s(self) -> float:
        return self.now_ns() / 1e9

    def wall_ms(self) -> int:
        return 0


@given(st.lists(ARRIVALS))
def test_what_is_written_is_read(arrivals: list[LoggedRequest]) -> None:
    ordered = sorted(arrivals, key=lambda arrival: arrival.offset_s)
    text = "".join(arrival.to_line() for arrival in ordered)
    assert list(read_request_log(text.splitlines())) == ordered


def test_a_log_has_a_line_an_arrival_without_what_goes_without_saying() -> None:
    lines: list[str] = []
    log = RequestLog(lines.append, Steps())
    log.arrived(InferenceRequest("digits", priority=1, timeout_us=5000), 4)
    log.arrived(InferenceRequest("s", 3, correlation_id="a", sequence_start=True), 1)
    log.arrived(InferenceRequest("s", correlation_id="", sequence_end=True), 1)
    assert lines == [
        '{"offset_s":0.25,"model":"digits","rows":4,"priority":1,"timeout_us":5000}\n',
        '{"offset_s":0.5,"model":"s","version":3,"sequence":"a","start":true}\n',
        '{"offset_s":0.75,"model":"s","end":true}\n',
    ]
    assert [logged.rows for logged in read_request_log(["\n", *lines])] == [4, 1, 1]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "line 2 of the request log: not JSON"),
        ("[]", "line 2 of the request log: expected an object, not list"),
        ("{}", "offset_s and model missing"),
        ('{"offset_s":1}', "model missing"),
        ('{"offset_s":1,"model":"m","row":1}', "unknown field 'row'; known are offset_s, model,"),
        ('{"offset_s":"1","model":"m"}', "offset_s must be int or float, not '1'"),
        ('{"offset_s":true,"model":"m"}', "offset_s must be int or float, not True"),
        ('{"offset_s":1,"model":"m","start":1}', "start must be bool, not 1"),
        ('{"offset_s":1,"model":"m","rows":0}', "rows must be at least 1 and finite, not 0"),
        ('{"offset_s":Infinity,"model":"m"}', "offset_s must be at least 0 and finite, not inf"),
        ('{"offset_s":NaN,"model":"m"}', "offset_s must be at least 0 and finite, not nan"),
        ('{"offset_s":0.25,"model":"m"}', "offset_s 0.25 is less than 0.5 before it"),
    ],
)
def test_a_line_that_is_no_arrival_is_named(line: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        list(read_request_log(['{"offset_s":0.5,"model":"m"}\n', line]))
    assert text in caught.value.message
    assert "line 2 of the request log" in caught.value.message
