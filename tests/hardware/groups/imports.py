"""Imports, discovery and metrics: what is there, and whether all tell the same of the GPUs."""

from __future__ import annotations

import importlib
import os
from typing import Any

from hardware import main, need_torch

LIBRARIES = ("numpy", "torch", "cupy", "onnxruntime", "tensorrt", "pynvml", "trio", "tritonclient.grpc")
OURS = ("engine.gpu.cupy_device", "engine.gpu.torch_device", "actors", "api.grpc.application", "api.metrics.host")


def group(figures: dict[str, Any]) -> None:
    versions = figures["versions"] = {}
    for name in LIBRARIES:
        try:
            versions[name] = getattr(importlib.import_module(name), "__version__", "there")
        except (ImportError, OSError, RuntimeError) as error:
            versions[name] = f"missing: {error}"
    torch = need_torch()
    for name in OURS:
        importlib.import_module(f"trireme.{name}")
    from trireme.api.metrics.host import GpuMeter
    from trireme.engine.gpu.discovery import find_gpus, opened_nvml

    found = find_gpus(os.environ)
    figures["gpus"] = [str(gpu) for gpu in found]
    assert len(found) == torch.cuda.device_count(), "torch counts others"
    for gpu in found:
        told = torch.cuda.get_device_properties(gpu.index)
        assert gpu.compute_capability == (told.major, told.minor), told
        assert gpu.name == told.name, told
        assert abs(gpu.memory_bytes - told.total_memory) < gpu.memory_bytes / 10, told
    with opened_nvml("there are no metrics") as nvml:
        readings = GpuMeter(nvml).read()
    figures["metrics"] = [str(reading) for reading in readings]
    assert {gpu.uuid for gpu in found if gpu.uuid.startswith("GPU-")} <= {reading.uuid for reading in readings}
    assert all(reading.memory_used_bytes for reading in readings)


if __name__ == "__main__":
    main(group)
