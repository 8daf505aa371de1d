"""Where the time of requests for generated text goes, and what other settings of steps would change.

Rules:
 1. A request is in the *queue* until its prompt is in a step first, in *prefill* until its first token, and in *decode*
    until its end.
 2. *Paused* is the time after the queue in which it was in no step: it had made room for others, or the tokens of a
    step were used up. It is taken off decode, and what is more than that off prefill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..engine.logs.request_log import LoggedRequest
from ..simulations.planning import PlayedRun
from .explaining import BUSY
from .search.settings import PlanSetting
from .summary import RunSummary

_Column = NDArray[np.float64]


def planned_text_phases(run: PlayedRun, model: str) -> dict[str, _Column]:
    """By phase, of the requests to a model that were answered well in virtual time."""
    texts = run.generated
    if texts is None:
        return {}
    well = run.well(model)[texts.request] & np.isfinite(texts.first_s)
    request = texts.request[well]
    sent, ended = run.sent_s[request], run.answered_s[request]
    received, begun, first = (each[well] for each in (texts.received_s, texts.begun_s, texts.first_s))
    phases = _phases(begun - received, first - begun, ended - first, texts.paused_s[well])
    return {**phases, "loop and ways": np.maximum(0.0, received - sent)}


def real_text_phases(log: Sequence[LoggedRequest], model: str) -> dict[str, _Column]:
    """By phase, of a real run's log with results."""
    results = [
        each.result
        for each in log
        if each.model == model and each.result is not None and not each.result.outcome and each.result.first_token_us
    ]
    rows = [(each.queue_us, each.first_token_us, each.total_us, each.paused_us) for each in results]
    queue, first, total, paused = np.array(rows, np.float64).reshape(-1, 4).T / 1e6
    return _phases(queue, np.maximum(0.0, first - queue), total - first, paused)


def _phases(queue: _Column, prefill: _Column, decode: _Column, paused: _Column) -> dict[str, _Column]:
    """Rule 2."""
    of_decode = np.minimum(paused, decode)
    rest = np.minimum(paused - of_decode, prefill)
    return {
        "queue": queue,
        "prefill": prefill - rest,
        "decode": decode - of_decode,
        "paused": of_decode + rest,
    }


def text_limits(models: Mapping[str, RunSummary], setting: PlanSetting) -> Iterator[str]:
    """What of the settings of steps limits a run, in words."""
    for name, its in setting.models:
        summary, steps = models.get(name), its.steps
        if summary is None or steps is None:
            continue
        if summary.step_texts >= BUSY * steps.max_running:
            yield f"the texts of a step of {name}: {summary.step_texts:.1f} of {steps.max_running} on average"
        if summary.step_tokens >= BUSY * steps.max_tokens_per_step:
            yield f"the tokens of a step of {name}: {summary.step_tokens:.0f} of {steps.max_tokens_per_step} on average"
        if summary.kv >= BUSY or summary.preempted > 0:
            yield (
                f"the memory of {name}: {summary.kv:.0%} of it in use on average, and {summary.preempted:.1%} of the "
                "requests made room"
            )


def other_steps(name: str, setting: PlanSetting, tokens: int) -> Iterator[tuple[str, PlanSetting]]:
    """Settings that tell what other limits of steps would change, each with how it is called.

    Args:
        tokens: of the model's memory at present.
    """
    its = setting.of(name)
    if its.steps is None:
        return
    running, budget = its.steps.max_running, its.steps.max_tokens_per_step
    wider = replace(its.steps, max_running=2 * running, max_tokens_per_step=max(budget, 2 * running + 1))
    changes = [(f"twice the texts a step of {name}", wider)]
    if budget // 2 > running:
        changes.append((f"half the tokens a step of {name}", replace(its.steps, max_tokens_per_step=budget // 2)))
    changes.append((f"twice the tokens a step of {name}", replace(its.steps, max_tokens_per_step=2 * budget)))
    changes.append((f"twice the memory of {name}", replace(its.steps, kv_tokens=2 * tokens)))
    for label, steps in changes:
        yield label, setting.with_model(name, replace(its, steps=steps))
