"""The limit of large networks: ONNX Runtime alone, at its best batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


class RuntimeAlone(Peer):
    """It takes no requests: `measure_alone` is all that there is to it."""

    name, title = "runtime", "runtime alone"
    kinds = frozenset({Kind.ONNX})
    forms = frozenset(Form)
    idle = True
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
        (result,) = run_alone(model.file, [model.max_batch_size], model.given[1], model.threads, seconds)
        return {"throughput": result["throughput"]}


def best_batch(model: Model, seconds: float) -> tuple[int, list[dict[str, float]]]:
    """The smallest batch size with nearly the best throughput, and what was measured to find it.

    Raises:
        FailedError: the runtime fails.
    """
    assert model.file is not None
    results = run_alone(model.file, BATCHES, model.given[1], model.threads, seconds)
    return choose_batch(results), results


def choose_batch(results: Sequence[dict[str, float]]) -> int:
    best = max(result["throughput"] for result in results)
    near = [result["batch"] for result in results if result["throughput"] >= NEAR_BEST * best]
    return int(min(near))
