"""A model's own metrics: `MetricFamily` and `Metric` (docs/reference/python-backend.md#metrics-and-the-log).

A metric is on the server as long as its Python object lives, and no longer than its family's.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .context import ask, asking
from .errors import TritonModelException, text
from .response import Host

_FAMILY_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class MetricKind(enum.IntEnum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    __str__ = enum.Enum.__str__


@dataclass(eq=False)
class _Registered:
    """A family on the server; its metrics hold this, and thereby see that the family is gone."""

    host: Host
    kind: MetricKind
    number: int
    deleted: bool = False


class Metric:
    """One value with its labels. Made by ``MetricFamily.Metric``; equal labels are the same value."""

    __slots__ = ("_family", "_number")

    def __init__(self, family: _Registered, number: int) -> None:
        self._family = family
        self._number = number

    def increment(self, value: float) -> None:
        """Add to a counter (not less than 0) or a gauge."""
        self._ask("Failed to increment metric value", "metric_increment", _number(value))

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._ask("Failed to set metric value", "metric_set", _number(value))

    def observe(self, value: float) -> None:
        """Count a value in a histogram."""
        self._ask("Failed to observe metric value", "metric_observe", _number(value))

    def value(self) -> float:
        """The present value of a counter or a gauge."""
        return self._ask("Failed to get metric value", "metric_value")

    def _ask(self, failure: str, method: str, *value: float) -> Any:
        if self._family.deleted:
            raise TritonModelException(f"{failure}: {_FAMILY_DELETED}")
        return ask(self._family.host, failure, method, self._number, *value)

    def __del__(self) -> None:
        if not self._family.deleted:
            self._family.host.ask("delete_metric", self._number)


def _number(value: float) -> float:
    if not hasattr(value, "__float__") and not hasattr(value, "__index__"):
        raise TypeError(f"a metric's value must be a number, found type {type(value)}")
    return float(value)


class MetricFamily:
    """A named group of metrics of one kind.

    Args:
        kind: COUNTER, GAUGE or HISTOGRAM, which are attributes of this class.

    Raises:
        TritonModelException: the server refuses it: a bad name, or the same name with another kind.
    """

    __slots__ = ("_registered",)

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        name = text("MetricFamily: name", name)
        description = text("MetricFamily: description", description)
        if not isinstance(kind, MetricKind):
            raise TypeError(f"MetricFamily: kind must be one such as MetricFamily.COUNTER, found type {type(kind)}")
        host = asking("MetricFamily")
        failure = "Error when creating MetricFamily"
        number = ask(host, failure, "create_family", name, description, kind.name.lower())
        self._registered = _Registered(host, kind, number)

    def Metric(  # noqa: N802 - its public name
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """The metric with these labels.

        Args:
            buckets: upper bounds in rising order, for a histogram, and only for one.
        """
        family = self._registered
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if family.kind is not MetricKind.HISTOGRAM:
            if buckets is not None:
                raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        elif buckets is None:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        elif not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        bounds = None if buckets is None else tuple([_number(bound) for bound in buckets])
        named = {str(key): value for key, value in (labels or {}).items()}
        number = ask(family.host, "Error when creating Metric", "create_metric", family.number, named, bounds)
        return Metric(family, number)

    def __del__(self) -> None:
        registered = getattr(self, "_registered", None)
        if registered is not None:
            registered.deleted = True
            registered.host.ask("delete_family", registered.number)
