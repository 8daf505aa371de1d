"""A history, or two side by side, as an HTML page without outside parts.

`timeline_data` says what is to be drawn, as plain JSON; `engine/timeline/timeline.js` draws that, and knows nothing of
histories.
"""

from __future__ import annotations

import html
import json
from collections.abc import Collection, Sequence
from importlib import resources
from typing import Any

from ..engine.job import SealReason
from ..engine.timeline import timeline_part
from .compared import differences, first_difference
from .history import History
from .lanes import Bar, BarLane, QueueLane, picture
from .said_once import errors_said_once

TitledRun = tuple[str, History]

_REASONS = [reason.value for reason in SealReason]
_NONE = -1


def timeline_data(runs: Sequence[TitledRun]) -> dict[str, Any]:
    """What `timeline.js` draws of one run, or of two to be compared; it says what the fields mean."""
    bars = [_bars_of(history) for _, history in runs]
    data: dict[str, Any] = {"reasons": _REASONS, "runs": []}
    for index, (title, history) in enumerate(runs):
        others = bars[1 - index] if len(runs) == 2 else bars[index]
        data["runs"].append({"title": title, "notes": [], **_run(history, others)})
    if len(runs) == 2:
        (_, first), (_, second) = runs
        data["differences"] = [[each.model, each.what, each.first, each.second] for each in differences(first, second)]
        parting = first_difference(first, second)
        data["runs"][0]["notes"].append(parting or "both runs are equal, event for event")
    return data


def _bars_of(history: History) -> set[tuple[object, ...]]:
    lanes = picture(history).lanes
    return {_likeness(lane, bar) for lane in lanes if isinstance(lane, BarLane) for bar in lane.bars}


def _likeness(lane: BarLane, bar: Bar) -> tuple[object, ...]:
    """Equal for bars that stand for the same in two runs."""
    return lane.group, lane.title, bar.label, bar.start_ns, bar.end_ns, bar.reason


def _run(history: History, others: Collection[tuple[object, ...]]) -> dict[str, Any]:
    """
    Args:
        others: bars of the other run, by their likeness.
    """
    shown = picture(history)
    groups: dict[str, dict[str, Any]] = {}
    for lane in shown.lanes:
        group = groups.setdefault(lane.group, {"name": lane.group, "lanes": [], "errors": []})
        if isinstance(lane, QueueLane):
            group["lanes"].append({"kind": "queue", "title": "queue", "depths": lane.depths})
            continue
        bars = [_bar(bar, is_other=_likeness(lane, bar) not in others) for bar in lane.bars]
        group["lanes"].append({"kind": lane.kind.value, "title": lane.title, "bars": bars})
    for said in errors_said_once(history):
        name = said.model or "(no model)"
        group = groups.setdefault(name, {"name": name, "lanes": [], "errors": []})
        group["errors"].append({"text": said.text, "times": said.times, "atNs": said.at_ns})
    return {"endNs": shown.end_ns, "groups": list(groups.values())}


def _bar(bar: Bar, *, is_other: bool) -> list[Any]:
    reason = _REASONS.index(bar.reason) if bar.reason in _REASONS else _NONE
    return [bar.start_ns, bar.end_ns, bar.label, bar.batch, bar.rows, reason, int(is_other)]


def draw_page(runs: Sequence[TitledRun]) -> str:
    """The page, a complete HTML document."""
    # "</script>" in a name would end the script; JSON may spell "<" otherwise.
    data = json.dumps(timeline_data(runs), separators=(",", ":")).replace("<", "\\u003c")
    title = html.escape(" and ".join(title for title, _ in runs))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{_page_style()}{timeline_part("timeline.css")}</style>
</head>
<body>
<h1>{title}</h1>
<main id="timeline"></main>
<script type="application/json" id="data">{data}</script>
<script>
{timeline_part("timeline.js")}
TriremeTimeline.mount(document.getElementById("timeline"), JSON.parse(document.getElementById("data").textContent));
</script>
</body>
</html>
"""


def _page_style() -> str:
    return resources.files("trireme.simulations").joinpath("timeline_page.css").read_text(encoding="utf-8")
