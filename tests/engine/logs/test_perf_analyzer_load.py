"""What perf_analyzer would send, as a log."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any

import pytest

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.logs.perf_analyzer_load import InputData, read_input_data, read_intervals, read_perf_analyzer
from trireme.engine.logs.request_log import LoggedLoop, LoggedRequest, RequestTraffic

FILES = {
    "intervals": "1000\n\n2000\n",
    "steps": json.dumps({"data": [{"I": {"content": [1, 2], "shape": [2]}}, {"I": {"content": [1], "shape": [1]}}]}),
    "sequences": json.dumps({"data": [[{"I": [1]}, {"I": [2]}, {"I": [3]}], [{"I": [4]}, {"I": [5]}]]}),
}


def read(words: str, *, seconds: float = 1.0, count: int = 10) -> RequestTraffic:
    return read_perf_analyzer(words.split(), FILES.__getitem__, seconds=seconds, count=count)


def test_a_concurrency_is_a_closed_loop() -> None:
    """The first of a range; options that say nothing about the load are passed over."""
    traffic = read("-m m -x 3 -b 4 --concurrency-range 8:16:2 -i grpc -u localhost:8001 --percentile=95 --async")
    assert traffic == RequestTraffic([LoggedRequest(0.0, "m", 3, 4)] * 10, LoggedLoop(8))
    assert read("-m m").loop == LoggedLoop(1)


def test_a_rate_is_constant_unless_it_is_to_be_poisson() -> None:
    constant = read("-m m --request-rate-range 100")
    assert [request.offset_s for request in constant.requests[:3]] == [0.01, 0.02, 0.03]
    assert len(constant.requests) in (99, 100)
    poisson = read("-m m --request-rate-range 100 --request-distribution poisson", seconds=20)
    assert len(poisson.requests) / 20 == pytest.approx(100, rel=0.1)
    assert len({request.offset_s for request in poisson.requests}) > 1900


def test_intervals_begin_anew() -> None:
    traffic = read("-m m --request-intervals intervals", seconds=0.0065)
    assert [request.offset_s for request in traffic.requests] == [0.001, 0.003, 0.004, 0.006]


def test_data_are_sent_in_turn() -> None:
    traffic = read("-m m -b 2 --concurrency-range 1 --input-data steps", count=3)
    assert [(request.elements, request.nbytes) for request in traffic.requests] == [((2,), 0), ((1,), 0), ((2,), 0)]
    assert read("-m m --shape I:3,2 --input-data random").requests[0].elements == (6,)


def flags(traffic: RequestTraffic) -> list[tuple[int | str, bool, bool]]:
    return [(request.sequence, request.start, request.end) for request in traffic.requests]


def test_lists_of_data_are_sequences() -> None:
    assert flags(read("-m m --input-data sequences --concurrency-range 1", count=6)) == [
        (1, True, False),
        (1, False, False),
        (1, False, True),
        (2, True, False),
        (2, False, True),
        (3, True, False),
    ]


def test_sequences_take_turns_at_a_rate() -> None:
    words = "-m m --request-rate-range 10 --num-of-sequences 2 --sequence-length 2 --sequence-length-variation 0"
    assert flags(read(words, seconds=0.65)) == [
        (1, True, False),
        (2, True, False),
        (1, False, True),
        (2, False, True),
        (3, True, False),
        (4, True, False),
    ]


def test_lengths_of_sequences_vary() -> None:
    traffic = read("-m m --sequence-length 10 --sequence-length-variation 50", count=2000)
    ends = [at for at, request in enumerate(traffic.requests) if request.end]
    lengths = [later - earlier for earlier, later in pairwise(ends)]
    assert (min(lengths) >= 5, max(lengths) <= 15) == (True, True)
    assert len(set(lengths)) > 4


def test_sizes_are_those_of_texts_and_bytes() -> None:
    data = [{"A": ["ab", "c"], "B": {"b64": base64.b64encode(bytes(7)).decode()}}, {"A": ["x"], "B": [1.5]}]
    sizes = read_input_data(json.dumps({"data": data}), "f")
    assert sizes == [[InputData(4 + 2 + 4 + 1 + 7)], [InputData(0)]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "perf_analyzer's options: the following arguments are required: -m"),
        ("-m m -b 0", "argument -b/--batch-size: expected a whole number of at least 1, not '0'"),
        ("-m m --concurrency-range x", "--concurrency-range must begin with a number of more than 0, not 'x'"),
        ("-m m --concurrency-range 1 --request-rate-range 1", "expected one of --concurrency-range, "),
        ("-m m --shape I", "--shape must be NAME:SIZE,SIZE,..., not 'I'"),
    ],
)
def test_options_that_say_nothing_are_named(words: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read(words)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1\nx\n", "f, line 2: expected an interval in whole microseconds, not 'x'"),
        ("-1", "f, line 1: expected an interval in whole microseconds, not '-1'"),
        ("", "f: expected intervals of more than 0 us, one a line, found none"),
        ("0\n0\n", "f: expected intervals of more than 0 us, one a line, found none"),
    ],
)
def test_intervals_that_are_none(text: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_intervals(text, "f")
    assert caught.value.message == said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "f: expected an object with an array 'data' of requests"),
        ({"data": []}, "f: expected an object with an array 'data' of requests"),
        ({"data": [1]}, "f: element 1 of data: expected an object with an input's name for each value, not 1"),
        ({"data": [{"I": 1}]}, "f: element 1 of data: I: expected an array of values, or an object with b64, not 1"),
        ({"data": [{"I": {"b64": "?"}}]}, "f: element 1 of data: I: b64 is not base64"),
        ({"data": [{"I": {"content": [], "shape": "3"}}]}, "shape of I must be an array of sizes, not '3'"),
    ],
)
def test_data_that_are_none(data: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_input_data(json.dumps(data), "f")
    assert said in caught.value.message


def test_a_file_that_is_not_json() -> None:
    with pytest.raises(InvalidArgumentError, match="f: not JSON"):
        read_input_data("{", "f")
