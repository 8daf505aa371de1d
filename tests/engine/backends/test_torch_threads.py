"""How many threads torch has for an instance's operations."""

from __future__ import annotations

import threading

import pytest
import torch

from trireme.engine.backends.torch_threads import fair_share, step_threads, use_threads
from trireme.engine.config.model import InstanceGroup, ModelConfig


def config_of(**groups: int) -> ModelConfig:
    return ModelConfig("m", instance_group=tuple(InstanceGroup("", kind, count) for kind, count in groups.items()))


@pytest.mark.parametrize(
    ("groups", "cores", "threads"),
    [({"KIND_CPU": 1}, 8, 8), ({"KIND_CPU": 3, "KIND_GPU": 4}, 8, 2), ({"KIND_CPU": 4}, 1, 1), ({}, 0, 1)],
)
def test_instances_on_the_cpu_share_the_cores(
    groups: dict[str, int], cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert fair_share(config_of(**groups), cores) == step_threads(config_of(**groups), cores) == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert step_threads(config_of(**groups), cores) == 0


def test_operations_have_the_threads_that_were_said() -> None:
    before, found = torch.get_num_threads(), []

    def operate(*counts: int) -> None:
        for count in counts:
            use_threads(torch, count)
            found.append(torch.get_num_threads())

    try:
        thread = threading.Thread(target=operate, args=(3, 0, 1))
        thread.start()
        thread.join()
        assert found == [3, 3, 1]
    finally:
        torch.set_num_threads(before)
