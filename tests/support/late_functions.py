"""What programs ask of torch in Python, and torch carries out for a GPU only where it is built for one, as operations
that `late_tensors` can carry out."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
import torch
from fake_torch_cuda import FakeTorch
from late_tensors import LateTensor
from torch.overrides import TorchFunctionMode

from trireme.engine.backends.generation import compiling

_FACTORIES = {torch.tensor, torch.zeros, torch.arange}


def without_torchscript(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have steps of generation computed by Python: TorchScript makes tensors where no stand-in sees it."""
    name = "trireme.engine.backends.generation.compiled"
    importlib.import_module(name)  # which is there again afterwards
    monkeypatch.setattr(compiling, "COMPILES", False)
    monkeypatch.delitem(sys.modules, name)
    importlib.import_module(name)


class LateFunctions(TorchFunctionMode):
    """While it is entered: tensors that are made on a GPU, or moved there, are there at once; indexing is by views of
    single dimensions."""

    def __init__(self, fake: FakeTorch) -> None:
        super().__init__()
        self._fake = fake

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if function in _FACTORIES and device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = "cpu"
            return self._fake.place(function(*args, **kwargs), torch.device(device).index)
        if function is torch.Tensor.__getitem__ and isinstance(args[0], LateTensor):
            return _item(*args)
        if function is torch.Tensor.__setitem__ and isinstance(args[0], LateTensor):
            target, index, value = args
            return _item(target, index).copy_(value)
        if function is torch.Tensor.to:
            return self._to(function, *args, **kwargs)
        return function(*args, **kwargs)

    def _to(self, function: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        device = next((torch.device(each) for each in given if isinstance(each, torch.device | str)), tensor.device)
        if device.type == tensor.device.type == "cuda":
            dtype = next((each for each in given if isinstance(each, torch.dtype)), tensor.dtype)
            return tensor if dtype is tensor.dtype else torch.ops.aten._to_copy.default(tensor, dtype=dtype)
        if device.type == "cuda":
            return self._fake.place(tensor, device.index)
        return tensor.cpu() if tensor.device.type == "cuda" else function(tensor, *args, **kwargs)


def _item(tensor: Any, index: Any) -> Any:
    """``tensor[index]``, with slices, numbers, None, and tensors of numbers, one of these at most."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(part is Ellipsis for part in parts):
        at = next(number for number, part in enumerate(parts) if part is Ellipsis)
        missing = tensor.dim() - sum(part is not None and part is not Ellipsis for part in parts)
        parts[at : at + 1] = [slice(None)] * missing
    dimension = 0
    for part in parts:
        if part is None:
            tensor = tensor.unsqueeze(dimension)
        elif isinstance(part, int):
            tensor = tensor.select(dimension, part)
            continue
        elif isinstance(part, torch.Tensor):
            tensor = tensor.index_select(dimension, part)
        else:
            start, stop, step = part.indices(tensor.size(dimension))
            assert step == 1
            tensor = tensor.narrow(dimension, start, max(stop - start, 0))
        dimension += 1
    return tensor
