"""Profiles for tests that need some."""

from __future__ import annotations

from typing import Any

from trireme.engine.profiles import (
    ExecutorKind,
    ModelProfile,
    ProfileOrigin,
    ServicePoint,
    StartTimes,
    TimeDistribution,
)

ORIGIN = ProfileOrigin("2026-01-02T03:04:05+00:00", "a machine", 2, {"trireme": "1"}, "files", "settings")


def some_profile(**changes: Any) -> ModelProfile:
    """One whose batches take 1 ms, on a thread, with some attributes changed."""
    values: dict[str, Any] = {
        "model": "m",
        "version": 1,
        "executor": ExecutorKind.THREAD,
        "config": {"name": "m"},
        "service": (ServicePoint(1, 1, 1.0, TimeDistribution.constant(0.001)),),
        "start": TimeDistribution.constant(0.0),
        "notice": TimeDistribution.constant(0.0),
        "host": (),
        "starting": StartTimes(),
        "origin": ORIGIN,
        **changes,
    }
    return ModelProfile(**values)
