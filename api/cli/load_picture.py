"""What models did between two looks at a server: rates, batches, times, queues (docs/command-line.md#top)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...engine.metrics.page import MetricValues

Version = tuple[str, str]
"""Name and version of a model."""

HEADER = (
    *("model", "ver", "state", "req/s", "rows", "queue"),
    *("wait ms", "run ms", "fail/s", "inst", "sealed", "refused/s"),
)

GENERATING = ("tok/s", "kv")
"""What follows if there are models that generate text: tokens in a second, and how much of the memory of keys and
values is in use."""


_TOKENS = "trireme_generation_tokens_total"


@dataclass(frozen=True, slots=True)
class LoadLook:
    """One look.

    Attributes:
        statistics: of each version, as the statistics extension tells them.
        states: of each version in the repository index; the reason follows a failure.
        metrics: values by family and labels; empty if the metrics port does not answer.
    """

    at_s: float
    statistics: Mapping[Version, Mapping[str, Any]]
    states: Mapping[Version, str]
    metrics: MetricValues = field(default_factory=dict)

    def of_version(self, family: str, version: Version) -> dict[str, float]:
        """Values of a family, by what is left of the labels: a reason, or nothing."""
        found: dict[str, float] = {}
        for (name, labels), value in self.metrics.items():
            known = dict(labels)
            if name == family and (known.pop("model", ""), known.pop("version", "")) == version:
                found[known.get("reason", "")] = found.get(known.get("reason", ""), 0.0) + value
        return found


def titles(now: LoadLook) -> tuple[str, ...]:
    """Those of the columns of a `picture`."""
    return HEADER + GENERATING if any(name == _TOKENS for name, _ in now.metrics) else HEADER


def picture(before: LoadLook, now: LoadLook) -> list[tuple[str, ...]]:
    """A row for each version, the busiest first; what is not known is a dash."""
    generating = titles(now) is not HEADER
    seconds = max(now.at_s - before.at_s, 1e-9)
    rows = []
    for version in sorted({*now.states, *now.statistics}):
        old, new = before.statistics.get(version, {}), now.statistics.get(version, {})
        requests = _grown(old, new, "success", "count") + _grown(old, new, "fail", "count")
        cells = [*version, now.states.get(version, "READY"), *_cells(version, before, now, seconds)]
        if generating:
            cells += _generated(version, before, now, seconds)
        rows.append((requests, tuple(cells)))
    return [row for _, row in sorted(rows, key=lambda each: (-each[0], each[1]))]


def _cells(version: Version, before: LoadLook, now: LoadLook, seconds: float) -> Iterator[str]:
    old, new = before.statistics.get(version, {}), now.statistics.get(version, {})
    if not new:
        yield from "-" * (len(HEADER) - 3)
        return
    succeeded, failed = _grown(old, new, "success", "count"), _grown(old, new, "fail", "count")
    executions = new.get("execution_count", 0) - old.get("execution_count", 0)
    rows = new.get("inference_count", 0) - old.get("inference_count", 0)
    yield f"{(succeeded + failed) / seconds:.1f}"
    yield f"{rows / executions:.1f}" if executions > 0 else "-"
    yield _whole(now.of_version("nv_inference_pending_request_count", version))
    queued = _grown(old, new, "queue", "count")
    yield f"{_grown(old, new, 'queue', 'ns') / queued / 1e6:.2f}" if queued > 0 else "-"
    parts = sum(_grown(old, new, name, "ns") for name in ("compute_input", "compute_infer", "compute_output"))
    computed = _grown(old, new, "compute_infer", "count")
    yield f"{parts / computed / 1e6:.2f}" if computed > 0 else "-"
    yield f"{failed / seconds:.1f}"
    yield _whole(now.of_version("trireme_instance_count", version))
    family = "trireme_batch_sealed_count"
    earlier, later = before.of_version(family, version), now.of_version(family, version)
    yield _sealed({reason: count - earlier.get(reason, 0.0) for reason, count in later.items()})
    family = "trireme_refused_total"
    earlier, later = before.of_version(family, version), now.of_version(family, version)
    yield _refused({reason: count - earlier.get(reason, 0.0) for reason, count in later.items()}, seconds)


def _generated(version: Version, before: LoadLook, now: LoadLook, seconds: float) -> Iterator[str]:
    tokens = now.of_version(_TOKENS, version)
    blocks = sum(now.of_version("trireme_generation_kv_blocks", version).values())
    used = sum(now.of_version("trireme_generation_kv_blocks_used", version).values())
    count, earlier = sum(tokens.values()), sum(before.of_version(_TOKENS, version).values())
    yield f"{(count - earlier if count >= earlier else count) / seconds:.1f}" if tokens else "-"
    yield f"{used / blocks:.0%}" if blocks else "-"


def _grown(old: Mapping[str, Any], new: Mapping[str, Any], name: str, part: str) -> int:
    def value(record: Mapping[str, Any]) -> int:
        return int(record.get("inference_stats", {}).get(name, {}).get(part, 0))

    grown = value(new) - value(old)
    return grown if grown >= 0 else value(new)  # the model was loaded anew


def _whole(values: Mapping[str, float]) -> str:
    return f"{sum(values.values()):.0f}" if values else "-"


def _sealed(counts: Mapping[str, float]) -> str:
    """Why batches were sealed, the commonest two reasons."""
    total = sum(counts.values())
    if total <= 0:
        return "-"
    common = sorted(counts.items(), key=lambda each: -each[1])[:2]
    return ", ".join(f"{reason} {count / total:.0%}" for reason, count in common if count > 0)


def _refused(counts: Mapping[str, float], seconds: float) -> str:
    """How many requests were refused in a second, and why most of them."""
    total = sum(counts.values())
    if total <= 0:
        return "-"
    reason, _ = max(counts.items(), key=lambda each: each[1])
    return f"{total / seconds:.1f} {reason}"


def lines(header: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """The picture as text."""
    from .text_table import text_table

    yield from text_table(header, rows)
