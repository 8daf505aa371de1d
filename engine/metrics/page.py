"""The page of metrics as text, and where other parts of the server put families of their own among Triton's
(docs/reference/metrics.md#families-of-a-model, docs/reference/response-cache.md#metrics-of-the-local-cache,
docs/reference/metrics.md#custom-metrics).

A family source is called at every scrape, on the event loop, and must not wait for anything. Within a section,
sources stand in the order in which they were added.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .family import MetricFamily, Sample
from .statistics import ModelStatisticsEntry

DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Scrape:
    """What all families of one scrape are made from, so that they agree.

    Attributes:
        now_ns: when it is, for what is forgotten with time.
        counter_latencies: False where durations and cache counters are left out (docs/reference/metrics.md#settings).
    """

    entries: Sequence[ModelStatisticsEntry] = ()
    now_ns: int = 0
    counter_latencies: bool = True
    quantiles: Sequence[float] = DEFAULT_QUANTILES


class Section(enum.Enum):
    """Where on the page added families stand."""

    MODEL_COUNTERS = "after the pinned memory pool, before the histograms and summaries"
    SUMMARIES = "after the summaries of latencies"
    LAST = "after the CPU's families: backends, caches, custom metrics"


FamilySource = Callable[[Scrape], Iterable[MetricFamily]]


class MetricsRegistry:
    """The families that a server has besides those that every server has."""

    def __init__(self) -> None:
        self._sources: dict[Section, list[FamilySource]] = {section: [] for section in Section}

    def add(self, section: Section, source: FamilySource) -> None:
        """Print what `source` makes, in every scrape from now on."""
        self._sources[section].append(source)

    def families(self, section: Section, scrape: Scrape) -> Iterator[MetricFamily]:
        for source in self._sources[section]:
            yield from source(scrape)


# Metric families as text, the way Triton's library writes them (docs/reference/metrics.md).
#
# Differences from prometheus-client's own writer, which is why this one exists: counters keep their names (no
# ``_total``), labels are sorted, whole numbers have no decimals, a family without series is left out,
# and summaries and histograms begin with ``_count`` and ``_sum``.


_LAST_LABELS = ("quantile", "le")
_LARGEST_PLAIN = 2**64


def write_text(families: Iterable[MetricFamily]) -> str:
    """The families in the text format, in the order given."""
    lines: list[str] = []
    for family in families:
        samples = _series_in_order(family)
        if samples:
            lines.append(f"# HELP {family.name} {_escaped(family.documentation)}")
            lines.append(f"# TYPE {family.name} {family.type}")
            lines += samples
    return "".join(f"{line}\n" for line in lines)


def _series_in_order(family: MetricFamily) -> list[str]:
    samples: Iterable[Sample] = family.samples
    if family.type in ("summary", "histogram"):
        samples = _grouped(family.name, samples)
    named = family.name if family.type == "counter" else None
    return [_line(named or sample.name, sample.labels, sample.value) for sample in samples]


def _grouped(name: str, samples: Iterable[Sample]) -> Iterable[Sample]:
    """Samples series by series, each with its count and sum first."""
    series: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        identity = tuple(sorted(item for item in sample.labels.items() if item[0] not in _LAST_LABELS))
        series.setdefault(identity, []).append(sample)
    first = (f"{name}_count", f"{name}_sum")
    for group in series.values():
        yield from sorted(group, key=lambda sample: (sample.name != first[0], sample.name != first[1]))


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    names = sorted(labels, key=lambda label: (label in _LAST_LABELS, label))
    values = ((label, _escaped(labels[label]).replace('"', '\\"')) for label in names)
    written = ",".join(f'{label}="{value}"' for label, value in values)
    return f"{name}{{{written}}} {number_text(value)}" if written else f"{name} {number_text(value)}"


def number_text(value: float) -> str:
    """A number as it is printed: without decimals if it is whole."""
    if math.isnan(value):
        return "Nan"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < _LARGEST_PLAIN else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


# ---- the way back: a page as values ----

MetricValues = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
"""By name and labels."""

_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_metrics(text: str) -> MetricValues:
    """The lines of a page of metrics that stand for one value."""
    found = {}
    for line in text.splitlines():
        parsed = None if line.startswith("#") else _LINE.match(line)
        if parsed is not None:
            labels = frozenset(_LABEL.findall(parsed[2] or ""))
            found[parsed[1], labels] = float(parsed[3])
    return found
