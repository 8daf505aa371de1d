"""The request log: what was asked of a server and when, so that a simulation can ask it again.

A log is text, one JSON object a line, one line an arrival, in order of arrival:

    {"offset_s":0.012345,"model":"digits","rows":4,"priority":1,"timeout_us":5000}
    {"offset_s":0.0125,"model":"simple_sequence","sequence":42,"start":true}

`offset_s` counts from the first moment of the log. A field that has its default value is left out; `model` and
`offset_s` never are. Contents of tensors, names of clients and ids are not logged: scheduling does not depend on them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_args, get_type_hints

from ..clock import Clock
from ..errors import InvalidArgumentError
from ..request import LATEST, InferenceRequest


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """An arrival.

    Attributes:
        offset_s: seconds since the log began.
        model, version: for whom; `LATEST` for no version in particular.
        priority, timeout_us: as the client asked; 0 for nothing.
        sequence: correlation id; 0 for none.
    """

    offset_s: float
    model: str
    version: int = LATEST
    rows: int = 1
    priority: int = 0
    timeout_us: int = 0
    sequence: int | str = 0
    start: bool = False
    end: bool = False

    def to_line(self) -> str:
        """The line, ended."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = {field.name: values[field.name] for field in fields(self) if values[field.name] != field.default}
        return json.dumps(shown, separators=(",", ":")) + "\n"


class RequestLog:
    """Writes a log as requests arrive.

    Args:
        write: takes each line, ended.
        clock: the log begins now.
    """

    def __init__(self, write: Callable[[str], object], clock: Clock) -> None:
        self._write = write
        self._clock = clock
        self._began_ns = clock.now_ns()

    def arrived(self, request: InferenceRequest, rows: int) -> None:
        """A request was accepted, or refused for lack of room; `rows` is its batch size."""
        offset_s = (self._clock.now_ns() - self._began_ns) / 1e9
        sequence = (request.correlation_id or 0, request.sequence_start, request.sequence_end)
        wanted = (rows, request.priority, request.timeout_us)
        self._write(LoggedRequest(offset_s, request.model_name, request.model_version, *wanted, *sequence).to_line())


_TYPES = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(LoggedRequest).items()}
_TYPES["offset_s"] = (int, float)
_LEAST = {"offset_s": 0, "version": LATEST, "rows": 1, "priority": 0, "timeout_us": 0}


def read_request_log(lines: Iterable[str]) -> Iterator[LoggedRequest]:
    """The arrivals of a log; empty lines are passed over.

    Raises:
        InvalidArgumentError: a line is not an arrival, or is earlier than the one before it; the text has its number.
    """
    before_s = 0.0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        arrival = _read_line(line, f"line {number} of the request log")
        if arrival.offset_s < before_s:
            raise InvalidArgumentError(
                f"line {number} of the request log: offset_s {arrival.offset_s} is less than {before_s} before it"
            )
        before_s = arrival.offset_s
        yield arrival


def _read_line(line: str, where: str) -> LoggedRequest:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise InvalidArgumentError(f"{where}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise InvalidArgumentError(f"{where}: expected an object, not {type(values).__name__}")
    for name, value in values.items():
        _check(name, value, where)
    missing = [f.name for f in fields(LoggedRequest) if f.default is MISSING and f.name not in values]
    if missing:
        raise InvalidArgumentError(f"{where}: {' and '.join(missing)} missing")
    return LoggedRequest(**values)


def _check(name: str, value: Any, where: str) -> None:
    types = _TYPES.get(name)
    if types is None:
        raise InvalidArgumentError(f"{where}: unknown field {name!r}; known are {', '.join(_TYPES)}")
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        expected = " or ".join(each.__name__ for each in types)
        raise InvalidArgumentError(f"{where}: {name} must be {expected}, not {value!r}")
    least = _LEAST.get(name)
    if least is not None and not least <= value < math.inf:
        raise InvalidArgumentError(f"{where}: {name} must be at least {least} and finite, not {value!r}")
