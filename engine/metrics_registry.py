"""Where other parts of the server put families of their own among Triton's
(docs/reference/metrics.md#families-of-a-model, docs/reference/response-cache.md#metrics-of-the-local-cache,
docs/reference/metrics.md#custom-metrics).

A family source is called at every scrape, on the event loop, and must not wait for anything. Within a section,
sources stand in the order in which they were added.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from .metrics_latencies import DEFAULT_QUANTILES
from .statistics import ModelStatisticsEntry


@dataclass(frozen=True, slots=True)
class Scrape:
    """What all families of one scrape are made from, so that they agree.

    Attributes:
        entries: the statistics of every model version that serves.
        now_ns: when it is, for what is forgotten with time.
        counter_latencies: False where durations and cache counters are left out (docs/reference/metrics.md#settings).
        quantiles: what summaries show.
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


FamilySource = Callable[[Scrape], Iterable[Metric]]


class MetricsRegistry:
    """The families that a server has besides those that every server has."""

    def __init__(self) -> None:
        self._sources: dict[Section, list[FamilySource]] = {section: [] for section in Section}

    def add(self, section: Section, source: FamilySource) -> None:
        """Print what `source` makes, in every scrape from now on."""
        self._sources[section].append(source)

    def remove(self, section: Section, source: FamilySource) -> None:
        """Print it no more.

        Raises:
            ValueError: it was not added there.
        """
        self._sources[section].remove(source)

    def families(self, section: Section, scrape: Scrape) -> Iterator[Metric]:
        """What all sources of a section make."""
        for source in self._sources[section]:
            yield from source(scrape)

    def __repr__(self) -> str:
        counts = ", ".join(f"{section.name} {len(sources)}" for section, sources in self._sources.items())
        return f"<MetricsRegistry: {counts}>"
