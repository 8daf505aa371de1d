"""ResNet-50 in plain PyTorch, with random weights: a load for a GPU, not a model that recognises anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_LAYERS = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
_EXPANSION = 4


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * _EXPANSION
        self.reduce = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.expand = nn.Conv2d(width, out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.reduce(x)))
        y = torch.relu(self.norm2(self.conv(y)))
        return torch.relu(self.norm3(self.expand(y)) + self.shortcut(x))


def resnet50(classes: int = 1000) -> nn.Module:
    """[n, 3, size, size] to [n, classes], in evaluation mode."""
    torch.manual_seed(0)
    stem: list[Any] = [nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    blocks: list[nn.Module] = [*stem, nn.MaxPool2d(3, stride=2, padding=1)]
    channels = 64
    for count, width, stride in _LAYERS:
        for at in range(count):
            blocks.append(Bottleneck(channels, width, stride if at == 0 else 1))
            channels = width * _EXPANSION
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)).eval()
