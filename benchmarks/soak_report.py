"""What a soak has shown: whether anything grew, as a verdict, a JSON document and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN, GAP = 960, 130, 70, 34
_MIB = 1 << 20


@dataclass(frozen=True)
class Series:
    """Something that is sampled, and may not grow.

    Attributes:
        name: of a sample's field.
        share, floor: it is flat if its median in the last quarter is above that in the second by no more than this
            share of it, or than this much.
        unit: how much of it is one in the picture.
    """

    name: str
    title: str
    share: float
    floor: float
    unit: float = 1.0


SERIES = (
    Series("rss_bytes", "memory (RSS), MiB", 0.05, 12 * _MIB, _MIB),
    Series("tasks", "trio tasks", 0.1, 10),
    Series("descriptors", "open descriptors", 0.1, 10),
    Series("threads", "threads", 0.1, 4),
)

Sample = Mapping[str, float]
"""``at_s`` since the load began, and a value for each of `SERIES`."""


@dataclass(frozen=True)
class Growth:
    """One series' medians: in the second quarter of the time, and in the last."""

    series: Series
    second: float
    last: float

    @property
    def allowed(self) -> float:
        return max(self.series.share * self.second, self.series.floor)

    @property
    def flat(self) -> bool:
        return self.last - self.second <= self.allowed

    def __str__(self) -> str:
        unit = self.series.unit
        verdict = "flat" if self.flat else "GROWS"
        return f"{self.series.title}: {self.second / unit:.1f} -> {self.last / unit:.1f}, {verdict}"


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """What became of each series.

    Raises:
        ValueError: there are not enough samples for quarters.
    """
    end_s = max((sample["at_s"] for sample in samples), default=0.0)
    second = [sample for sample in samples if end_s / 4 <= sample["at_s"] < end_s / 2]
    last = [sample for sample in samples if sample["at_s"] >= end_s * 3 / 4]
    if not second or not last:
        raise ValueError(f"{len(samples)} samples are too few to be compared")
    return [
        Growth(
            series,
            statistics.median(sample[series.name] for sample in second),
            statistics.median(sample[series.name] for sample in last),
        )
        for series in SERIES
    ]


def left_behind(before: Sample, after: Sample) -> list[str]:
    """What was there after the last client had gone and not before the first one came. Memory does not count: what a
    process once had it may keep."""
    limits = {"tasks": 5, "descriptors": 8}
    return [
        f"{after[name] - before[name]:g} more {name} than before the load"
        for name, limit in limits.items()
        if after[name] - before[name] > limit
    ]


def as_json(samples: Sequence[Sample], counts: Mapping[str, int], complaints: Mapping[str, int]) -> dict[str, Any]:
    """Everything, for machines."""
    return {
        "growth": {
            growth.series.name: {
                "second_quarter": growth.second,
                "last_quarter": growth.last,
                "allowed": growth.allowed,
                "flat": growth.flat,
            }
            for growth in growths(samples)
        },
        "actions": dict(sorted(counts.items())),
        "complaints": dict(complaints),
        "samples": list(samples),
    }


def draw(samples: Sequence[Sample]) -> str:
    """The series over time, one above the other, as an SVG document."""
    end_s = max(sample["at_s"] for sample in samples) or 1.0
    total = (HEIGHT + GAP) * len(SERIES) + GAP
    size = f'width="{WIDTH + MARGIN + 20}" height="{total}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, growth in enumerate(growths(samples)):
        parts += _panel(growth, samples, end_s, GAP + index * (HEIGHT + GAP))
    for quarter in range(5):
        x = MARGIN + WIDTH * quarter / 4
        parts.append(f'<text x="{x:.0f}" y="{total - 8}" text-anchor="middle">{end_s * quarter / 4:.0f} s</text>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(growth: Growth, samples: Sequence[Sample], end_s: float, top: float) -> list[str]:
    """One series: its values, and its medians in the quarters that are compared."""
    series = growth.series
    highest = max(sample[series.name] for sample in samples) * 1.1 or 1.0

    def y(value: float) -> float:
        return top + HEIGHT * (1 - value / highest)

    points = " ".join(
        f"{MARGIN + WIDTH * sample['at_s'] / end_s:.1f},{y(sample[series.name]):.1f}" for sample in samples
    )
    colour = "#2a7" if growth.flat else "#c22"
    parts = [
        f'<text x="{MARGIN}" y="{top - 8:.0f}" fill="{colour}">{escape(str(growth))}</text>',
        f'<rect x="{MARGIN}" y="{top:.0f}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#ccc"/>',
        f'<text x="{MARGIN - 6}" y="{top + 10:.0f}" text-anchor="end">{highest / series.unit:.0f}</text>',
        f'<text x="{MARGIN - 6}" y="{top + HEIGHT:.0f}" text-anchor="end">0</text>',
        f'<polyline points="{points}" fill="none" stroke="#369"/>',
    ]
    for quarter, value in ((1, growth.second), (3, growth.last)):
        x = MARGIN + WIDTH * quarter / 4
        line = f'x1="{x:.0f}" x2="{x + WIDTH / 4:.0f}" y1="{y(value):.1f}" y2="{y(value):.1f}"'
        parts.append(f'<line {line} stroke="{colour}" stroke-width="3" opacity="0.6"/>')
    return parts
