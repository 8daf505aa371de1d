"""Why a model's batches are as large as they are, and why its requests were refused, in sentences: the answer to "why
did it not batch?" for the console and for ``trireme explain``.

A pure function of what was counted over some time, and of the model's settings. The commonest reason comes first; what
is rarer than one batch in a hundred is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_LEAST_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class BatchingCounts:
    """What a model version did in some time.

    Attributes:
        executions, rows: batches, and the rows in them.
        sealed: batches by the reason for which they were closed, as ``trireme_batch_sealed_count`` names it.
        alone: those of them that had a single row.
        refused: requests by reason, as ``trireme_refused_total`` names it.
    """

    executions: int = 0
    rows: int = 0
    sealed: Mapping[str, int] = field(default_factory=dict)
    alone: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)

    def since(self, earlier: BatchingCounts) -> BatchingCounts:
        """What was counted after `earlier`; all, if the model was loaded anew in between."""
        if earlier.executions > self.executions:
            return self
        return BatchingCounts(
            self.executions - earlier.executions,
            self.rows - earlier.rows,
            *(
                {reason: count - before.get(reason, 0) for reason, count in now.items()}
                for now, before in (
                    (self.sealed, earlier.sealed),
                    (self.alone, earlier.alone),
                    (self.refused, earlier.refused),
                )
            ),
        )


@dataclass(frozen=True, slots=True)
class BatchingSettings:
    """What of a model's configuration decides about its batches.

    Attributes:
        scheduler: ``default``, ``dynamic``, ``sequence`` or ``ensemble``.
        delay_us: ``max_queue_delay_microseconds``.
        queue_size: ``max_queue_size``; 0 for no limit of its own.
        members: of an ensemble.
        instances: how many there are.
        slots: each sequence has a row of its own in the batches of an instance (the strategy "direct").
        decoupled: requests may have several responses, also after their batch is over.
    """

    scheduler: str = "default"
    max_batch_size: int = 0
    delay_us: int = 0
    preferred: Sequence[int] = ()
    queue_size: int = 0
    members: Sequence[str] = ()
    instances: int = 1
    slots: bool = False
    decoupled: bool = False


def settings_of(config: Mapping[str, Any]) -> BatchingSettings:
    """From a configuration as ``GET /v2/models/M/config`` tells it."""
    ensemble, batching = config.get("ensemble_scheduling"), config.get("dynamic_batching")
    sequence = config.get("sequence_batching")
    oldest = {} if sequence is None else sequence.get("oldest") or sequence.get("direct") or {}
    given = oldest if sequence is not None else batching or {}
    kind = "sequence" if sequence is not None else "dynamic" if batching is not None else "default"
    policy = (batching or {}).get("default_queue_policy") or {}
    return BatchingSettings(
        "ensemble" if ensemble is not None else kind,
        int(config.get("max_batch_size", 0)),
        int(given.get("max_queue_delay_microseconds", 0)),
        tuple(int(size) for size in given.get("preferred_batch_size", ())),
        int(policy.get("max_queue_size", 0)),
        tuple(step["model_name"] for step in (ensemble or {}).get("step", ())),
        sum(int(group.get("count", 1)) for group in config.get("instance_group", ())) or 1,
        sequence is not None and "oldest" not in sequence,
        bool((config.get("model_transaction_policy") or {}).get("decoupled")),
    )


def explain_batching(counts: BatchingCounts, settings: BatchingSettings, when: str) -> list[str]:
    """The sentences.

    Args:
        when: over which time was counted, such as "in the last minute".
    """
    if settings.scheduler == "ensemble":
        members = ", ".join(dict.fromkeys(settings.members))
        told = [f"An ensemble forms no batches of its own: see its members {members}."]
    elif not counts.executions:
        told = [f"No batch was executed {when}."]
    else:
        told = [_summary(counts, settings, when), *_batches(counts, settings, when)]
    return [*told, *_refusals(counts, settings, when)]


def _summary(counts: BatchingCounts, settings: BatchingSettings, when: str) -> str:
    mean = counts.rows / counts.executions
    batches = _many(counts.executions, "batch", "batches")
    if not settings.max_batch_size:
        return f"{batches} ran {when}."
    return f"{batches} ran {when}, with {mean:.3g} of at most {settings.max_batch_size} rows on average."


@dataclass(frozen=True, slots=True)
class _Closed:
    """Batches that were closed for one reason: `count` of `total`, `alone` of them with a single row."""

    reason: str
    count: int
    alone: int
    total: int
    when: str
    settings: BatchingSettings

    @property
    def part(self) -> str:
        return _part(self.count, self.total)

    @property
    def single(self) -> str:
        return f", {self.alone} of them with 1 row" if self.alone else ""


def _batches(counts: BatchingCounts, settings: BatchingSettings, when: str) -> Iterator[str]:
    total = counts.executions
    if not settings.max_batch_size:
        yield (
            "Each request ran alone because the model has no batch dimension: max_batch_size is 0. If its network "
            "takes several rows, set max_batch_size."
        )
        return
    for reason, count in sorted(counts.sealed.items(), key=lambda each: -each[1]):
        if count >= max(1, _LEAST_SHARE * total):
            alone = min(counts.alone.get(reason, 0), count)
            yield _SENTENCES.get(reason, _other)(_Closed(reason, count, alone, total, when, settings))


def _full(closed: _Closed) -> str:
    return (
        f"{closed.part} were full: they had {closed.settings.max_batch_size} rows, or the next request would not have "
        "fit. If requests wait long all the same, more instances help, or a larger max_batch_size."
    )


def _preferred(closed: _Closed) -> str:
    sizes = ", ".join(map(str, closed.settings.preferred))
    return f"{closed.part} were closed at a preferred size ({sizes})."


def _delay(closed: _Closed) -> str:
    return (
        f"{closed.part} were closed because their oldest request had waited for the queue delay of "
        f"{closed.settings.delay_us} µs{closed.single}: requests come too seldom to fill a batch in that time. A "
        "longer max_queue_delay_microseconds makes batches larger, and requests wait longer."
    )


def _idle(closed: _Closed) -> str:
    if closed.settings.scheduler == "sequence":
        return f"{closed.part} took what was there when an instance was idle{closed.single}."
    because = "an instance was idle" if closed.settings.delay_us else "the queue delay is 0"
    several = closed.count - closed.alone
    if closed.alone:
        told = f"{_part(closed.alone, closed.total)} {closed.when} ran with 1 row because {because}"
        told += f", and {several} with several rows" if several else ""
    else:
        told = f"{closed.part} were closed because {because}"
    told += ": an idle instance takes at once what is there."
    if closed.alone and not closed.settings.delay_us:
        told += " With max_queue_delay_microseconds a batch waits for more."
    if closed.alone and closed.settings.instances > 1:
        told += f" Of {closed.settings.instances} instances one is idle more often than a single one."
    return told


def _shape(closed: _Closed) -> str:
    return (
        f"{closed.part} were closed because the next request did not fit beside them: its shapes, its inputs or its "
        f"priority differ{closed.single}. Send equal shapes, or allow_ragged_batch for inputs that may differ."
    )


def _unbatched(closed: _Closed) -> str:
    return (
        f"{closed.part} held one request because the model has no dynamic_batching: each request runs alone. "
        f"`dynamic_batching {{ }}` in its config.pbtxt lets up to {closed.settings.max_batch_size} rows run together."
    )


def _drain(closed: _Closed) -> str:
    return f"{closed.part} ran with what was left because the model was being unloaded."


def _strategy(closed: _Closed) -> str:
    return f"{closed.part} were closed by the model's own batching strategy{closed.single}."


def _other(closed: _Closed) -> str:
    return f"{closed.part} were closed for the reason '{closed.reason}'."


_SENTENCES = {
    "full": _full,
    "preferred": _preferred,
    "delay": _delay,
    "idle": _idle,
    "shape": _shape,
    "unbatched": _unbatched,
    "drain": _drain,
    "strategy": _strategy,
}
"""By the reason's label."""

_REFUSED = {
    "queue_full": "because its queue was full",
    "queue_timeout": "because their time in the queue was over",
    "objective": "because they would have missed the model's latency objective",
    "model_share": "because the model had its share of the server's room for requests",
    "budget": "because the server's room for requests was taken",
    "stopping": "because the model was stopping",
    "not_ready": "because the model was not ready",
    "no_instance": "because the model had no instance left",
    "invalid": "because they were not as the model wants them",
    "caller_limit": "because their caller had reached its limit",
    "permission_denied": "because their caller may not use the model",
}


def _refusals(counts: BatchingCounts, settings: BatchingSettings, when: str) -> Iterator[str]:
    for reason, count in sorted(counts.refused.items(), key=lambda each: -each[1]):
        if count > 0:
            why = _REFUSED.get(reason, f"for the reason '{reason}'")
            if reason == "queue_full" and settings.queue_size:
                why += f" (max_queue_size {settings.queue_size})"
            yield f"{_many(count, 'request was', 'requests were')} refused {when} {why}."


def _part(count: int, total: int) -> str:
    return f"{count} of {total} batches"


def _many(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
