"""When a GPU copied and when it computed: how much of the one is hidden behind the other, and a picture of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[float, float]
"""Microseconds: from, to."""

ROWS = ("copies in", "computation", "copies out")
_COLOURS = ("#4477aa", "#228833", "#ee6677")
_WIDTH, _ROW, _LEFT, _TOP = 1100, 34, 110, 40


@dataclass(frozen=True)
class Timeline:
    """What the GPU did, each list in order of time."""

    copies_in: Sequence[Span]
    computation: Sequence[Span]
    copies_out: Sequence[Span]

    @property
    def rows(self) -> tuple[Sequence[Span], ...]:
        return (self.copies_in, self.computation, self.copies_out)

    def hidden(self) -> float:
        """The share of the copies' time during which something was computed; 0 if nothing was copied."""
        copies = merged([*self.copies_in, *self.copies_out])
        total = length(copies)
        return length(overlap(copies, merged(self.computation))) / total if total else 0.0

    def busy(self) -> float:
        """The share of the time, from the first to the last thing, in which something was computed."""
        everything = merged(span for row in self.rows for span in row)
        if not everything:
            return 0.0
        return length(merged(self.computation)) / (everything[-1][1] - everything[0][0])


def timeline(events: Iterable[tuple[str, float, float]]) -> Timeline:
    """From what a profiler saw on the GPU: names, as CUDA's tools spell them, and times in microseconds."""
    rows: dict[str, list[Span]] = {"in": [], "compute": [], "out": []}
    for name, start, end in events:
        kind = "in" if "HtoD" in name else "out" if "DtoH" in name else "compute"
        rows[kind].append((start, end))
    return Timeline(*(sorted(row) for row in rows.values()))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same times, without overlaps, in order."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def overlap(left: Sequence[Span], right: Sequence[Span]) -> list[Span]:
    """Times that are in both; neither has overlaps of its own."""
    result: list[Span] = []
    at = 0
    for start, end in left:
        while at < len(right) and right[at][1] <= start:
            at += 1
        probe = at
        while probe < len(right) and right[probe][0] < end:
            result.append((max(start, right[probe][0]), min(end, right[probe][1])))
            probe += 1
    return result


def length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


def picture(shown: Timeline, title: str, window_us: float = 20_000.0) -> str:
    """An SVG of the middle of a timeline, one row for each kind of work."""
    everything = merged(span for row in shown.rows for span in row)
    first, last = (everything[0][0], everything[-1][1]) if everything else (0.0, window_us)
    begin = max(first, (first + last - window_us) / 2)
    end = min(last, begin + window_us)
    scale = (_WIDTH - _LEFT) / max(end - begin, 1.0)
    height = _TOP + len(ROWS) * _ROW + 24
    fonts = 'font-family="sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" {fonts}>',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="22">{title}</text>',
    ]
    for at, (name, colour, row) in enumerate(zip(ROWS, _COLOURS, shown.rows, strict=True)):
        y = _TOP + at * _ROW
        parts.append(f'<text x="8" y="{y + 18}">{name}</text>')
        for start, stop in overlap(merged(row), [(begin, end)]):
            x, width = _LEFT + (start - begin) * scale, max((stop - start) * scale, 0.3)
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 8}" fill="{colour}"/>')
    milliseconds = (end - begin) / 1000
    parts.append(f'<text x="{_LEFT}" y="{height - 8}">{milliseconds:.1f} ms</text></svg>')
    return "\n".join(parts)
