"""A history as text: a line for each lane, time from left to right.

    one column is 5 ms
                0         50        100       150       200 ms
                |         |         |         |         |
    m queue     11111111111111111111....................
    m_0         [1=================][2=================]

A queue's line tells how many requests waited, at most, in each column (``+`` for ten or more). A batch is a bar with
the numbers of its requests, a kernel or copy one with its name; ``#`` is one that has no room for its brackets, and a
``+`` at the end of a label says that it goes on.
"""

from __future__ import annotations

from .history import History
from .lanes import Bar, BarLane, Picture, QueueLane, picture

TICK_COLUMNS = 10
UNITS = (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1))


def draw_timeline(history: History, columns: int = 80) -> str:
    """The timeline, each line ended.

    Args:
        columns: most characters that time may take up; the titles come on top.
    """
    shown = picture(history)
    column_ns = _column_ns(shown.end_ns, columns)
    margin = max((len(lane.title) for lane in shown.lanes), default=0) + 3
    lines = [f"one column is {_duration(column_ns)}", *_scale(shown, column_ns, margin)]
    width = max(1, _ceiling(shown.end_ns, column_ns))
    for lane in shown.lanes:
        cells = _queue_cells(lane, column_ns, width) if isinstance(lane, QueueLane) else _cells(lane, column_ns, width)
        lines.append(f"{lane.title:{margin}}{cells}")
    return "".join(line.rstrip() + "\n" for line in lines)


def _column_ns(end_ns: int, columns: int) -> int:
    """The shortest of 1, 2, 5, 10, 20, 50 … ns with which the columns suffice."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if _ceiling(end_ns, digit * power) <= columns:
                return digit * power
        power *= 10


def _ceiling(time_ns: int, column_ns: int) -> int:
    return -(-time_ns // column_ns)


def _unit(time_ns: int) -> tuple[str, int]:
    """The greatest unit that this is at least one of."""
    return next((unit for unit in UNITS if time_ns >= unit[1]), UNITS[-1])


def _duration(time_ns: int) -> str:
    name, unit_ns = _unit(time_ns)
    return f"{time_ns // unit_ns} {name}"


def _scale(shown: Picture, column_ns: int, margin: int) -> list[str]:
    tick_ns = TICK_COLUMNS * column_ns
    name, unit_ns = _unit(tick_ns)
    ticks = range(0, shown.end_ns + 1, tick_ns)
    labels = [str(tick // unit_ns) for tick in ticks]
    labels[-1] += f" {name}"
    return [
        " " * margin + "".join(f"{label:{TICK_COLUMNS}}" for label in labels),
        " " * margin + "".join(f"{'|':{TICK_COLUMNS}}" for _ in ticks),
    ]


def _queue_cells(lane: QueueLane, column_ns: int, width: int) -> str:
    most = [0] * width
    ends = [at_ns for at_ns, _ in lane.depths[1:]]
    for (start_ns, depth), end_ns in zip(lane.depths, [*ends, width * column_ns], strict=True):
        for column in range(start_ns // column_ns, _ceiling(end_ns, column_ns)):
            most[column] = max(most[column], depth)
    return "".join("." if depth == 0 else str(depth) if depth < 10 else "+" for depth in most)


def _cells(lane: BarLane, column_ns: int, width: int) -> str:
    cells = ["."] * width
    for bar in lane.bars:
        first = min(bar.start_ns // column_ns, width - 1)
        room = max(1, bar.end_ns // column_ns - first)
        cells[first : first + room] = _bar(bar, room)
    return "".join(cells)


def _bar(bar: Bar, room: int) -> str:
    if room == 1:
        return "#"
    inside = room - 2
    label = bar.label if len(bar.label) <= inside else bar.label[: max(0, inside - 1)] + "+"[:inside]
    return f"[{label:=<{inside}}]"
