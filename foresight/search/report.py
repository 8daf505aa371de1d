"""What a plan leaves in a folder: an HTML page without outside parts, pictures, the diff, and the figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from ...engine.errors import InvalidArgumentError
from ..summary import Estimate
from .changes import ConfigChange
from .fronts import front_points, front_svg, write_front_png
from .objective import Measure, PlanObjective
from .settings import PlanSetting, server_flags
from .tables import missed_bounds
from .trials import Trial

_STYLE = """body { font: 15px/1.5 sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #ddd; }
td:last-child, th:last-child { text-align: left; } tr.chosen { font-weight: bold; } .missed { color: #b3261e; }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; } svg { max-width: 100%; height: auto; }"""


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What a plan found.

    Attributes:
        trials: those that were played several times, the best first.
        whole: all that were played on the whole log.
    """

    objective: PlanObjective
    chosen: Trial
    present: PlanSetting
    trials: Sequence[Trial]
    whole: Sequence[Trial]
    changes: Sequence[ConfigChange]

    def write(self, folder: Path) -> list[Path]:
        """Write everything; returns the files.

        Raises:
            InvalidArgumentError: something cannot be written.
        """
        latest = {trial.setting: trial for trial in (*self.whole, *self.trials)}
        points = front_points(list(latest.values()), self.chosen.setting, self.present, self.objective)
        picture = front_svg(points, self.objective)
        texts = {
            "plan.html": self._html(picture),
            "front.svg": picture,
            "config.diff": "".join(change.diff for change in self.changes),
            "plan.json": json.dumps(self._document(), indent=1) + "\n",
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                (folder / name).write_text(text, encoding="utf-8")
            drawn = write_front_png(folder / "front.png", points)
        except OSError as error:
            raise InvalidArgumentError(f"the report cannot be written to '{folder}': {error}") from error
        return [folder / name for name in (*texts, *["front.png"] * drawn)]

    def _label(self, trial: Trial) -> str:
        if trial is self.chosen:
            return "chosen"
        return "present" if trial.setting == self.present else ""

    def _html(self, picture: str) -> str:
        return "\n".join(self._html_lines(picture)) + "\n"

    def _html_lines(self, picture: str) -> Iterator[str]:
        yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Plan</title>'
        yield f"<style>{_STYLE}</style></head><body><h1>Plan</h1><p>{escape(str(self.objective))}</p>"
        for missed in missed_bounds(self.chosen, self.objective):
            yield f'<p class="missed">not kept: {escape(missed)}</p>'
        heads = ("", "p50 ms", "p99 ms", "from", "to", "answers/s", "good/s", "refused", "keeps", "setting")
        yield f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"
        for trial in self.trials:
            p99 = trial.estimate(Measure.P99)
            cells = [
                self._label(trial),
                *(f"{each * 1e3:.2f}" for each in (trial.estimate(Measure.P50).value, p99.value, p99.low, p99.high)),
                f"{trial.estimate(Measure.THROUGHPUT).value:.1f}",
                f"{Estimate.of(trial.goodput).value:.1f}",
                f"{trial.estimate(Measure.REFUSED).value:.2%}",
                "yes" if trial.keeps(self.objective) else "no",
                str(trial.setting),
            ]
            row = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            yield f'<tr class="{self._label(trial)}">{row}</tr>'
        yield f"</table><h2>Throughput against p99</h2>{picture}<h2>Configuration</h2>"
        diff = "".join(change.diff for change in self.changes) or "The configurations stay as they are."
        yield f"<pre>{escape(diff)}</pre>"
        flags = server_flags(self.chosen.setting, self.present)
        if flags:
            yield f"<p>Start the server with <code>{escape(' '.join(flags))}</code></p>"
        yield "</body></html>"

    def _document(self) -> dict[str, Any]:
        return {
            "objective": str(self.objective),
            "kept": self.chosen.keeps(self.objective),
            "server_flags": server_flags(self.chosen.setting, self.present),
            "settings": [
                {
                    "label": self._label(trial),
                    "keeps": trial.keeps(self.objective),
                    "models": {name: asdict(each) for name, each in trial.setting.models},
                    "executions": trial.setting.executions,
                    "replicas": trial.setting.replicas,
                    "front_ends": trial.setting.front_ends,
                    "goodput": _known(Estimate.of(trial.goodput)),
                    **{measure.value: _known(trial.estimate(measure)) for measure in Measure},
                }
                for trial in self.trials
            ],
        }


def _known(estimate: Estimate) -> dict[str, float] | None:
    return None if estimate.value != estimate.value else asdict(estimate)
