"""Reads what perf_analyzer is told to send, as a request log: its options, and the files of `--request-intervals` and
`--input-data`.

Options that say nothing about the load (addresses, protocols, how long to measure) are passed over. Contents are not
read: of each request there are the sizes that the data give. As perf_analyzer does:

 1. `--concurrency-range N` is a closed loop of N clients, `--request-rate-range R` sends R requests a second at equal
    intervals, or, with `--request-distribution poisson`, at random; `--request-intervals FILE` sends at the intervals
    of the file, in microseconds, one a line, over and over. Of a range the first value counts. Without any it is one
    client.
 2. Each element of `data` is a request, and they are sent in turn. An element that is a list is a sequence of requests.
 3. `--sequence-length` (20, plus or minus `--sequence-length-variation` percent) is that of sequences without data;
    with a rate, `--num-of-sequences` of them (4) are open at a time, and take turns.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle, islice
from random import Random
from typing import Any, NoReturn

from ..errors import InvalidArgumentError
from ..request import LATEST
from .generators import poisson_offsets
from .request_log import LoggedLoop, LoggedRequest, RequestTraffic

_SEQUENCE_LENGTH, _VARIATION_PERCENT, _OPEN_SEQUENCES = 20, 20.0, 4


@dataclass(frozen=True, slots=True)
class InputData:
    """The sizes of a request's inputs.

    Attributes:
        nbytes: 0 for unknown.
        elements: of those inputs whose shape the data give.
    """

    nbytes: int = 0
    elements: tuple[int, ...] = ()


def read_intervals(text: str, where: str) -> list[float]:
    """A file of intervals, in seconds.

    Raises:
        InvalidArgumentError: a line is none; the text names it.
    """
    intervals: list[float] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                interval_us = int(line)
            except ValueError:
                interval_us = -1
            if interval_us < 0:
                raise InvalidArgumentError(
                    f"{where}, line {number}: expected an interval in whole microseconds, not {line.strip()!r}"
                )
            intervals.append(interval_us / 1e6)
    if not any(intervals):
        raise InvalidArgumentError(f"{where}: expected intervals of more than 0 us, one a line, found none")
    return intervals


def read_input_data(text: str, where: str) -> list[list[InputData]]:
    """A file of input data: sequences, or, each by itself, requests.

    Raises:
        InvalidArgumentError: it is none; the text says what was found, and what was expected.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{where}: not JSON: {error}") from error
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list) or not data:
        raise InvalidArgumentError(f"{where}: expected an object with an array 'data' of requests")
    sequences: list[list[InputData]] = []
    for number, element in enumerate(data, start=1):
        steps = element if isinstance(element, list) else [element]
        sequences.append([_input_data(step, f"{where}: element {number} of data") for step in steps])
    return sequences


def _input_data(step: Any, where: str) -> InputData:
    if not isinstance(step, dict):
        raise InvalidArgumentError(f"{where}: expected an object with an input's name for each value, not {step!r}")
    nbytes, known, elements = 0, True, []
    for name, value in step.items():
        content, shape = value, None
        if isinstance(value, dict) and "b64" not in value:
            content, shape = value.get("content"), value.get("shape")
        if shape is not None:
            if not isinstance(shape, list) or not all(isinstance(dim, int) and dim >= 0 for dim in shape):
                raise InvalidArgumentError(f"{where}: shape of {name} must be an array of sizes, not {shape!r}")
            elements.append(math.prod(shape))
        size = _content_bytes(content, f"{where}: {name}")
        nbytes, known = nbytes + size, known and size > 0
    return InputData(nbytes if known else 0, tuple(elements))


def _content_bytes(content: Any, where: str) -> int:
    """Of an input; 0 for numbers, whose type the file does not tell."""
    if isinstance(content, dict) and "b64" not in content and "content" in content:
        content = content["content"]
    if isinstance(content, dict) and isinstance(content.get("b64"), str):
        try:
            return len(base64.b64decode(content["b64"], validate=True))
        except binascii.Error as error:
            raise InvalidArgumentError(f"{where}: b64 is not base64: {error}") from error
    if not isinstance(content, list):
        raise InvalidArgumentError(f"{where}: expected an array of values, or an object with b64, not {content!r}")
    if content and all(isinstance(each, str) for each in content):
        return sum([4 + len(each.encode()) for each in content])
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidArgumentError(f"perf_analyzer's options: {message}")


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-m", dest="model", required=True)
    parser.add_argument("-x", dest="version", default="")
    parser.add_argument("-b", "--batch-size", dest="rows", type=_whole, default=1)
    parser.add_argument("--concurrency-range", dest="concurrency")
    parser.add_argument("-t", dest="concurrency")
    parser.add_argument("--request-rate-range", dest="rate")
    parser.add_argument("--request-distribution", choices=("constant", "poisson"), default="constant")
    parser.add_argument("--request-intervals", dest="intervals")
    parser.add_argument("--input-data", dest="data", action="append", default=[])
    parser.add_argument("--shape", dest="shapes", action="append", default=[])
    parser.add_argument("--sequence-length", type=_whole, default=0)
    parser.add_argument("--sequence-length-variation", type=float, default=_VARIATION_PERCENT)
    parser.add_argument("--num-of-sequences", type=_whole, default=0)
    return parser


def _whole(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, not {text!r}")
    return int(text)


def read_perf_analyzer(
    words: Sequence[str], read_file: Callable[[str], str], *, seconds: float, count: int, seed: int = 1
) -> RequestTraffic:
    """What perf_analyzer would send.

    Args:
        words: its options.
        read_file: the text of a file that they name.
        seconds: of a load with a rate.
        count: requests of a closed loop.
        seed: of what is random.

    Raises:
        InvalidArgumentError: an option or a file says nothing that makes sense.
        OSError: a file cannot be read.
    """
    given, _ = _parser().parse_known_args(list(words))
    if sum(each is not None for each in (given.concurrency, given.rate, given.intervals)) > 1:
        raise InvalidArgumentError("expected one of --concurrency-range, --request-rate-range, --request-intervals")
    chance = Random(seed)
    data = [
        each for name in given.data if name not in ("random", "zero") for each in read_input_data(read_file(name), name)
    ]
    stateful = bool(given.sequence_length or given.num_of_sequences or any(len(each) > 1 for each in data))
    open_at_a_time = given.num_of_sequences or _OPEN_SEQUENCES
    if given.rate is None and given.intervals is None:
        clients = round(_first(given.concurrency or "1", "--concurrency-range"))
        requests = list(islice(_requests(given, data, stateful, 1, chance), count))
        return RequestTraffic(requests, LoggedLoop(clients))
    if given.intervals is not None:
        offsets: Iterator[float] = accumulate(cycle(read_intervals(read_file(given.intervals), given.intervals)))
    else:
        rate_hz = _first(given.rate or "", "--request-rate-range")
        poisson = given.request_distribution == "poisson"
        offsets = poisson_offsets(chance, rate_hz) if poisson else accumulate(cycle([1 / rate_hz]))
    timed: list[LoggedRequest] = []
    for at_s, request in zip(offsets, _requests(given, data, stateful, open_at_a_time, chance), strict=False):
        if at_s >= seconds:
            break
        timed.append(replace(request, offset_s=round(at_s, 6)))
    return RequestTraffic(timed)


def _first(text: str, option: str) -> float:
    """Of a range."""
    try:
        value = float(text.partition(":")[0])
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise InvalidArgumentError(f"{option} must begin with a number of more than 0, not {text!r}")
    return value


def _requests(
    given: argparse.Namespace, data: list[list[InputData]], stateful: bool, open_at_a_time: int, chance: Random
) -> Iterator[LoggedRequest]:
    """Requests without an end; sequences take turns."""
    shapes = tuple(_elements(text) for text in given.shapes)
    steps_in_turn = cycle(data or [[InputData()]])
    version = int(given.version) if given.version.isdecimal() else LATEST

    def request(step: InputData, sequence: int, start: bool = False, end: bool = False) -> LoggedRequest:
        sizes = given.rows * step.nbytes, step.elements or shapes
        return LoggedRequest(0.0, given.model, version, given.rows, *sizes, 0, 0, sequence, start, end)

    if not stateful:
        while True:
            for step in next(steps_in_turn):
                yield request(step, 0)
    numbers = iter(range(1, 1 << 62))

    def sequence() -> Iterator[LoggedRequest]:
        number, steps = next(numbers), next(steps_in_turn)
        length = len(steps) if data else _length(given, chance)
        for at, step in enumerate(islice(cycle(steps), length)):
            yield request(step, number, at == 0, at == length - 1)

    opened = [sequence() for _ in range(open_at_a_time)]
    for place in cycle(range(open_at_a_time)):
        step = next(opened[place], None)
        if step is None:
            opened[place] = sequence()
            step = next(opened[place])
        yield step


def _length(given: argparse.Namespace, chance: Random) -> int:
    length = given.sequence_length or _SEQUENCE_LENGTH
    spread = length * given.sequence_length_variation / 100
    return max(1, round(chance.uniform(length - spread, length + spread)))


def _elements(text: str) -> int:
    """Of `NAME:3,224,224`."""
    try:
        return math.prod([int(dim) for dim in text.rpartition(":")[2].split(",")])
    except ValueError as error:
        raise InvalidArgumentError(f"--shape must be NAME:SIZE,SIZE,..., not {text!r}") from error
