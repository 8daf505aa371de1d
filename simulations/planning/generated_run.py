"""What came of the requests for generated text in a planned run, and of the steps that computed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...engine.generation.records import GenerationRecord, read_durations
from .notes import Notes

_Seconds = NDArray[np.float64]
_Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GeneratedRun:
    """Arrays: of requests, in no order that matters; of times between tokens; and of steps.

    Attributes:
        request: which one, as in `PlayedRun`.
        received_s: when the event loop had it.
        begun_s, first_s: when its prompt was in a step first, and when its first token was there; NaN for never.
        paused_s: for how long it was in no step since it had begun.
        prompt, tokens, preemptions: of its prompt; generated; how often it made room.
        between_request, between_s, between_count: how often which time was between two tokens of a request.
        step_model, step_instance: who computed; counted as those of batches.
        step_begun_s, step_ended_s: from when to when.
        step_texts, step_tokens: that were in it.
        step_memory: the part of the memory of keys and values that was in use.
    """

    request: _Numbers
    received_s: _Seconds
    begun_s: _Seconds
    first_s: _Seconds
    paused_s: _Seconds
    prompt: _Numbers
    tokens: _Numbers
    preemptions: _Numbers
    between_request: _Numbers
    between_s: _Seconds
    between_count: _Numbers
    step_model: _Numbers
    step_instance: _Numbers
    step_begun_s: _Seconds
    step_ended_s: _Seconds
    step_texts: _Numbers
    step_tokens: _Numbers
    step_memory: _Seconds

    def busy_s(self, model: int) -> float:
        """Seconds for which instances of a model computed steps."""
        its = self.step_model == model
        return float(np.nansum((self.step_ended_s - self.step_begun_s)[its]))


def generated_run(notes: Notes) -> GeneratedRun | None:
    """What notes tell; None if no text was generated."""
    if not notes.step_begun:
        return None
    numbers = sorted(notes.texts)
    records = [notes.texts[number] for number in numbers]
    pairs = [
        (number, value / 1e6, count)
        for number, (record, _) in zip(numbers, records, strict=True)
        for value, count in read_durations(record.between.text())
    ]
    between = np.array(pairs, np.float64).reshape(-1, 3)
    return GeneratedRun(
        np.array(numbers, np.int64),
        np.array([received_s for _, received_s in records], np.float64),
        _seconds([record.begun_ns for record, _ in records]),
        _seconds([record.first_ns for record, _ in records]),
        np.array([record.paused_ns / 1e9 for record, _ in records], np.float64),
        _column(records, "prompt"),
        _column(records, "generated"),
        _column(records, "preemptions"),
        between[:, 0].astype(np.int64),
        between[:, 1],
        between[:, 2].astype(np.int64),
        np.array(notes.step_model, np.int64),
        np.array(notes.step_instance, np.int64),
        np.array(notes.step_begun, np.float64),
        np.array(notes.step_ended, np.float64),
        np.array(notes.step_texts, np.int64),
        np.array(notes.step_tokens, np.int64),
        np.array(notes.step_memory, np.float64),
    )


def _column(records: Sequence[tuple[GenerationRecord, float]], name: str) -> _Numbers:
    return np.array([getattr(record, name) for record, _ in records], np.int64)


def _seconds(times_ns: Sequence[int]) -> _Seconds:
    return np.array([time_ns / 1e9 if time_ns >= 0 else np.nan for time_ns in times_ns], np.float64)


def merged_texts(runs: Sequence[tuple[GeneratedRun | None, int]], order: _Numbers) -> GeneratedRun | None:
    """Several servers as if they were one.

    Args:
        runs: each with how many requests it had.
        order: of the requests of all, one run after the other, in the whole.
    """
    places = np.argsort(order, kind="stable")
    parts: list[GeneratedRun] = []
    before = instances = 0
    for run, count in runs:
        if run is not None:
            moved = {
                "request": places[run.request + before],
                "between_request": places[run.between_request + before],
                "step_instance": run.step_instance + instances,
            }
            parts.append(replace(run, **moved))
            instances += int(run.step_instance.max(initial=-1)) + 1
        before += count
    if not parts:
        return None
    names = list(GeneratedRun.__dataclass_fields__)
    return GeneratedRun(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
