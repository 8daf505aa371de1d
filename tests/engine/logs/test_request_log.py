"""The request log: what is written can be read, and what cannot be read is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.logs.request_log import (
    LoggedLoop,
    LoggedRequest,
    LoggedResult,
    RequestTraffic,
    header_line,
    read_request_log,
    read_traffic,
    write_request_log,
)

TIMES = st.floats(0, 1e9)
RESULTS = st.builds(
    LoggedResult,
    total_us=st.floats(0.001, 1e9),
    queue_us=TIMES,
    input_us=TIMES,
    infer_us=TIMES,
    output_us=TIMES,
    batch=st.integers(0, 99),
    instance=st.text(),
    outcome=st.sampled_from(("", "queue_full", "failed")),
)
ARRIVALS = st.builds(
    LoggedRequest,
    offset_s=TIMES,
    model=st.text(),
    version=st.integers(-1, 9),
    rows=st.integers(1, 99),
    nbytes=st.integers(0, 2**40),
    elements=st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
    priority=st.integers(0, 2**32),
    timeout_us=st.integers(0, 2**63),
    sequence=st.integers(0, 2**64) | st.text(),
    start=st.booleans(),
    end=st.booleans(),
    ensemble=st.booleans(),
    tenant=st.text(),
    protocol=st.sampled_from(("", "http", "grpc", "stream")),
    result=st.none() | RESULTS,
)
LOOPS = st.builds(LoggedLoop, clients=st.integers(1, 99), think_s=TIMES)


@given(st.lists(ARRIVALS), st.none() | LOOPS, st.integers(0, 9))
def test_what_is_written_is_read(arrivals: list[LoggedRequest], loop: LoggedLoop | None, dropped: int) -> None:
    """A closed loop's requests stay as they are, others come in order of arrival."""
    written = RequestTraffic(arrivals, loop, dropped, "2026-11-28T09:00:00.000Z")
    read = read_traffic(write_request_log(written))
    ordered = arrivals if loop is not None else sorted(arrivals, key=lambda arrival: arrival.offset_s)
    assert read == RequestTraffic(ordered, loop)
    assert (read.dropped, read.began) == (dropped, written.began)


def test_a_line_leaves_out_what_goes_without_saying() -> None:
    request = LoggedRequest(0.5, "digits", rows=4, nbytes=64, result=LoggedResult(1500.5, outcome="queue_full"))
    line = '{"offset_s":0.5,"model":"digits","rows":4,"bytes":64,"total_us":1500.5,"outcome":"queue_full"}\n'
    assert request.to_line() == line
    assert list(read_request_log(["\n", line])) == [request]


def test_logs_without_a_head_are_read() -> None:
    """As they were written before there was one."""
    lines = [
        '{"offset_s":0.25,"model":"digits","rows":4,"priority":1,"timeout_us":5000}\n',
        '{"offset_s":0.5,"model":"s","version":3,"sequence":"a","start":true}\n',
    ]
    assert read_request_log(lines) == [
        LoggedRequest(0.25, "digits", rows=4, priority=1, timeout_us=5000),
        LoggedRequest(0.5, "s", 3, sequence="a", start=True),
    ]


def test_a_closed_loop_has_no_arrivals() -> None:
    lines = write_request_log(RequestTraffic([LoggedRequest(0.0, "m")], LoggedLoop(2)))
    with pytest.raises(InvalidArgumentError, match="describes a closed loop, expected one with times of arrivals"):
        read_request_log(lines)


def test_a_line_may_tell_of_several_arrivals() -> None:
    lines = [
        '{"offset_s":[0.5,0.25],"model":"m","rows":2,"sequence":[7,"b"],"elements":[3,4]}\n',
        '{"offset_s":0.375,"model":"n"}\n',
        '{"offset_s":[],"model":"none"}\n',
    ]
    assert read_request_log(lines) == [
        LoggedRequest(0.25, "m", rows=2, sequence="b", elements=(3, 4)),
        LoggedRequest(0.375, "n"),
        LoggedRequest(0.5, "m", rows=2, sequence=7, elements=(3, 4)),
    ]


def test_files_that_follow_one_another_are_one_log() -> None:
    """Also if the server was started again in between: its offsets count from another moment."""
    lines = [
        header_line("2026-11-28T09:00:00.000Z"),
        '{"offset_s":1.0,"model":"m"}\n',
        header_line("2026-11-28T09:00:00.000Z"),
        '{"offset_s":2.0,"model":"m"}\n',
        header_line("2026-11-28T09:01:00.500Z"),
        '{"offset_s":0.5,"model":"m"}\n',
        '{"dropped":3}\n',
        '{"dropped":4}\n',
    ]
    traffic = read_traffic(lines)
    assert [request.offset_s for request in traffic.requests] == [1.0, 2.0, 61.0]
    assert (traffic.dropped, traffic.seconds) == (7, 60.0)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "line 2 of the request log: not JSON"),
        ("[]", "line 2 of the request log: expected an object, not list"),
        ("[" * 100_000, "line 2 of the request log: not JSON"),
        ("{}", "offset_s and model missing"),
        ('{"offset_s":1}', "model missing"),
        ('{"offset_s":1,"model":"m","row":1}', "unknown field 'row'; known are offset_s, model,"),
        ('{"offset_s":"1","model":"m"}', "offset_s must be int or float, not '1'"),
        ('{"offset_s":true,"model":"m"}', "offset_s must be int or float, not True"),
        ('{"offset_s":1,"model":"m","start":1}', "start must be bool, not 1"),
        ('{"offset_s":1,"model":"m","rows":0}', "rows must be at least 1 and finite, not 0"),
        ('{"offset_s":Infinity,"model":"m"}', "offset_s must be at least 0 and finite, not inf"),
        ('{"offset_s":1e308,"model":"m"}', "offset_s must be at most 1000000000, not 1e+308"),
        ('{"offset_s":NaN,"model":"m"}', "offset_s must be at least 0 and finite, not nan"),
        ('{"offset_s":[1,"2"],"model":"m"}', "offset_s must be int or float, not '2'"),
        ('{"offset_s":[1,2],"model":"m","rows":[1]}', "rows has 1 values, for 2 arrivals"),
        ('{"offset_s":1,"model":"m","rows":[1]}', "rows has 1 values, for 1 arrivals"),
        ('{"offset_s":1,"model":"m","elements":3}', "elements must be list, not 3"),
        ('{"offset_s":1,"model":"m","elements":[0.5]}', "each of elements must be int, not 0.5"),
        ('{"offset_s":1,"model":"m","infer_us":-1}', "infer_us must be at least 0 and finite, not -1"),
        ('{"dropped":-1}', "dropped must be at least 0 and finite, not -1"),
        ('{"log":"other","format":2}', "expected a log 'trireme-requests' of format 2, not 'other', format 2"),
        ('{"log":"trireme-requests","format":3}', "of format 2, not 'trireme-requests', format 3"),
        ('{"log":"trireme-requests","format":2,"began":"soon"}', "began must be a time, not 'soon'"),
        ('{"log":"trireme-requests","format":2,"clients":0}', "clients must be at least 1 and finite, not 0"),
        ('{"log":"trireme-requests","format":2,"end":"x"}', "unknown field 'end'; known are log, format,"),
    ],
)
def test_a_line_that_is_none_is_named(line: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_request_log(['{"offset_s":0.5,"model":"m"}\n', line])
    assert text in caught.value.message
    assert "line 2 of the request log" in caught.value.message
