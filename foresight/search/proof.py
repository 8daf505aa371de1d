"""The proof: real servers with some settings of a plan, the log played against each, and what was predicted beside it.

Rules:
 1. Proven are the chosen setting, the present one, and the two others that are nearest to the chosen one among those
    that were compared.
 2. Each is served by a `trireme serve` of its own, one after the other, from a copy of the repository made of links,
    with its own configurations. The first requests of the log are played once before, for the server to be warm.
 3. The same part of the log is played in virtual time and against the server, as fast as it says.
 4. A figure that differs from the prediction by more than its bound in `BOUNDS` is marked, and so is a bound of the
    objective that is missed by what was measured.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...clients.connections import RefusedError
from ...clients.played import PlayedLog
from ...clients.player import play
from ...clients.prepared import RequestPreparer
from ...clients.target import LoadTarget
from ...engine.errors import InvalidArgumentError, UnavailableError
from ...engine.generation.records import read_durations
from ...engine.logs.request_log import LoggedRequest, RequestTraffic
from ...engine.options import ServerOptions
from ..log_files import read_log
from ..prediction import replica_parts
from ..real_runs import logged_text_figures
from ..served_models import ServedModels
from ..summary import Estimate, RunSummary, latencies
from .changes import config_changes
from .objective import Aim, Measure, ObjectiveBound, PlanObjective
from .players import PlanInputs
from .settings import PlanSetting, execution_flags
from .trials import Trial, TrialGround, measured

BOUNDS = {Measure.P50: 0.05, Measure.P99: 0.10, Measure.THROUGHPUT: 0.03}
"""How far a figure may be from its prediction."""

TEXT_BOUNDS = {Measure.TTFT_P95: 0.10, Measure.ITL_P99: 0.10}
"""The same, of generated text."""

_WARM_UP = 100
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class ProvenSetting:
    """A setting, predicted and measured.

    Attributes:
        label: `chosen`, `present` or `neighbour`.
        models: what was measured of each model's requests.
        goodput: answers a second within the bounds of latency, measured.
    """

    label: str
    setting: PlanSetting
    predicted: Trial
    overall: RunSummary
    models: dict[str, RunSummary] = field(default_factory=dict)
    goodput: float = float("nan")

    def residual(self, measure: Measure) -> float:
        """By which part the prediction is above what was measured; NaN if that is unknown."""
        real = measured(self.overall, measure)
        return self.predicted.estimate(measure).value / real - 1 if real else float("nan")

    def is_off(self, measure: Measure) -> bool:
        """Whether the prediction misses its bound (rule 4)."""
        return not abs(self.residual(measure)) <= {**BOUNDS, **TEXT_BOUNDS}[measure]

    def missed(self, objective: PlanObjective) -> list[ObjectiveBound]:
        """Bounds that the real run did not keep."""
        found: list[ObjectiveBound] = []
        for bound in objective.bounds:
            summary = self.models.get(bound.model) if bound.model else self.overall
            if summary is None or bound.excess(measured(summary, bound.measure)) > 0:
                found.append(bound)
        return found

    def document(self, objective: PlanObjective) -> dict[str, Any]:
        """As JSON."""
        figures = {
            measure.value: {
                "predicted": _number(self.predicted.estimate(measure).value),
                "measured": _number(measured(self.overall, measure)),
                "residual": _number(self.residual(measure)),
                "off": self.is_off(measure),
            }
            for measure in BOUNDS
        }
        missed = [str(bound) for bound in self.missed(objective)]
        return {"label": self.label, "setting": str(self.setting), **figures, "missed": missed}


def _number(value: float) -> float | None:
    return None if value != value else round(value, 9)


def settings_to_prove(trials: Sequence[Trial], present: PlanSetting) -> list[tuple[str, PlanSetting]]:
    """Labelled, the chosen one first (rule 1). The trials are in order, the best first."""
    chosen = trials[0].setting
    others = [trial.setting for trial in trials[1:] if trial.setting != present]
    nearest = sorted(others, key=chosen.differences)
    found = [("chosen", chosen)]
    if present != chosen:
        found.append(("present", present))
    return [*found, *(("neighbour", setting) for setting in nearest[:2])]


def prove(
    inputs: PlanInputs, ground: TrialGround, label: str, setting: PlanSetting, *, seconds: float, plays: int
) -> ProvenSetting:
    """Serve a setting, play the log against it, and predict the same (rules 2 and 3). Of several replicas this is one,
    with its part of the log.

    Args:
        seconds: of the log.

    Raises:
        TriremeError: the server did not start, or the log cannot be played.
    """
    log = replica_parts(part_of_log(ground.log, seconds), setting.replicas)[0]
    way = inputs.host.way
    with tempfile.TemporaryDirectory(prefix="trireme-proof-") as folder:
        repository = Path(folder)
        link_repository(inputs, ground, setting, repository)
        options = ServerOptions(model_repository=(repository,))
        file = repository / "requests.jsonl"
        logs = ("--request-log", str(file), "--request-log-results", "true")
        texts = sum(request.prompt_tokens > 0 for request in log)
        flags = (*execution_flags(setting), *(logs if texts else ()))
        with ServedModels(options, flags, setting.front_ends) as server:
            played = _played(log, server.target(way))
        real = [each for each in read_log(file) if each.prompt_tokens][-texts:] if texts else []
    names = dict.fromkeys(request.model for request in log)
    models = {name: real_summary(played, log, name, real) for name in names}
    predicted = replace(ground, log=log).play(replace(setting, replicas=1), len(log), plays)
    goodput = real_goodput(played, log, ground.objective, real)
    return ProvenSetting(label, setting, predicted, real_summary(played, log, real=real), models, goodput)


def _played(log: Sequence[LoggedRequest], target: LoadTarget) -> PlayedLog:
    try:
        maker = RequestPreparer(target)  # of both plays: prompts of the second one are no longer those of the first
        play(RequestTraffic(log[:_WARM_UP]), target, maker=maker)
        return play(RequestTraffic(log), target, maker=maker)
    except RefusedError as error:
        raise UnavailableError(f"the log cannot be played against the server: {error}") from error


def part_of_log(log: Sequence[LoggedRequest], seconds: float) -> list[LoggedRequest]:
    """The first seconds, from the first request on."""
    began_s = log[0].offset_s
    return [each for each in log if each.offset_s - began_s <= seconds]


def real_summary(
    played: PlayedLog, log: Sequence[LoggedRequest], model: str = "", real: Sequence[LoggedRequest] = ()
) -> RunSummary:
    """What clients have seen, of all requests or of those to one model.

    Args:
        real: what the server has logged of requests for generated text, with results.
    """
    wanted = np.array([not model or each.model == model for each in log])
    good = wanted & (played.status == 0)
    throughput = float(good.sum()) / _span_s(played, wanted)
    its = [
        each
        for each in real
        if (not model or each.model == model) and each.result is not None and not each.result.outcome
    ]
    return RunSummary(
        requests=int(wanted.sum()),
        answered=int(good.sum()),
        throughput=throughput,
        **latencies(played.latency_s[good]),
        **logged_text_figures(its, _span_s(played, wanted)),
    )


def real_goodput(
    played: PlayedLog, log: Sequence[LoggedRequest], objective: PlanObjective, real: Sequence[LoggedRequest] = ()
) -> float:
    """Answers a second that came within the bounds of latency; of texts, with their tokens within theirs (`real`, see
    `real_summary`)."""
    within_s = np.array([objective.good_within_s(each.model) for each in log])
    good = (played.status == 0) & (played.latency_s <= within_s)
    slow = sum(not _tokens_in_time(each, objective) for each in real)
    return max(0.0, float(good.sum()) - slow) / _span_s(played, np.ones(len(log), bool))


def _tokens_in_time(text: LoggedRequest, objective: PlanObjective) -> bool:
    result = text.result
    if result is None or result.outcome:
        return True  # it counts as not answered well already
    gaps = read_durations(result.between_us)
    mean_s = sum(value * count for value, count in gaps) / 1e6 / max(1, sum(count for _, count in gaps))
    first, between = (objective.good_within_s(text.model, kind) for kind in ("ttft", "itl"))
    return result.first_token_us / 1e6 <= first and mean_s <= between


def _span_s(played: PlayedLog, wanted: NDArray[np.bool_]) -> float:
    """From when the first of these requests was due to the last answer to one of them."""
    began_s = float(played.scheduled_s[wanted].min())
    ended_s = float((played.scheduled_s + np.nan_to_num(played.latency_s))[wanted].max())
    return max(ended_s - began_s, 1e-9)


def link_repository(inputs: PlanInputs, ground: TrialGround, setting: PlanSetting, folder: Path) -> None:
    """A copy of the models of a plan, made of links, with the configurations of a setting."""
    changed = {change.model: change.after for change in config_changes(inputs, ground, setting)}
    for model in ground.models:
        name = model.config.name
        source = next(path / name for path in inputs.repositories if (path / name).is_dir())
        copy = folder / name
        copy.mkdir()
        for each in source.iterdir():
            if each.name != "config.pbtxt" or name not in changed:
                (copy / each.name).symlink_to(each.resolve())
        if name in changed:
            (copy / "config.pbtxt").write_text(changed[name], encoding="utf-8")


def proof_lines(proven: ProvenSetting, objective: PlanObjective, *, colours: bool) -> Iterator[str]:
    """Predicted beside measured; what is off or missed is red, and marked with `!` anyway."""
    yield f"{proven.label}: {proven.setting}"
    texts = [measure for measure in TEXT_BOUNDS if np.isfinite(measured(proven.overall, measure))]
    for measure in (*BOUNDS, *texts):
        scale, unit = (1e3, "ms") if measure.is_latency else (1.0, "/s")
        value, real = proven.predicted.estimate(measure).value * scale, measured(proven.overall, measure) * scale
        line = f"  {measure.value:12}{value:>10.3f}{unit} predicted{real:>10.3f}{unit} measured"
        yield _marked(f"{line}{proven.residual(measure):>+8.1%}", proven.is_off(measure), colours)
    if objective.aim is Aim.GOODPUT:
        predicted = Estimate.of(proven.predicted.goodput).value
        yield f"  {'goodput':12}{predicted:>10.3f}/s predicted{proven.goodput:>10.3f}/s measured"
    for bound in proven.missed(objective):
        yield _marked(f"  {bound} is not kept by the real server", True, colours)


def _marked(line: str, wrong: bool, colours: bool) -> str:
    if not wrong:
        return line
    return f"{_RED}{line} !{_PLAIN}" if colours else f"{line} !"


def keep_residuals(folder: Path, proven: Sequence[ProvenSetting], objective: PlanObjective, when: str) -> list[Path]:
    """Append to `residuals.jsonl`, and draw `residuals.html` from all that is in it; returns both.

    Args:
        when: the date of the proof.

    Raises:
        InvalidArgumentError: they cannot be read or written.
    """
    data, page = folder / "residuals.jsonl", folder / "residuals.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with data.open("a", encoding="utf-8") as file:
            for each in proven:
                line = {"when": when, "objective": str(objective), **each.document(objective)}
                file.write(json.dumps(line) + "\n")
        rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
        page.write_text(_residuals_page(rows), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"residuals cannot be kept in '{folder}': {error}") from error
    return [data, page]


def _residuals_page(rows: Sequence[dict[str, Any]]) -> str:
    lines = ['<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Residuals</title><style>']
    lines.append("body { font: 15px sans-serif; } td, th { padding: .2rem .6rem; text-align: left; }")
    lines.append(".off { color: #b3261e; font-weight: bold; }</style></head><body><h1>Residuals</h1><table>")
    heads = ["when", "which", *(f"{each.value}: predicted, measured" for each in BOUNDS), "not kept", "setting"]
    lines.append(f"<tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>")
    for row in rows:
        cells = [f"<td>{escape(str(row[name]))}</td>" for name in ("when", "label")]
        for measure in BOUNDS:
            found = row[measure.value]
            shown = f"{found['predicted']}, {found['measured']}"
            told = "unknown" if found["residual"] is None else f"{shown} ({found['residual']:+.1%})"
            cells.append(f'<td class="{"off" if found["off"] else "kept"}">{escape(told)}</td>')
        cells.append(f'<td class="off">{escape(", ".join(row["missed"]))}</td><td>{escape(row["setting"])}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</table></body></html>\n"])
