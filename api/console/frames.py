"""What one frame of the console's stream says: pure functions from what the server counts anyway to plain JSON.

A frame is about now, and complete but for `batches` and `requests`, which are new in it or open; so a reader that
misses some has lost nothing else. Counters are since the model was loaded: the page subtracts. Times are nanoseconds
since the stream began, or, where the name says so, microseconds. At most `MOST_MODELS` models are told of, the busiest
first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ...engine.admission.budget import BudgetStatistics
from ...engine.description import ActorNode, IndexEntry, ModelActorStatistics, ModelState
from ...engine.errors import RefusalReason
from ...engine.job import SealReason
from ...engine.metrics.batch_tap import TappedBatch, TappedRequest
from ...engine.metrics.batching_reasons import BatchingCounts, BatchingSettings
from ...engine.metrics.statistics import ModelStatistics, ModelStatisticsEntry

MOST_MODELS = 200
_MOST_SIZES = 32
_SEALS = [reason.value for reason in SealReason]

ModelKey = tuple[str, str, int]
"""Namespace, name and version of a model."""


def key_of(entry: ModelStatisticsEntry) -> ModelKey:
    return entry.namespace, entry.name, entry.version


@dataclass(frozen=True, slots=True)
class Look:
    """What a frame is made of.

    Attributes:
        entries: of versions that are ready.
        index: rows of the repository index.
        actors: of all versions.
        refused: requests that were for no model that is served.
        settings: of what decides about batches, by model.
        why: sentences, by model (`explain_batching`).
    """

    now_ns: int
    entries: Sequence[ModelStatisticsEntry]
    index: Sequence[IndexEntry]
    actors: Iterable[ModelActorStatistics]
    tree: ActorNode
    budget: BudgetStatistics
    refused: Mapping[RefusalReason, int]
    settings: Mapping[ModelKey, BatchingSettings]
    why: Mapping[ModelKey, Sequence[str]]


def frame(
    look: Look,
    began_ns: int,
    batches: Mapping[ModelKey, Sequence[TappedBatch]],
    requests: Mapping[ModelKey, Sequence[TappedRequest]] = MappingProxyType({}),
) -> dict[str, Any]:
    """One frame.

    Args:
        began_ns: when the stream began.
        batches: that were seen since the last frame.
        requests: by themselves, likewise, and all that are open.
    """
    actors = {(each.namespace, each.name, each.version): each for each in look.actors}
    rows = []
    for entry in sorted(look.entries, key=lambda each: (-each.statistics.execution_count, each.name, each.version)):
        if len(rows) < MOST_MODELS:
            key = key_of(entry)
            settings = look.settings.get(key)
            slots = settings is not None and settings.slots
            seen = [_batch(each, began_ns, slots=slots) for each in batches.get(key, ())]
            row = _model(entry, settings, actors.get(key), look.why.get(key, ()), seen)
            row["requests"] = [_request(each, began_ns) for each in requests.get(key, ())]
            rows.append(row)
    return {
        "t": look.now_ns - began_ns,
        "models": rows,
        "more": max(0, len(look.entries) - MOST_MODELS),
        "index": [_entry(each) for each in look.index[:MOST_MODELS]],
        "tree": _node(look.tree),
        "inflight": {"requests": look.budget.requests, "bytes": look.budget.bytes},
        "refused": {reason.value: count for reason, count in look.refused.items() if count},
    }


def _model(
    entry: ModelStatisticsEntry,
    settings: BatchingSettings | None,
    actors: ModelActorStatistics | None,
    why: Sequence[str],
    batches: list[list[Any]],
) -> dict[str, Any]:
    counted = entry.statistics
    return {
        "name": entry.name,
        "version": entry.version,
        "namespace": entry.namespace,
        "success": counted.success.count,
        "fail": counted.fail.count,
        "ended": counted.success.count + counted.tap.unanswered,
        "rows": counted.inference_count,
        "executions": counted.execution_count,
        "pending": counted.pending,
        "executing": 0 if actors is None else max(0, actors.inflight - counted.pending),
        "cacheHits": counted.cache_hit.count,
        "ns": {
            "total": counted.success.ns,
            "queue": counted.queue.ns,
            "input": counted.compute_input.ns,
            "compute": counted.compute_infer.ns,
            "output": counted.compute_output.ns,
        },
        "sealed": {reason.value: count for reason, count in counted.sealed.items() if count},
        "alone": {reason.value: count for reason, count in counted.alone.items() if count},
        "refused": {reason.value: count for reason, count in counted.refused.items() if count},
        "sizes": _sizes(counted),
        "instances": [0, 0] if actors is None else [actors.instances_alive, actors.instances],
        "restarts": 0 if actors is None else actors.restarts,
        "batching": None if settings is None else _batching(settings),
        "why": list(why),
        "batches": batches,
        **_generated(counted),
    }


def _generated(counted: ModelStatistics) -> dict[str, Any]:
    """Tokens, and blocks in use and of all, of a model that generates text."""
    generated = counted.generated
    return {} if generated is None else {"tokens": generated.counts.drawn, "blocks": generated.blocks}


def _sizes(counted: ModelStatistics) -> list[list[int]]:
    """Batch sizes and how often each was executed, the commonest ones, by size."""
    common = sorted(counted.batches.items(), key=lambda each: -each[1].count)[:_MOST_SIZES]
    return sorted([size, batch.count] for size, batch in common)


def _batch(batch: TappedBatch, began_ns: int, *, slots: bool) -> list[Any]:
    """``[number, instance, gpu or -1, rows, index of the reason, start, infer, output, end, over, requests, failed,
    microseconds in the queue of some requests, microseconds altogether of the same ones, slots]``. Slots are the rows
    of its requests, where each sequence has one."""
    start, infer, output, end = (mark - began_ns for mark in batch.marks)
    over = batch.over_ns - began_ns
    gpu = -1 if batch.gpu is None else batch.gpu
    waits = [(batch.marks[0] - queued) // 1000 for _, queued in batch.requests]
    totals = [(batch.over_ns - received) // 1000 for received, _ in batch.requests]
    about = [batch.number, batch.instance, gpu, batch.rows, _SEALS.index(batch.sealed)]
    places = list(batch.slots or range(batch.request_count)) if slots else []
    return [*about, start, infer, output, end, over, batch.request_count, batch.failed, waits, totals, places]


def _request(request: TappedRequest, began_ns: int) -> list[Any]:
    """``[received, start or null, end or null, result, instance]``."""
    start = request.start_ns - began_ns if request.start_ns >= 0 else None
    end = request.end_ns - began_ns if request.end_ns >= 0 else None
    return [request.received_ns - began_ns, start, end, request.result, request.instance]


def _batching(settings: BatchingSettings) -> dict[str, Any]:
    return {
        "scheduler": settings.scheduler,
        "maxBatchSize": settings.max_batch_size,
        "delayUs": settings.delay_us,
        "preferred": list(settings.preferred),
        "members": list(settings.members),
        "decoupled": settings.decoupled,
    }


def batching_counts(counted: ModelStatistics) -> BatchingCounts:
    """A copy of what is counted, with the reasons as metrics name them."""
    return BatchingCounts(
        counted.execution_count,
        counted.inference_count,
        {reason.name.lower(): count for reason, count in counted.sealed.items() if count},
        {reason.name.lower(): count for reason, count in counted.alone.items() if count},
        {reason.value: count for reason, count in counted.refused.items() if count},
    )


def _entry(entry: IndexEntry) -> list[str]:
    state = ModelState.UNAVAILABLE.value if entry.state is None else entry.state.value
    return [entry.name, entry.version, state, entry.reason]


def _node(node: ActorNode) -> dict[str, Any]:
    return {
        "kind": node.kind,
        "name": node.name,
        "state": node.state,
        "detail": node.detail,
        "restarts": node.restarts,
        "mail": node.mail,
        "room": None if math.isinf(node.room) else int(node.room),
        "children": [_node(child) for child in node.children],
    }
