"""ResNet-50 served beside PyTorch alone (`benchmarks/gpu_resnet.py`), without graphs."""

from __future__ import annotations

from typing import Any

from hardware import main
from measured import resnet


def group(figures: dict[str, Any]) -> None:
    resnet(figures)


if __name__ == "__main__":
    main(group)
