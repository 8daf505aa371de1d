"""The metrics of encoders."""

from __future__ import annotations

from trireme.engine.generation.encodings import EncodedText, Encodings
from trireme.engine.metrics.encoding import encoding_families
from trireme.engine.metrics.page import write_text
from trireme.engine.metrics.statistics import EncodingStatistics, ModelStatistics, ModelStatisticsEntry


def instance() -> Encodings:
    """One with a text in a step and one that waits."""
    made = Encodings(4)
    for _ in range(2):
        made.arrive(EncodedText(4))
    assert len(made.begin_step()) == 1
    return made


def test_instances_are_added_up_under_the_models_labels() -> None:
    encoded = EncodingStatistics(instances={"m_0": instance(), "m_1": instance()})
    encoded.texts = 5
    encoded.step_tokens.add(100)
    encoded.wait.add(0.2)
    entries = [
        ModelStatisticsEntry("other", 1, ModelStatistics()),
        ModelStatisticsEntry("m", 3, ModelStatistics(encoded=encoded)),
    ]
    lines = write_text(encoding_families(entries)).splitlines()
    labels, name = '{model="m",version="3"}', "trireme_encoding"
    for line in (
        f"{name}_texts_total{labels} 5",
        f"{name}_running{labels} 2",
        f"{name}_waiting{labels} 2",
        f"{name}_step_tokens_sum{labels} 100",
        f"{name}_wait_seconds_count{labels} 1",
        f'{name}_step_tokens_bucket{{model="m",version="3",le="128"}} 1',
    ):
        assert line in lines


def test_other_models_have_no_series() -> None:
    assert write_text(encoding_families([ModelStatisticsEntry("m", 1, ModelStatistics())])) == ""
