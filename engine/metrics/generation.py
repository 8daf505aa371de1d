"""What models that generate text did (docs/metrics.md#generated-text)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .families import add_histogram, model_labels
from .family import MetricFamily
from .statistics import ModelStatisticsEntry

LOAD_FAMILY = "nv_trt_llm_kv_cache_block_metrics"
"""What the backend of TensorRT-LLM calls the use of its cache (docs/reference/generate.md#load-metrics-header)."""


def load_series(entries: Iterable[ModelStatisticsEntry]) -> list[tuple[dict[str, str], float]]:
    """The memory of all models that generate text, as `LOAD_FAMILY` tells it; nothing if there is none."""
    all_generated = [entry.statistics.generated for entry in entries]
    memories = [core.memory for each in all_generated if each is not None for core in list(each.instances.values())]
    blocks = sum(memory.count for memory in memories)
    if not blocks:
        return []
    tokens = sum(memory.count * memory.size for memory in memories)
    used = blocks - sum(memory.free for memory in memories)
    values = {"tokens_per": tokens / blocks, "used": used, "max": blocks}
    return [({"kv_cache_block_type": name}, value) for name, value in values.items()]


def generation_families(entries: Iterable[ModelStatisticsEntry]) -> Iterator[MetricFamily]:
    """Of the models that generate text; without series where there are none."""
    first = MetricFamily(
        "trireme_generation_first_token_seconds", "Duration from a request to its first token", "histogram"
    )
    between = MetricFamily(
        "trireme_generation_between_tokens_seconds", "Duration from one token of a text to the next", "histogram"
    )
    prompts = MetricFamily(
        "trireme_generation_prompt_tokens_total", "Number of tokens of prompts that have begun", "counter"
    )
    found = MetricFamily(
        "trireme_generation_prefix_hit_tokens_total", "Number of those tokens that were in memory already", "counter"
    )
    tokens = MetricFamily("trireme_generation_tokens_total", "Number of tokens generated", "counter")
    preempted = MetricFamily(
        "trireme_generation_preemptions_total",
        "Number of times that a text had to make room, by how it comes back",
        "counter",
    )
    running = MetricFamily("trireme_generation_running", "Number of texts that are in the steps", "gauge")
    waiting = MetricFamily("trireme_generation_waiting", "Number of texts that wait to be", "gauge")
    used = MetricFamily("trireme_generation_kv_blocks_used", "Number of blocks of keys and values in use", "gauge")
    blocks = MetricFamily("trireme_generation_kv_blocks", "Number of blocks of keys and values", "gauge")
    for entry in entries:
        generated = entry.statistics.generated
        if generated is None:
            continue
        labels = model_labels(entry)
        counts, texts, memory = generated.counts, generated.texts, generated.blocks
        add_histogram(first, labels, generated.first_token)
        add_histogram(between, labels, generated.between_tokens)
        prompts.add(labels, counts.prompts)
        found.add(labels, counts.found)
        tokens.add(labels, counts.drawn)
        preempted.add({**labels, "by": "swap"}, counts.swaps)
        preempted.add({**labels, "by": "recomputation"}, counts.recomputations)
        running.add(labels, texts[0])
        waiting.add(labels, texts[1])
        used.add(labels, memory[0])
        blocks.add(labels, memory[1])
    yield from (first, between, prompts, found, tokens, preempted, running, waiting, used, blocks)
