"""The results as a picture: how many times better than each peer, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .document import METRICS, SUBJECT, Document, Spread, ratio

COLOURS = {
    "triton": "#3b6ea8",
    "mlserver": "#d9822b",
    "litserve": "#6a9f4b",
    "ray-serve": "#9a5ea8",
    "runtime": "#777777",
    "earlier": "#b0a030",
}
MOST_ROWS = 16
TICKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Bar:
    """A bar of the chart: how many times better, so that more is always better."""

    row: str
    metric: str
    peer: str
    times: Spread


def bars(document: Document, featured: Collection[str] = ()) -> list[Bar]:
    """What each row is about, for every peer that has figures for it.

    Args:
        featured: keys of the rows that are shown if there are more than `MOST_ROWS`.
    """
    result: list[Bar] = []
    rows = [row for row in document.rows if row.key in featured]
    for row in rows if rows and len(document.rows) > MOST_ROWS else document.rows:
        metric = row.metrics[0]
        for peer in document.peers:
            by = None if peer == SUBJECT else ratio(document, row.key, peer, metric)
            if by is None or min(by.low, by.median) <= 0:
                continue
            if not METRICS[metric].more_is_better:
                by = Spread(1 / by.median, 1 / by.high, 1 / by.low)
            result.append(Bar(row.key, metric, peer, by))
    return result


def draw(document: Document, paths: list[Path], featured: Collection[str] = ()) -> bool:
    """Write the chart to files, whose endings say what kind they are; whether there was anything to draw."""
    shown = bars(document, featured)
    if not shown:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "trireme"
    from matplotlib import pyplot

    groups = list(dict.fromkeys((bar.row, bar.metric) for bar in shown))
    height = 0.19
    figure, axes = pyplot.subplots(figsize=(10, 1.4 + height * (len(shown) + 0.9 * len(groups))), layout="constrained")
    place = 0.0
    ticks: list[float] = []
    labels: list[str] = []
    named: set[str] = set()
    for row, metric in groups:
        own = [bar for bar in shown if bar.row == row]
        ticks.append(place + (len(own) - 1) / 2)
        labels.append(f"{row}\n{METRICS[metric].title}" if len(own) > 1 else f"{row}, {METRICS[metric].title}")
        for bar in own:
            value = bar.times
            label = None if bar.peer in named else document.peers[bar.peer]
            named.add(bar.peer)
            reach = [[value.median - value.low], [value.high - value.median]]
            axes.barh(place, value.median - 1, left=1, height=0.85, color=COLOURS.get(bar.peer), label=label)
            axes.errorbar(value.median, place, xerr=reach, color="#222222", linewidth=0.8, capsize=1.5)
            at = (max(value.high, 1), place)
            axes.annotate(f"{value.median:.2f}", at, (4, 0), textcoords="offset points", va="center", size=7)
            place += 1
        place += 0.9
    least, most = min(bar.times.low for bar in shown), max(bar.times.high for bar in shown)
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(0.7, least * 0.85), max(2.0, most * 1.35))
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in TICKS if low <= tick <= high], minor=False)
    axes.xaxis.set_major_formatter(lambda value, _position: f"{value:g} ×")
    axes.axvline(1, color="#222222", linewidth=1)
    axes.set_yticks(ticks, labels, size=7.5)
    axes.set_ylim(place - 0.4, -1)  # from the top down
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    title = "Times better than the peer: more requests a second, or less time, CPU or memory"
    axes.set_title(title, size=10, loc="left")
    figure.legend(loc="outside lower center", ncols=len(named), frameon=False, fontsize=8)
    for path in paths:
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return True
