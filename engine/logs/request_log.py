"""The request log: what was asked of a server and when, so that it can be asked again (docs/request_logs.md).

A log is text, one JSON object a line. A line tells of one arrival, or of several:

    {"log":"trireme-requests","format":2,"began":"2026-11-28T09:00:00.000Z"}
    {"offset_s":0.012345,"model":"digits","rows":4,"bytes":3136,"priority":1,"timeout_us":5000,"protocol":"http"}
    {"offset_s":[0.0125,0.0131],"model":"sums","rows":1,"bytes":64,"sequence":[42,7],"start":true,"protocol":"grpc"}
    {"dropped":12}

Rules:
 1. `offset_s` counts from the first moment of the log. A field that has its default value is left out; `model` and
    `offset_s` never are.
 2. A field whose value is a list has a value for each arrival of the line, and there are as many as in `offset_s`. A
    value that is no list holds for all of them. `elements` always does, and is a list itself.
 3. Lines, and the arrivals in them, have no order: who reads a log puts them in order.
 4. The line with `log` begins a file. Logs without one are read, too (format 1). A later one, of a file that was put
    behind another, shifts the offsets behind it by the time between the two beginnings.
 5. With `clients` in that line the log describes a closed loop: offsets mean nothing, and each client takes the next
    request, in the order of the lines, when it was answered and has thought for `think_s` on average. The requests of a
    sequence are one client's.
 6. `dropped` tells of requests that were not logged because there was no room.

Contents of tensors, names of clients (but for the names that access rules give them) and ids of requests are not
logged: scheduling does not depend on them. Of generated text there are the numbers of tokens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, get_args, get_type_hints

from ..errors import InvalidArgumentError
from ..generation.records import read_durations
from ..request import LATEST

NAME: Final = "trireme-requests"
FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class LoggedResult:
    """What a server did with a request.

    Attributes:
        total_us: from when the server had received it to its final answer.
        queue_us, input_us, infer_us, output_us: in the queue, and in the phases of its execution; 0 if it was not
            executed, as those of ensembles, and those that the response cache answered.
        batch: rows of the batch that it was executed in; 0 if it was not.
        instance: which executed it.
        outcome: empty if it was answered; the reason of a refusal (`RefusalReason`), `cancelled`, or `failed`.

    Of a request for generated text (`engine.generation.records`); its `queue_us` end when its prompt is in a step
    first, and all that follows is `infer_us`:
        first_token_us: until its first token; 0 if it got none.
        paused_us: of `infer_us`, when it was in no step.
        preemptions: how often it made room for others.
        step_pieces, step_share: how often its texts were in a step, and the steps that this makes if one with several
            texts counts for each by its part.
        step_tokens, kv: means over these steps: of the tokens computed, and the part of the memory of keys and values
            that was in use.
        between_us: its tokens: how often which duration came, as `MICROSECONDSxCOUNT,...`.
    """

    total_us: float
    queue_us: float = 0.0
    input_us: float = 0.0
    infer_us: float = 0.0
    output_us: float = 0.0
    batch: int = 0
    instance: str = ""
    outcome: str = ""
    first_token_us: float = 0.0
    paused_us: float = 0.0
    preemptions: int = 0
    step_pieces: int = 0
    step_share: float = 0.0
    step_tokens: float = 0.0
    kv: float = 0.0
    between_us: str = ""

    def __post_init__(self) -> None:
        if self.between_us:
            read_durations(self.between_us)


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """An arrival.

    Attributes:
        offset_s: seconds since the log began.
        model, version: for whom; `LATEST` for no version in particular.
        nbytes: of all inputs; 0 for unknown. In the file: `bytes`.
        elements: of a row, for each input with a variable dimension, in the order of the model's configuration.
        priority, timeout_us: as the client asked; 0 for nothing.
        sequence: correlation id; 0 for none.
        ensemble: the model is one.
        tenant: what access rules call the client.
        protocol: `http`, `grpc`, `stream` (gRPC's), or empty for unknown.
        prompt_tokens: of a request for generated text; 0 for any other.
        found_tokens: of the prompt, those that were in memory already, since another one began alike.
        max_tokens: that each choice could have.
        choices: texts that were asked for.
        generated_tokens: of all choices; 0 for unknown.
        result: what came of it; None if the log does not tell.
    """

    offset_s: float
    model: str
    version: int = LATEST
    rows: int = 1
    nbytes: int = 0
    elements: tuple[int, ...] = ()
    priority: int = 0
    timeout_us: int = 0
    sequence: int | str = 0
    start: bool = False
    end: bool = False
    ensemble: bool = False
    tenant: str = ""
    protocol: str = ""
    prompt_tokens: int = 0
    found_tokens: int = 0
    max_tokens: int = 0
    choices: int = 1
    generated_tokens: int = 0
    result: LoggedResult | None = None

    def to_line(self) -> str:
        """The line, ended."""
        shown = _shown(self)
        if self.result is not None:
            shown |= _shown(self.result)
        return json.dumps(shown, separators=(",", ":")) + "\n"


@dataclass(frozen=True, slots=True)
class LoggedLoop:
    """Clients who ask one thing after the other.

    Attributes:
        think_s: how long one waits on average after an answer; drawn from an exponential distribution.
    """

    clients: int
    think_s: float = 0.0

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise InvalidArgumentError(f"clients must be at least 1, not {self.clients!r}")
        if not 0 <= self.think_s < math.inf:
            raise InvalidArgumentError(f"think_s must be at least 0 and finite, not {self.think_s!r}")


@dataclass(frozen=True, slots=True)
class RequestTraffic:
    """What a log holds.

    Attributes:
        requests: in order of arrival.
        loop: who asks, if they wait for answers; the offsets mean nothing then.
        dropped: how many requests the log has not got, as far as it says.
        began: when, in UTC; empty for unknown.
    """

    requests: Sequence[LoggedRequest]
    loop: LoggedLoop | None = None
    dropped: int = field(default=0, compare=False)
    began: str = field(default="", compare=False)

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].offset_s - self.requests[0].offset_s if self.requests else 0.0


_IN_FILE = {"nbytes": "bytes"}
"""Fields that are called otherwise there."""


def _shown(record: LoggedRequest | LoggedResult) -> dict[str, Any]:
    values = {each.name: getattr(record, each.name) for each in fields(record) if each.name != "result"}
    defaults = {each.name: each.default for each in fields(record)}
    return {_IN_FILE.get(name, name): value for name, value in values.items() if value != defaults[name]}


def header_line(began: str = "", loop: LoggedLoop | None = None) -> str:
    """The line that begins a file."""
    head: dict[str, Any] = {"log": NAME, "format": FORMAT}
    if began:
        head["began"] = began
    if loop is not None:
        head |= {"clients": loop.clients, "think_s": loop.think_s}
    return json.dumps(head, separators=(",", ":")) + "\n"


def write_request_log(traffic: RequestTraffic) -> Iterator[str]:
    """The lines of a log, ended."""
    yield header_line(traffic.began, traffic.loop)
    for request in traffic.requests:
        yield request.to_line()
    if traffic.dropped:
        yield f'{{"dropped":{traffic.dropped}}}\n'


# ---- reading ----


def _types_of(record: type) -> dict[str, tuple[type, ...]]:
    hints = get_type_hints(record)
    types = {each.name: get_args(hints[each.name]) or (hints[each.name],) for each in fields(record)}
    return {_IN_FILE.get(name, name): (int, float) if float in kinds else kinds for name, kinds in types.items()}


_RESULT_TYPES = _types_of(LoggedResult)
_REQUEST_TYPES = {name: kinds for name, kinds in _types_of(LoggedRequest).items() if name not in ("result", "elements")}
_TYPES = {**_REQUEST_TYPES, "elements": (list,), **_RESULT_TYPES}
_HEAD_TYPES = {"log": (str,), "format": (int,), "began": (str,), "clients": (int,), "think_s": (int, float)}
_LONGEST_S = 1e9
"""Of a log: 31 years, which clocks can tell in nanoseconds."""

_LEAST: dict[str, float] = {
    **dict.fromkeys(("offset_s", "bytes", "priority", "timeout_us", "batch", "think_s", "dropped"), 0),
    **dict.fromkeys(("prompt_tokens", "found_tokens", "max_tokens", "generated_tokens"), 0),
    **dict.fromkeys(
        ("first_token_us", "paused_us", "preemptions", "step_pieces", "step_share", "step_tokens", "kv"), 0
    ),
    "choices": 1,
    **dict.fromkeys(("total_us", "queue_us", "input_us", "infer_us", "output_us"), 0),
    "version": LATEST,
    "rows": 1,
    "clients": 1,
}
_IN_RECORD = {shown: name for name, shown in _IN_FILE.items()}


class _Reader:
    """Takes lines, and has what they told."""

    def __init__(self) -> None:
        self.requests: list[LoggedRequest] = []
        self.loop: LoggedLoop | None = None
        self.dropped = 0
        self.began = ""
        self._shift_s = 0.0

    def take(self, line: str, where: str) -> None:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{where}: not JSON: {error}") from error
        if not isinstance(values, dict):
            raise InvalidArgumentError(f"{where}: expected an object, not {type(values).__name__}")
        if "log" in values:
            self._take_head(values, where)
        elif values.keys() == {"dropped"}:
            _check("dropped", values["dropped"], (int,), where)
            self.dropped += values["dropped"]
        else:
            self.requests += self._arrivals(values, where)

    def _take_head(self, values: dict[str, Any], where: str) -> None:
        for name, value in values.items():
            if name not in _HEAD_TYPES:
                raise _unknown(name, _HEAD_TYPES, where)
            _check(name, value, _HEAD_TYPES[name], where)
        if values["log"] != NAME or values.get("format") != FORMAT:
            found = f"{values['log']!r}, format {values.get('format')}"
            raise InvalidArgumentError(f"{where}: expected a log '{NAME}' of format {FORMAT}, not {found}")
        began = values.get("began", "")
        if self.requests and self.began and began:
            self._shift_s = max(0.0, _seconds(began, where) - _seconds(self.began, where))
        elif began:
            _seconds(began, where)
            self.began = self.began or began
        if "clients" in values:
            self.loop = LoggedLoop(values["clients"], values.get("think_s", 0.0))

    def _arrivals(self, values: dict[str, Any], where: str) -> Iterator[LoggedRequest]:
        elements = values.pop("elements", [])
        _check("elements", elements, (list,), where)
        for each in elements:
            _check("each of elements", each, (int,), where)
        columns = {name: value for name, value in values.items() if isinstance(value, list)}
        for name, value in values.items():
            kinds = _TYPES.get(name)
            if kinds is None:
                raise _unknown(name, _TYPES, where)
            for each in value if name in columns else (value,):
                _check(name, each, kinds, where)
        missing = [each for each in ("offset_s", "model") if each not in values]
        if missing:
            raise InvalidArgumentError(f"{where}: {' and '.join(missing)} missing")
        count = len(columns["offset_s"]) if "offset_s" in columns else 1
        for name, column in columns.items():
            if len(column) != count or "offset_s" not in columns:
                raise InvalidArgumentError(f"{where}: {name} has {len(column)} values, for {count} arrivals")
        single = {name: value for name, value in values.items() if name not in columns}
        for row in zip(*columns.values(), strict=True) if columns else [()]:
            arrival = {**single, **dict(zip(columns, row, strict=True)), "elements": tuple(elements)}
            arrival["offset_s"] += self._shift_s
            yield _request(arrival, where)


def _request(values: Mapping[str, Any], where: str) -> LoggedRequest:
    told = {name: value for name, value in values.items() if name in _RESULT_TYPES}
    given = {_IN_RECORD.get(name, name): value for name, value in values.items() if name not in _RESULT_TYPES}
    try:
        result = LoggedResult(**{"total_us": 0.0, **told}) if told else None
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{where}: between_us: {error.message}") from error
    return LoggedRequest(**given, result=result)


def read_traffic(lines: Iterable[str], where: str = "the request log") -> RequestTraffic:
    """What a log holds; empty lines are passed over.

    Args:
        where: what errors call it.

    Raises:
        InvalidArgumentError: a line is none of a log; the text has its number, what was found and what was expected.
    """
    reader = _Reader()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            reader.take(line, f"line {number} of {where}")
    requests = reader.requests
    if reader.loop is None:
        requests = sorted(requests, key=lambda request: request.offset_s)
    return RequestTraffic(requests, reader.loop, reader.dropped, reader.began)


def read_request_log(lines: Iterable[str]) -> Sequence[LoggedRequest]:
    """The arrivals of a log, in order.

    Raises:
        InvalidArgumentError: see `read_traffic`; or the log describes a closed loop, which has no times.
    """
    traffic = read_traffic(lines)
    if traffic.loop is not None:
        raise InvalidArgumentError("the request log describes a closed loop, expected one with times of arrivals")
    return traffic.requests


def _seconds(began: str, where: str) -> float:
    try:
        return datetime.fromisoformat(began).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"{where}: began must be a time, not {began!r}") from error


def _unknown(name: str, known: Mapping[str, Any], where: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{where}: unknown field {name!r}; known are {', '.join(known)}")


def _check(name: str, value: Any, types: tuple[type, ...], where: str) -> None:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        expected = " or ".join(each.__name__ for each in types)
        raise InvalidArgumentError(f"{where}: {name} must be {expected}, not {value!r}")
    least = _LEAST.get(name)
    if least is not None and not least <= value < math.inf:
        raise InvalidArgumentError(f"{where}: {name} must be at least {least} and finite, not {value!r}")
    if name == "offset_s" and value > _LONGEST_S:
        raise InvalidArgumentError(f"{where}: offset_s must be at most {_LONGEST_S:.0f}, not {value!r}")
