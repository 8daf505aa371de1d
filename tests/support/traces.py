"""Tracers for tests, and what they have collected."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trireme.engine.clock import Clock, SystemClock
from trireme.engine.tracing import Trace, TraceConfig, TraceLevel, Tracer
from trireme.engine.tracing.settings import TraceSetting


class Collected:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.retired: list[TraceSetting] = []

    def collect(self, trace: Trace) -> None:
        self.traces.append(trace)

    def retire(self, setting: TraceSetting) -> None:
        self.retired.append(setting)


def silent_tracer() -> Tracer:
    """One that traces nothing."""
    return Tracer(TraceConfig(), SystemClock(), Collected())


def tracer_of_all(sink: Collected, clock: Clock, level: TraceLevel = TraceLevel.TIMESTAMPS) -> Tracer:
    """One that traces every request."""
    return Tracer(TraceConfig(level=level, rate=1, file="unused"), clock, sink)


def elements(path: Path) -> list[dict[str, Any]]:
    """What a trace file holds."""
    return json.loads(path.read_text())


def events(file: Iterable[dict[str, Any]], trace_id: int) -> list[str]:
    """The names of what a trace tells, in order; ``model`` for the element that names the model."""
    names: list[str] = []
    for element in file:
        if element["id"] == trace_id:
            names += [stamp["name"] for stamp in element.get("timestamps", ())]
            names += [element["activity"]] if "activity" in element else []
            names += ["model"] if "model_name" in element else []
    return names


def times(file: Iterable[dict[str, Any]], trace_id: int) -> dict[str, int]:
    """When things happened, by name."""
    return {
        stamp["name"]: stamp["ns"]
        for element in file
        if element["id"] == trace_id
        for stamp in element.get("timestamps", ())
    }
