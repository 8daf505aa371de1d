"""Model directories made from a few lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_configs import read_config

from trireme.engine.config import ModelConfig, prepare_for_load
from trireme.engine.gpu.discovery import Gpu, Gpus

IO = """
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""

MakeModel = Callable[..., Path]
Load = Callable[..., ModelConfig]


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Make a model directory with one version; `files` are relative to that version's directory."""

    def make(text: str | None = None, *, name: str = "m", files: tuple[str, ...] = ()) -> Path:
        directory = tmp_path / name
        (directory / "1").mkdir(parents=True, exist_ok=True)
        for file in files:
            path = directory / "1" / file
            if file.endswith("/"):
                path.mkdir()
            else:
                path.touch()
        if text is not None:
            (directory / "config.pbtxt").write_text(text)
        return directory

    return make


@pytest.fixture
def poll(make_model: MakeModel) -> Load:
    """The poll phase alone, for a python model that has an input and an output."""

    def run(text: str) -> ModelConfig:
        return read_config(make_model(f'backend: "python"\n{IO}\n{text}'))

    return run


@pytest.fixture
def load(make_model: MakeModel) -> Load:
    """Both phases, without a backend's answer."""

    def run(text: str, *, gpus: tuple[int, ...] = (), **places: Any) -> ModelConfig:
        found = Gpus(tuple(map(Gpu, gpus)), **places)
        return prepare_for_load(read_config(make_model(text)), None, found)

    return run
