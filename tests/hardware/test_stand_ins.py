"""Groups whose code can run on stand-ins do so in every run of the tests: what they call must still be there."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeGpus
from fake_torch_cuda import FakeTorch

from trireme.engine.gpu.discovery import Gpu
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
    """``group(name)``: the module of a group, whose servers have a GPU."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setattr(sys, "path", [*sys.path, str(HERE / "groups")])  # last: some are called as packages are

    def load(name: str) -> Any:
        sys.modules.pop(name, None)
        module = importlib.import_module(name)
        hardware = importlib.import_module("hardware")
        monkeypatch.setattr(module, "serving", partial(hardware.serving, gpus=(Gpu(0, "GPU-0", (9, 0)),)))
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
