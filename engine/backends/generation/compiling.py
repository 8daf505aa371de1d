"""Functions that torch carries out without Python (TorchScript). This module imports torch."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., object])

COMPILES = sys.version_info < (3, 14)
"""Torch has no TorchScript for later versions of Python."""


def compiled(function: F) -> F:
    """The same function, without Python if that is possible. It is one that TorchScript can read."""
    if not COMPILES:
        return function
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return cast(F, torch.jit.script(function))
