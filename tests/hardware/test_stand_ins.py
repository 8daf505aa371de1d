"""Groups whose code can run on stand-ins do so in every run of the tests: what they call must still be there."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpus
from fake_torch_cuda import FakeTorch
from late_functions import LateFunctions, without_torchscript
from reference_networks import one_thread

from trireme.engine.gpu.discovery import Gpu
from trireme.engine.gpu.torch_device import TorchDevices
from trireme.engine.memory.cuda import LIBRARY

HERE = Path(__file__).parent


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTorch]:
    made = FakeTorch(FakeGpus(count=1, seed=5))
    made.install(monkeypatch)
    real = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name, **more: made.driver if name == LIBRARY else real(name, **more))
    with made.gpus.started():
        yield made


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``group(name)``: the module of a group, whose servers have a GPU. Some are called as packages are."""
    monkeypatch.syspath_prepend(str(HERE))

    def load(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(f"group_{name}", HERE / "groups" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        hardware = importlib.import_module("hardware")
        monkeypatch.setattr(
            module, "serving", partial(hardware.serving, gpus=(Gpu(0, "GPU-0", (9, 0)),)), raising=False
        )
        return module

    return load


async def test_outputs_go_to_the_memory_of_a_client(
    group: Any, fake: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    ipc = group("ipc")
    nbytes = 64 * ipc.REQUEST_BYTES
    monkeypatch.setattr(ipc, "NBYTES", nbytes)
    monkeypatch.setattr(ipc, "REQUESTS", nbytes // 2 // ipc.REQUEST_BYTES)
    inputs = (np.arange(nbytes // 8) % 251).astype(np.float32)
    allocation = fake.driver.allocate(inputs.tobytes() + bytes(nbytes // 2), 0)
    figures: dict[str, Any] = {}
    await ipc.serve(figures, allocation.handle)
    found = np.frombuffer(allocation.memory, np.float32)
    np.testing.assert_allclose(found, np.concatenate([inputs, inputs * 3 + 1]))
    assert figures.keys() == {"placed_requests_per_s"}


async def test_four_instances_give_known_answers(group: Any, fake: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    instances = group("instances")
    monkeypatch.setattr(instances, "SECONDS", 2.0)
    monkeypatch.setattr(instances, "COLUMNS", 64)
    figures: dict[str, Any] = {}
    await instances.load(figures)
    assert figures.keys() == {"requests_per_s", "rows_per_batch"}


def test_generated_text_is_that_of_transformers(
    group: Any, fake: FakeTorch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    generation = group("generation")
    without_torchscript(monkeypatch)
    less = {"ARCHITECTURES": ("llama",), "COUNTS": (3,), "RUNNING": 8, "PROMPT": 4, "NEW": 4}
    for name, value in less.items():
        monkeypatch.setattr(generation, name, value)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    monkeypatch.setattr(generation, "LARGE", {**generation.LARGE, **small, "num_key_value_heads": 2, "vocab_size": 97})
    gpu = TorchDevices(load=lambda: fake, load_driver=lambda: fake.driver).get(0)
    figures: dict[str, Any] = {}
    with one_thread(), LateFunctions(fake):
        generation.compare(figures, gpu, tmp_path)
        generation.measure(figures, torch, gpu, tmp_path)
    assert figures["llama, graphs True"] == {"captured": 1, "launched": 8}
    assert figures["llama, graphs False"] == {"captured": 0, "launched": 0}
    assert figures["shapes captured, graphs True"] == [(1, 8), (8, 8)]
    speeds = [value for name, value in figures.items() if name.startswith("tokens a second, ")]
    assert len(speeds) == 4
    assert min(speeds) > 0
