"""How many threads torch has for the operations of an instance on a CPU."""

from __future__ import annotations

import os
from typing import Any

from ..config.model import ModelConfig


def fair_share(config: ModelConfig, cores: int) -> int:
    """Threads for an operator of one instance, so that those of one model do not fight for the cores."""
    on_cpu = sum(group.count for group in config.instance_group if group.kind != "KIND_GPU")
    return max(1, cores // max(1, on_cpu))


def step_threads(config: ModelConfig, cores: int) -> int:
    """The same for a step; 0 if the environment says how many torch has (`OMP_NUM_THREADS`)."""
    return 0 if os.environ.get("OMP_NUM_THREADS") else fair_share(config, cores)


def use_threads(torch: Any, count: int) -> None:
    """Have operations that the calling thread begins carried out by so many; 0 for as many as torch has by itself."""
    if count and torch.get_num_threads() != count:
        torch.set_num_threads(count)
