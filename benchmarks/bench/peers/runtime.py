"""The limit of large networks: ONNX Runtime alone, at its best batch size and number of sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import psutil
from servers import Server

from ..limit import run_alone, session
from ..models import Kind, Model
from .base import Call, Form, Peer

NEAR_BEST = 0.98
"""A smaller batch that reaches this share of the best throughput is preferred."""
BATCHES = [1, 2, 4, 8]
LEAST_S = 0.5
"""Of a measurement that looks for the best."""


class RuntimeAlone(Peer):
    """It takes no requests: `measure_alone` is all that there is to it."""

    name, title = "runtime", "runtime alone"
    kinds = frozenset({Kind.ONNX})
    forms = frozenset(Form)
    idle = True
    serves = False
    start_s = 0.0

    def install(self) -> str:
        return f"ONNX Runtime {version('onnxruntime')}"

    @contextmanager
    def serve(self, models: Sequence[Model], folder: Path, *, grpc: bool) -> Iterator[Server]:
        yield Server(self.title, psutil.Process(), 0, 0)

    def encode(self, model: Model, data: np.ndarray, form: Form) -> Call:
        raise AssertionError("it takes no requests")

    def decode(self, model: Model, body: bytes) -> np.ndarray:
        raise AssertionError("it takes no requests")

    def infer(self, server: Server, model: Model, data: np.ndarray) -> np.ndarray:
        assert model.file is not None
        (made,) = session(model.file, model.threads).run(None, {model.input_name: data})
        return np.asarray(made).ravel()

    def measure_alone(self, model: Model, seconds: float) -> dict[str, float]:
        assert model.file is not None
        batches, shape = [model.max_batch_size], model.given[1]
        (result,) = run_alone(model.file, batches, shape, model.instances, model.threads, seconds)
        return {"throughput": result["throughput"]}


def best_settings(model: Model, seconds: float, cores: int) -> tuple[Model, list[dict[str, float]]]:
    """The model with the batch size, instances and threads at which the runtime is fastest, and what was measured to
    find them: one session with all cores, and two that share them.

    Raises:
        FailedError: the runtime fails.
    """
    assert model.file is not None
    results: list[dict[str, float]] = []
    for sessions in (1, 2, 1, 2):
        if sessions <= cores:
            threads = cores // sessions
            results += run_alone(model.file, BATCHES, model.given[1], sessions, threads, max(seconds, LEAST_S))
    sessions, batch = choose(results)
    return replace(model, instances=sessions, threads=cores // sessions, max_batch_size=batch), results


def choose(results: Sequence[dict[str, float]]) -> tuple[int, int]:
    """Sessions and batch size that are nearly the best, with the smallest batches."""
    best = max(result["throughput"] for result in results)
    near = [result for result in results if result["throughput"] >= NEAR_BEST * best]
    least = min(near, key=lambda result: (result["batch"], -result["throughput"]))
    return int(least["sessions"]), int(least["batch"])
