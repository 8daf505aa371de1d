"""What groups of hardware tests share: how they tell what came of them, what they need, and models to serve."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

LINEAR = """
import torch

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return x * self.scale + 1
"""
"""Y = 3 X + 1."""


class Skipped(Exception):
    """Something that the group needs is not there; the text says what."""


def need(name: str) -> Any:
    """A package.

    Raises:
        Skipped: it is not installed, or broken.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError) as error:  # the last is tritonclient's for what it needs in turn
        raise Skipped(f"the package {name} is not there: {error}") from error


def need_torch() -> Any:
    """torch, with a GPU.

    Raises:
        Skipped: one of them is missing.
    """
    torch = need("torch")
    if not torch.cuda.is_available():
        raise Skipped(f"torch {torch.__version__} finds no GPU")
    return torch


def need_cupy() -> Any:
    """cupy, with a GPU.

    Raises:
        Skipped: one of them is missing.
    """
    cupy = need("cupy")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Skipped(f"cupy {cupy.__version__} finds no GPU: {error}") from error
    if not count:
        raise Skipped(f"cupy {cupy.__version__} finds no GPU")
    return cupy


def main(group: Callable[[dict[str, Any]], None]) -> None:
    """Run a group, and tell what came of it where the runner looks.

    Args:
        group: is given a dictionary for its figures; it passes unless it raises.
    """
    figures: dict[str, Any] = {}
    status, reason = "passed", ""
    try:
        group(figures)
    except Skipped as missing:
        status, reason = "skipped", str(missing)
    except Exception as error:  # noqa: BLE001 - whatever it is, the runner is to be told
        traceback.print_exc()
        status, reason = "failed", f"{type(error).__name__}: {error}"
    answer = json.dumps({"status": status, "reason": reason, "figures": figures}, default=str)
    Path(os.environ["TRIREME_RESULT"]).write_text(answer)
    sys.stdout.flush()


def write_linear(
    repository: Path,
    *,
    name: str = "linear",
    instances: int = 1,
    columns: int = 64,
    more: str = "",
    source: str = LINEAR,
) -> None:
    """A model in Python that computes row by row: Y from X, [-1, columns] of FP32."""
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    (repository / name / "1" / "model.py").write_text(source)
    (repository / name / "config.pbtxt").write_text(
        f'backend: "pytorch" runtime: "model.py" max_batch_size: 16 '
        f'input {{ name: "X" data_type: TYPE_FP32 dims: [ {columns} ] }} '
        f'output {{ name: "Y" data_type: TYPE_FP32 dims: [ {columns} ] }} '
        f"dynamic_batching {{ }} instance_group {{ kind: KIND_GPU count: {instances} gpus: [ 0 ] }} {more}"
    )


@asynccontextmanager
async def serving(repository: Path | None = None, **options: Any) -> AsyncIterator[tuple[Any, Path]]:
    """A server with PyTorch and ONNX models in this process, and where its repository is."""
    from trireme.actors import InferenceServer
    from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend
    from trireme.engine.backends.pytorch import PyTorchBackend
    from trireme.engine.backends.registry import BackendRegistry
    from trireme.engine.options import ServerOptions

    with tempfile.TemporaryDirectory() as folder:
        there = repository or Path(folder)
        settings = ServerOptions(model_repository=(there,), **options)
        backends = {"pytorch": PyTorchBackend, "onnxruntime": OnnxRuntimeBackend}
        registry = BackendRegistry(settings.options_for_backend, backends)
        async with InferenceServer(settings, backends=registry) as server:
            yield server, there


def linear_request(array: Any, name: str = "linear") -> Any:
    """A request of FP32, [rows, columns]."""
    from trireme.engine.datatypes import FP32
    from trireme.engine.request import InferenceRequest
    from trireme.engine.tensor import Tensor

    return InferenceRequest(name, inputs=[Tensor("X", FP32, array.shape, array.tobytes())])
