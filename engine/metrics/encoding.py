"""What encoders did (docs/metrics.md#encoders)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .families import add_histogram, model_labels
from .family import MetricFamily
from .statistics import ModelStatisticsEntry


def encoding_families(entries: Iterable[ModelStatisticsEntry]) -> Iterator[MetricFamily]:
    """Of the encoders; without series where there are none."""
    sizes = MetricFamily("trireme_encoding_step_tokens", "Number of tokens in a step", "histogram")
    texts = MetricFamily("trireme_encoding_texts_total", "Number of texts that were in steps", "counter")
    waits = MetricFamily(
        "trireme_encoding_wait_seconds", "Duration from a request to the first step that has a text of it", "histogram"
    )
    running = MetricFamily("trireme_encoding_running", "Number of texts that are in the steps", "gauge")
    waiting = MetricFamily("trireme_encoding_waiting", "Number of texts that wait to be", "gauge")
    for entry in entries:
        encoded = entry.statistics.encoded
        if encoded is None:
            continue
        labels = model_labels(entry)
        add_histogram(sizes, labels, encoded.step_tokens)
        texts.add(labels, encoded.texts)
        add_histogram(waits, labels, encoded.wait)
        running.add(labels, encoded.now[0])
        waiting.add(labels, encoded.now[1])
    yield from (sizes, texts, waits, running, waiting)
