"""PyTorch modules in files, and instances to run them on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpus
from fake_torch_cuda import FakeTorch
from google.protobuf import text_format
from gpu_batches import ROWS, Gpu

from trireme.engine.backends.interface import InstanceSpec
from trireme.engine.backends.pytorch import PyTorchBackend
from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfig, ModelConfigMessage


@pytest.fixture
def pytorch_config() -> Callable[[str], ModelConfig]:
    """A configuration from its text; X and Y are FP32 of any size, unless it says otherwise."""

    def make(text: str = "", tensors: str = "") -> ModelConfig:
        tensors = tensors or (
            'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } '
            'output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }'
        )
        full = f'name: "m" backend: "pytorch" {tensors} {text}'
        return model_config(text_format.Parse(full, ModelConfigMessage()))

    return make


@pytest.fixture
def script(models: Any) -> Callable[[torch.nn.Module], Path]:
    """Save a module as TorchScript."""

    def save(module: torch.nn.Module) -> Path:
        path = models.files.version_directory / "model.pt"
        torch.jit.script(module).save(str(path))
        return path

    return save


@pytest.fixture
def begin(models: Any, run_instance: Any) -> Callable[..., Any]:
    """``begin(config, kind="KIND_CPU")``: load what was saved, and start an instance of it."""

    def make(config: ModelConfig, kind: str = "KIND_CPU") -> Any:
        return run_instance(PyTorchBackend({}).load(config, models.files).create_instance(InstanceSpec("m_0", kind)))

    return make


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch(FakeGpus(count=2, seed=7))
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def gpu(fake: FakeTorch, models: Any) -> Gpu:
    return Gpu(fake, models.files)


@pytest.fixture
def on_gpu(pytorch_config: Any) -> Callable[..., ModelConfig]:
    """A configuration with an instance on the first GPU."""

    def make(text: str = ROWS, tensors: str = "", gpus: str = "0") -> ModelConfig:
        return pytorch_config(f"{text} instance_group {{ kind: KIND_GPU count: 1 gpus: [ {gpus} ] }}", tensors)

    return make
