"""Small PyTorch modules that tests save in each of its formats.

No ``from __future__ import annotations`` here: TorchScript reads the annotations themselves.
"""

import torch
from torch import Tensor


class AddSub(torch.nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return left + right, left - right


class Scale(torch.nn.Module):
    """One input, one output, one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Tensors(torch.nn.Module):
    def forward(self, tensors: dict[str, Tensor]) -> Tensor:
        return tensors["A"] * 10 + tensors["B"]


class TwoDicts(torch.nn.Module):
    def forward(self, one: dict[str, Tensor], two: dict[str, Tensor]) -> Tensor:
        return one["A"] + two["B"]


class Texts(torch.nn.Module):
    def forward(self, text: list[str]) -> list[str]:
        return [each + "!" for each in text]


class Lengths(torch.nn.Module):
    def forward(self, text: list[str]) -> Tensor:
        return torch.tensor([[len(each)] for each in text])


class Moody(torch.nn.Module):
    """Returns things that no model should, depending on what it is told."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == 1).any()):
            return x.sum()
        if bool((x == 2).any()):
            return x.to(torch.int32)
        if bool((x == 3).any()):
            raise RuntimeError("a bad day")
        return x


class Keeper(torch.nn.Module):
    """Writes to its input, and returns what it keeps and writes to the next time."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(10)
        self.kept.copy_(x)
        return self.kept


class ListOfTensors(torch.nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        return [x, x]


class RunningSum(torch.nn.Module):
    """Y and the new state are X plus the old state, if this is not the start."""

    def forward(self, x: Tensor, start: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
        new = torch.where(start > 0, x, x + old)
        return new, new


class Spelling(torch.nn.Module):
    """Y and the new state are all texts of the sequence so far, one after the other."""

    def forward(self, text: list[str], old: list[str]) -> tuple[list[str], list[str]]:
        new = [old[at] + text[at] for at in range(len(text))]
        return new, new


class GradientSpy(torch.nn.Module):
    """One where the result would carry a gradient, or was made in inference mode."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        made = x * self.weight
        return torch.tensor([[float(made.requires_grad), float(made.is_inference())]])


class Tree(torch.nn.Module):
    """Nested arguments and results, for exported programs."""

    def forward(self, a: Tensor, pair: dict[str, Tensor], *, scale: Tensor) -> dict[str, object]:
        return {"sum": a + pair["x"], "scaled": (a * scale, a)}
