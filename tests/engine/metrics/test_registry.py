"""Other parts of the server can add families, each in its place."""

from __future__ import annotations

from collections.abc import Iterator

from trireme.engine.metrics.family import MetricFamily
from trireme.engine.metrics.page import MetricsRegistry, Scrape, Section


def entries_counted(scrape: Scrape) -> Iterator[MetricFamily]:
    yield MetricFamily("second", "help", "gauge", len(scrape.entries))


def test_sources_of_a_section_are_asked_in_the_order_in_which_they_were_added() -> None:
    registry = MetricsRegistry()
    registry.add(Section.LAST, lambda _scrape: [MetricFamily("first", "help", "gauge", 1)])
    registry.add(Section.LAST, entries_counted)
    registry.add(Section.SUMMARIES, lambda _scrape: [MetricFamily("elsewhere", "help", "gauge", 1)])
    assert [family.name for family in registry.families(Section.LAST, Scrape())] == ["first", "second"]
    assert [family.name for family in registry.families(Section.SUMMARIES, Scrape())] == ["elsewhere"]
    assert list(registry.families(Section.MODEL_COUNTERS, Scrape())) == []
