"""Reads trace files, Triton's and ours, as request logs (docs/reference/traces.md#trace-files).

A trace of a request that a client has sent is an arrival; those of an ensemble's steps, and of requests that models
made, have a parent, and are none. What came of it is told by the timestamps. A trace does not tell batch sizes; where
its tensors were traced, the first of several dimensions of its first input is taken for that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..datatypes import BY_NAME
from ..errors import InvalidArgumentError
from ..request import LATEST
from .request_log import LoggedRequest, LoggedResult, RequestTraffic

_PROTOCOLS = {"HTTP_RECV_START": "http", "GRPC_WAITREAD_START": "grpc"}
_ARRIVALS = "HTTP_RECV_START", "REQUEST_START", "QUEUE_START"
"""The first of these that a trace has is its arrival. What gRPC notes first is when it began to wait for a request."""


@dataclass(slots=True)
class _TraceParts:
    """What a file tells of a trace."""

    model: str = ""
    version: int = LATEST
    has_parent: bool = False
    times_ns: dict[str, int] = field(default_factory=dict)
    shapes: list[tuple[tuple[int, ...], int]] = field(default_factory=list)


def read_triton_traces(texts: Iterable[tuple[str, str]]) -> RequestTraffic:
    """The requests of trace files, of one server.

    Args:
        texts: each file's name and what is in it.

    Raises:
        InvalidArgumentError: a file is none; the text has its name, and which of its elements, what was found, and what
            was expected.
    """
    traces: dict[int, _TraceParts] = {}
    for name, text in texts:
        for where, element in _elements(name, text):
            _take(traces.setdefault(_integer(element, "id", where), _TraceParts()), element, where)
    known = [parts for parts in traces.values() if parts.model and not parts.has_parent]
    arrivals = [(at_ns, parts) for parts in known if (at_ns := _arrival(parts)) is not None]
    first_ns = min((at_ns for at_ns, _ in arrivals), default=0)
    requests = [_request(parts, at_ns, first_ns) for at_ns, parts in arrivals]
    return RequestTraffic(sorted(requests, key=lambda request: request.offset_s))


def _elements(name: str, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        elements = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{name}: not JSON: {error}") from error
    if not isinstance(elements, list):
        raise InvalidArgumentError(f"{name}: expected an array of elements of traces, not {type(elements).__name__}")
    for number, element in enumerate(elements, start=1):
        where = f"{name}: element {number}"
        if not isinstance(element, dict):
            raise InvalidArgumentError(f"{where}: expected an object, not {type(element).__name__}")
        yield where, element


def _take(parts: _TraceParts, element: Mapping[str, Any], where: str) -> None:
    if "model_name" in element:
        parts.model = str(element["model_name"])
        version = element.get("model_version", LATEST)
        parts.version = version if isinstance(version, int) and version > 0 else LATEST
        parts.has_parent = bool(element.get("parent_id"))
    timestamps = element.get("timestamps", [])
    if not isinstance(timestamps, list):
        raise InvalidArgumentError(f"{where}: timestamps must be an array, not {timestamps!r}")
    for each in timestamps:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise InvalidArgumentError(f"{where}: expected a timestamp with a name and ns, not {each!r}")
        parts.times_ns.setdefault(each["name"], _integer(each, "ns", where))
    if element.get("activity") == "TENSOR_QUEUE_INPUT":
        parts.shapes.append(_shape(element.get("tensor"), where))


def _shape(tensor: Any, where: str) -> tuple[tuple[int, ...], int]:
    """Of an input: its shape, and its bytes; 0 for a type whose elements differ in size."""
    try:
        shape = tuple([int(each) for each in tensor["shape"].split(",") if each])
        datatype = BY_NAME.get(tensor["dtype"])
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"{where}: expected a tensor with a shape and a dtype, not {tensor!r}") from error
    return shape, math.prod(shape) * (0 if datatype is None else datatype.size)


def _arrival(parts: _TraceParts) -> int | None:
    return next((parts.times_ns[name] for name in _ARRIVALS if name in parts.times_ns), None)


def _request(parts: _TraceParts, at_ns: int, first_ns: int) -> LoggedRequest:
    times = parts.times_ns
    rows = parts.shapes[0][0][0] if parts.shapes and len(parts.shapes[0][0]) > 1 else 1
    protocol = next((named for name, named in _PROTOCOLS.items() if name in times), "")

    def lasted_us(first: str, last: str) -> float:
        return max(0, times[last] - times[first]) / 1e3 if first in times and last in times else 0.0

    result = None
    if "REQUEST_END" in times:
        result = LoggedResult(
            max(0, times["REQUEST_END"] - at_ns) / 1e3,
            lasted_us("QUEUE_START", "COMPUTE_START"),
            lasted_us("COMPUTE_START", "COMPUTE_INPUT_END"),
            lasted_us("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
            lasted_us("COMPUTE_OUTPUT_START", "COMPUTE_END"),
        )
    return LoggedRequest(
        (at_ns - first_ns) / 1e9,
        parts.model,
        parts.version,
        max(1, rows),
        sum([nbytes for _, nbytes in parts.shapes]),
        protocol=protocol,
        result=result,
    )


def _integer(values: Mapping[str, Any], name: str, where: str) -> int:
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgumentError(f"{where}: {name} must be an integer, not {value!r}")
    return value
