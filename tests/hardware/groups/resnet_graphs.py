"""ResNet-50 served beside PyTorch alone (`benchmarks/gpu_resnet.py`), with CUDA graphs."""

from __future__ import annotations

from typing import Any

from hardware import main
from measured import resnet


def group(figures: dict[str, Any]) -> None:
    resnet(figures, "--graphs")


if __name__ == "__main__":
    main(group)
