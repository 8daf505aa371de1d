"""The metrics of models that generate text."""

from __future__ import annotations

from trireme.engine.generation.blocks import BlockMemory
from trireme.engine.generation.iterations import IterationCounts, IterationLimits, Iterations
from trireme.engine.generation.requests import Generation
from trireme.engine.metrics.generation import generation_families, load_series
from trireme.engine.metrics.page import write_text
from trireme.engine.metrics.statistics import GenerationStatistics, ModelStatistics, ModelStatisticsEntry


def instance(counts: IterationCounts) -> Iterations:
    """One with a text that is in its steps and one that waits, of 4 tokens each, on 3 blocks of 2 tokens."""
    limits = IterationLimits(context=9, most_tokens=8, most_running=4)
    made = Iterations(BlockMemory(3, 2, shares=False), limits, lambda _generation: None, counts=counts)
    for number in range(2):
        made.arrive(Generation(number, [1, 2, 3, 4], 1))
    assert made.begin_step(0.0) is not None
    return made


def test_instances_are_added_up_under_the_models_labels() -> None:
    generated = GenerationStatistics()
    for name in ("m_0", "m_1"):
        generated.instances[name] = instance(generated.counts)
    generated.counts.swaps = 5
    generated.first_token.add(0.2)
    generated.between_tokens.add(0.004)
    entries = [
        ModelStatisticsEntry("other", 1, ModelStatistics()),
        ModelStatisticsEntry("m", 3, ModelStatistics(generated=generated)),
    ]
    lines = [line for line in write_text(generation_families(entries)).splitlines() if not line.startswith("#")]
    labels, name = '{model="m",version="3"}', "trireme_generation"
    assert [line for line in lines if "seconds" not in line] == [
        f"{name}_prompt_tokens_total{labels} 8",
        f"{name}_prefix_hit_tokens_total{labels} 0",
        f"{name}_tokens_total{labels} 0",
        f'{name}_preemptions_total{{by="swap",model="m",version="3"}} 5',
        f'{name}_preemptions_total{{by="recomputation",model="m",version="3"}} 0',
        f"{name}_running{labels} 2",
        f"{name}_waiting{labels} 2",
        f"{name}_kv_blocks_used{labels} 4",
        f"{name}_kv_blocks{labels} 6",
    ]
    assert f"{name}_first_token_seconds_sum{labels} 0.2" in lines
    assert f'{name}_between_tokens_seconds_bucket{{model="m",version="3",le="0.005"}} 1' in lines


def test_other_models_have_no_series() -> None:
    assert load_series([ModelStatisticsEntry("m", 1, ModelStatistics())]) == []
    assert write_text(generation_families([ModelStatisticsEntry("m", 1, ModelStatistics())])) == ""
