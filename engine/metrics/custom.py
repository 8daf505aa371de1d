"""Metrics that models and backends define for themselves (docs/reference/metrics.md#custom-metrics,
docs/reference/python-backend.md#metrics-and-the-log).

Rule 1. A family is known by its name. A caller that creates one that exists already, of the same kind, shares it, and
        keeps a hold of it; of another kind, is refused. It is gone when the last holder has deleted it.
Rule 2. A series is known by its family and its labels. A caller that creates one that exists already shares it, with
        the value and the buckets that it has. It is gone when the last holder has deleted it.
Rule 3. A holder's metrics go with the holder's family. Using one afterwards is an error, and nothing else happens.
Rule 4. A series is on the page from its creation on, at 0. A family without series is not.

Holders are numbers, so that a backend can hand them to a process of its own. Callable from any thread.
"""

from __future__ import annotations

import enum
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise

from ..errors import InternalError, InvalidArgumentError, UnsupportedError
from .families import add_histogram
from .family import MetricFamily
from .statistics import Histogram


class MetricKind(enum.Enum):
    """How a metric behaves. The value is how the page calls it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_Labels = tuple[tuple[str, str], ...]

_FAMILY_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_SERVERS_OWN = re.compile(
    r"nv_inference_|nv_model_load_duration|nv_pinned_memory_pool_|nv_cache_|nv_gpu_|nv_energy_|nv_cpu_|trireme_"
)
_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)


@dataclass(slots=True)
class _Series:
    """Attributes: `value` of a counter or gauge, `histogram` of a histogram; `holders`, how many metrics share it."""

    labels: _Labels
    histogram: Histogram | None
    value: float = 0.0
    holders: int = 0


@dataclass(slots=True)
class _Family:
    name: str
    description: str
    kind: MetricKind
    series: dict[_Labels, _Series] = field(default_factory=dict)
    holders: int = 0


@dataclass(frozen=True, slots=True)
class _HeldMetric:
    family: _Family
    held_by: int
    series: _Series


class CustomMetrics:
    """Whatever uses a metric raises `InternalError` if that was deleted, and `UnsupportedError` if it is of a kind that
    has no such operation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._families: dict[str, _Family] = {}
        self._held_families: dict[int, tuple[_Family, set[int]]] = {}  # with its metrics
        self._held_metrics: dict[int, _HeldMetric] = {}

    def create_family(self, name: str, description: str, kind: MetricKind) -> int:
        """Create a family, or take hold of the one of that name and kind (rule 1); its description stays as it is.

        Raises:
            InvalidArgumentError: it is of another kind, or no family of a model can have that name.
        """
        if not _FAMILY_NAME.fullmatch(name):
            raise InvalidArgumentError(f"'{name}' is no name for a metric family: expected {_FAMILY_NAME.pattern}")
        _check_text("the description of a metric family", description)
        if _SERVERS_OWN.match(name):
            raise InvalidArgumentError(f"Family name '{name}' is reserved for metrics of the server")
        with self._lock:
            family = self._families.get(name)
            if family is None:
                family = self._families[name] = _Family(name, description, kind)
            elif family.kind is not kind:
                raise InvalidArgumentError("Family name already exists with different type")
            family.holders += 1
            number = next(self._numbers)
            self._held_families[number] = (family, set())
            return number

    def delete_family(self, family: int) -> None:
        """Let go of a family, and of the metrics that were created by it (rule 3).

        Raises:
            InvalidArgumentError: it is not held.
        """
        with self._lock:
            held, metrics = self._find_family(family)
            for metric in metrics:
                self._let_go(self._held_metrics.pop(metric))
            del self._held_families[family]
            held.holders -= 1
            if not held.holders:
                del self._families[held.name]

    def create_metric(
        self, family: int, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> int:
        """Create a series, or take hold of the one with the same labels (rule 2).

        Args:
            buckets: upper bounds, increasing, of a histogram's; infinity is added.

        Raises:
            InvalidArgumentError: the family is not held, or labels or buckets are not what it needs.
        """
        identity = _checked_labels(labels or {})
        with self._lock:
            held, metrics = self._find_family(family)
            bounds = _checked_buckets(held.kind, identity, buckets)
            series = held.series.get(identity)
            if series is None:
                series = held.series[identity] = _Series(identity, None if bounds is None else Histogram(bounds))
            series.holders += 1
            number = next(self._numbers)
            self._held_metrics[number] = _HeldMetric(held, family, series)
            metrics.add(number)
            return number

    def delete_metric(self, metric: int) -> None:
        """Let go of a series. Nothing happens if it went with its family."""
        with self._lock:
            held = self._held_metrics.pop(metric, None)
            if held is not None:
                self._held_families[held.held_by][1].remove(metric)
                self._let_go(held)

    def increment(self, metric: int, value: float) -> None:
        """Add to a counter or gauge; `InvalidArgumentError` if a counter would fall."""
        with self._using(metric, "Increment", MetricKind.COUNTER, MetricKind.GAUGE) as held:
            if held.family.kind is MetricKind.COUNTER and value < 0:
                raise InvalidArgumentError(
                    "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
                )
            held.series.value += value

    def set(self, metric: int, value: float) -> None:
        """Set a gauge."""
        with self._using(metric, "Set", MetricKind.GAUGE) as held:
            held.series.value = value

    def observe(self, metric: int, value: float) -> None:
        """Count a value in a histogram."""
        with self._using(metric, "Observe", MetricKind.HISTOGRAM) as held:
            assert held.series.histogram is not None
            held.series.histogram.add(value)

    def value(self, metric: int) -> float:
        """What a counter or gauge stands at."""
        with self._using(metric, "", MetricKind.COUNTER, MetricKind.GAUGE) as held:
            return held.series.value

    @contextmanager
    def _using(self, metric: int, operation: str, *kinds: MetricKind) -> Iterator[_HeldMetric]:
        """See the class on what this raises."""
        with self._lock:
            held = self._held_metrics.get(metric)
            if held is None:
                raise InternalError(_DELETED)
            if held.family.kind not in kinds:
                named = f"TRITONSERVER_METRIC_KIND_{held.family.kind.name} does not support {operation}"
                raise UnsupportedError(named if operation else "Unsupported TRITONSERVER_MetricKind")
            yield held

    def values(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Labels and values of all series of a counter or gauge family; none if there is no such family."""
        with self._lock:
            family = self._families.get(name)
            if family is None:
                return []
            return [(dict(series.labels), series.value) for series in family.series.values()]

    def families(self) -> list[MetricFamily]:
        """What is to be printed, in the order of creation."""
        with self._lock:
            return [_printed(family) for family in self._families.values()]

    def _find_family(self, family: int) -> tuple[_Family, set[int]]:
        held = self._held_families.get(family)
        if held is None:
            raise InvalidArgumentError(f"there is no metric family {family}: it was deleted, or never created")
        return held

    def _let_go(self, held: _HeldMetric) -> None:
        held.series.holders -= 1
        if not held.series.holders:
            del held.family.series[held.series.labels]


def _checked_labels(labels: Mapping[str, str]) -> _Labels:
    """The labels in a form that equal ones share.

    Raises:
        InvalidArgumentError: a name or a value cannot be printed.
    """
    for name, value in labels.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise InvalidArgumentError("attempt to access JSON non-string as string")
        if not _LABEL_NAME.fullmatch(name):
            raise InvalidArgumentError(f"'{name}' is no name for a label: expected {_LABEL_NAME.pattern}")
        _check_text(f"the value of label '{name}'", value)
    return tuple(sorted(labels.items()))


def _check_text(what: str, text: str) -> None:
    """Refuse what the page could not be encoded with.

    Raises:
        InvalidArgumentError: there is a lone surrogate in it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{what} is no valid Unicode: {text!a}") from error


def _checked_buckets(kind: MetricKind, labels: _Labels, buckets: Sequence[float] | None) -> Sequence[float] | None:
    """The bounds for a series of this kind; None where there are none.

    Raises:
        InvalidArgumentError: there are none but should be, or the other way round, or they do not increase.
    """
    if kind is not MetricKind.HISTOGRAM:
        if buckets is not None:
            raise InvalidArgumentError("Failed to create metric. Unexpected buckets found.")
        return None
    if buckets is None:
        raise InvalidArgumentError("Failed to create metric. Missing required buckets.")
    if not all(lower < upper for lower, upper in pairwise(buckets)):
        raise InvalidArgumentError(f"the bounds of a histogram must increase, got {list(buckets)}")
    if any(name == "le" for name, _ in labels):
        raise InvalidArgumentError("'le' is no name for a label of a histogram: its buckets have it")
    return buckets


def _printed(family: _Family) -> MetricFamily:
    printed = MetricFamily(family.name, family.description, family.kind.value)
    for series in family.series.values():
        labels = dict(series.labels)
        if series.histogram is None:
            printed.add(labels, series.value)
        else:
            add_histogram(printed, labels, series.histogram)
    return printed
