"""A history as an SVG picture: the lanes of the text timeline, to scale, with a tooltip on each bar.

Batches, and the kernels that belong to them, have the same colour.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from .history import History
from .lanes import Bar, BarLane, QueueLane, picture

MARGIN = 200
WIDTH = 960
LANE_HEIGHT = 28
BAR_HEIGHT = 22
SCALE_HEIGHT = 24
TICKS = 10
CHARACTER_WIDTH = 7.2
COLOURS = ("#9ecae1", "#fdbe85", "#a1d99b", "#dadaeb", "#fcbba1", "#c7e9c0", "#d9d9d9", "#fee391")


def draw_svg(history: History) -> str:
    """The picture, a complete SVG document."""
    shown = picture(history)
    scale = WIDTH / max(1, shown.end_ns)
    height = SCALE_HEIGHT + LANE_HEIGHT * len(shown.lanes) + 6
    size = f'width="{MARGIN + WIDTH + 40}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for tick in range(TICKS + 1):
        x = MARGIN + WIDTH * tick / TICKS
        label = f"{shown.end_ns * tick / TICKS / 1e6:g} ms"
        parts.append(f'<text x="{x:.1f}" y="14" text-anchor="middle" fill="#555">{label}</text>')
        parts.append(f'<line x1="{x:.1f}" y1="18" x2="{x:.1f}" y2="{height}" stroke="#ddd"/>')
    for index, lane in enumerate(shown.lanes):
        top = SCALE_HEIGHT + LANE_HEIGHT * index
        parts.append(f'<text x="6" y="{top + 15}">{escape(lane.title)}</text>')
        if isinstance(lane, QueueLane):
            parts.append(_queue(lane, top, scale, shown.end_ns))
        else:
            parts += _bars(lane, top, scale)
    return "\n".join([*parts, "</svg>\n"])


def _queue(lane: QueueLane, top: int, scale: float, end_ns: int) -> str:
    """The depth as steps, the deepest as high as a bar."""
    deepest = max(1, *(depth for _, depth in lane.depths))
    bottom = top + BAR_HEIGHT
    points = [f"{MARGIN},{bottom}"]
    y = float(bottom)
    for at_ns, depth in lane.depths:
        x = MARGIN + at_ns * scale
        points.append(f"{x:.1f},{y:.1f}")
        y = bottom - BAR_HEIGHT * depth / deepest
        points.append(f"{x:.1f},{y:.1f}")
    end = MARGIN + end_ns * scale
    points += [f"{end:.1f},{y:.1f}", f"{end:.1f},{bottom}"]
    title = f"<title>{escape(lane.title)}: {deepest} at most</title>"
    return f'<polygon points="{" ".join(points)}" fill="#eee" stroke="#999">{title}</polygon>'


def _bars(lane: BarLane, top: int, scale: float) -> Iterator[str]:
    for bar in lane.bars:
        x, width = MARGIN + bar.start_ns * scale, (bar.end_ns - bar.start_ns) * scale
        colour = COLOURS[bar.batch % len(COLOURS)]
        yield (
            f'<rect x="{x:.1f}" y="{top}" width="{max(width, 0.5):.1f}" height="{BAR_HEIGHT}" fill="{colour}" '
            f'stroke="#555" stroke-width="0.5"><title>{escape(_tooltip(bar))}</title></rect>'
        )
        if len(bar.label) * CHARACTER_WIDTH < width - 4:
            yield f'<text x="{x + 3:.1f}" y="{top + 15}">{escape(bar.label)}</text>'


def _tooltip(bar: Bar) -> str:
    return f"{bar.label} (batch {bar.batch}): {bar.start_ns / 1e6:g} ms to {bar.end_ns / 1e6:g} ms"
