"""The metrics of what adaptive batchers have learnt."""

from __future__ import annotations

from trireme.engine.config.model import DynamicBatching
from trireme.engine.metrics.adaptive import adaptive_families
from trireme.engine.metrics.page import write_text
from trireme.engine.metrics.statistics import ModelStatistics, ModelStatisticsEntry
from trireme.engine.scheduling.adaptive import AdaptiveBatcher


def lines(batcher: AdaptiveBatcher) -> list[str]:
    other = ModelStatisticsEntry("other", 1, ModelStatistics())
    entry = ModelStatisticsEntry("m", 3, ModelStatistics(learnt=batcher))
    return [line for line in write_text(adaptive_families([other, entry])).splitlines() if not line.startswith("#")]


def test_model_with_an_objective_shows_it_and_what_was_chosen() -> None:
    """No service time is made up before the first batch is over."""
    assert lines(AdaptiveBatcher(DynamicBatching(), 4, 0.25)) == [
        'trireme_adaptive_objective_seconds{model="m",version="3"} 0.25',
        'trireme_adaptive_target_batch_size{model="m",version="3"} 4',
        'trireme_adaptive_delay_seconds{model="m",version="3"} 0',
    ]


def test_service_times_are_shown_by_size_as_soon_as_any_is_known() -> None:
    batcher = AdaptiveBatcher(DynamicBatching(), 4, 0.25)
    batcher.times.learn(2, 0.125)
    assert lines(batcher)[3:] == [
        'trireme_adaptive_service_seconds{batch_size="1",model="m",version="3"} 0.125',
        'trireme_adaptive_service_seconds{batch_size="2",model="m",version="3"} 0.125',
        'trireme_adaptive_service_seconds{batch_size="4",model="m",version="3"} 0.125',
    ]


def test_models_without_an_objective_have_no_series() -> None:
    assert write_text(adaptive_families([ModelStatisticsEntry("m", 1, ModelStatistics())])) == ""
