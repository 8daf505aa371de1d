"""How much of the GPUs the server may take: the flags about their memory, as plain values
(docs/reference/command-line.md#flags).

The code that makes a device (`device.Device`) gives it its limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .pinned_pool import DEFAULT_LIMIT_BYTES


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """Limits by GPU, by the numbers that CUDA gives them.

    Attributes:
        pinned_pool_bytes: ``--pinned-memory-pool-byte-size``: of pinned host memory that is kept for copies.
        device_pool_bytes: ``--cuda-memory-pool-byte-size``: of device memory for tensors, where it was said.
        load_fractions: ``--model-load-gpu-limit``: while a larger share of a GPU's memory is in use, no instance is
            made there; where it was said.
    """

    pinned_pool_bytes: int = DEFAULT_LIMIT_BYTES
    device_pool_bytes: Mapping[int, int] = field(default_factory=dict)
    load_fractions: Mapping[int, float] = field(default_factory=dict)

    def pool_bytes(self, gpu: int) -> int | None:
        """Most bytes of device memory for tensors; None for no limit but the GPU's own."""
        return self.device_pool_bytes.get(gpu)
