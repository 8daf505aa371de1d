"""A stand-in for a GPU that is the CPU, which does everything at once: `TorchDevice` as far as generation uses it.

What is captured is kept, and done again when it is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch

T = TypeVar("T")


class EagerStream:
    def active(self) -> AbstractContextManager[None]:
        return nullcontext()

    def upload(self, host: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(host.copy())

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        assert (source.shape, source.dtype) == (target.shape, target.dtype)
        target.copy_(source)

    def download(self, array: torch.Tensor) -> np.ndarray:
        return array.numpy().copy()

    def drain(self) -> None:
        """Nothing is ever left to do."""


class EagerGraph:
    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def launch(self, _stream: EagerStream) -> None:
        self._work()


class EagerDevice:
    """The device.

    Attributes:
        refuses: raised instead of the next captures.
        captures: how many there were.
    """

    place = torch.device("cpu")

    def __init__(self) -> None:
        self.refuses: Exception | None = None
        self.captures = 0

    def stream(self) -> EagerStream:
        return EagerStream()

    def errors(self) -> AbstractContextManager[None]:
        return nullcontext()

    def load(self, make: Callable[[], T]) -> T:
        return make()

    def loaded(self, stream: EagerStream) -> None:
        """Nothing is to be waited for."""

    def pinned(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
        return np.full(shape, 77, dtype)

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> torch.Tensor:
        return torch.full(tuple(shape), 77, dtype=getattr(torch, dtype.name))

    def capture(self, _stream: EagerStream, work: Callable[[], None]) -> EagerGraph:
        self.captures += 1
        if self.refuses is not None:
            raise self.refuses
        return EagerGraph(work)
