"""TorchScript modules, ``model.pt`` (docs/reference/backends.md#torchscript)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import InternalError, InvalidArgumentError
from . import naming
from .library import error_types, load_error
from .program import Program, TensorNames, Values


class TorchScriptProgram(Program):
    """A scripted or traced module, its inputs and outputs found by convention (`naming`).

    Args:
        module: a loaded module.
        device: where inputs go; None for where the module's first parameter is.

    Raises:
        InvalidArgumentError: its arguments do not fit the configuration.
    """

    def __init__(self, torch: Any, module: Any, model_name: str, names: TensorNames, device: Any = None) -> None:
        self.device = device if device is not None else module_device(torch, module)
        self._module = module
        arguments = module.forward.schema.arguments[1:]
        kinds = [argument.type.kind() for argument in arguments]
        if kinds.count("DictType") > 1:
            raise InvalidArgumentError(
                "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is "
                "supported."
            )
        self._takes_dict = kinds == ["DictType"]
        self._by_argument = not self._takes_dict and set(names.inputs) == {argument.name for argument in arguments}
        self._order: list[str] = []
        if not self._takes_dict:
            naming.check_count(model_name, "input", len(names.inputs), len(arguments))
        if not (self._takes_dict or self._by_argument):
            positions = naming.positions(model_name, "input", names.inputs, required=names.stateful)
            self._order = [names.inputs[positions.index(at)] for at in range(len(positions))]
        self._outputs = naming.positions(model_name, "output", names.outputs, required=names.stateful)

    def run(self, inputs: Values) -> Sequence[Any]:
        if self._takes_dict:
            result = self._module(dict(inputs))
        elif self._by_argument:
            result = self._module(**inputs)
        else:
            result = self._module(*[inputs[name] for name in self._order if name in inputs])
        return pick(result, self._outputs)


def load_torchscript(torch: Any, path: Path, model_name: str, device: Any) -> Any:
    """Read a module.

    Args:
        device: where it goes; None to leave it where it was saved.

    Raises:
        InternalError: torch cannot read it.
    """
    try:
        return torch.jit.load(str(path), map_location=device).eval()
    except error_types(torch) as error:
        raise load_error(model_name, error) from error


def module_device(torch: Any, module: Any) -> Any:
    """Where a module's first parameter is; the CPU if it has none."""
    parameter = next(iter(module.parameters()), None)
    return torch.device("cpu") if parameter is None else parameter.device


def pick(result: Any, positions: Sequence[int]) -> list[Any]:
    """The results at some positions of what a module returned.

    Raises:
        InternalError: it returned fewer.
    """
    results = list(result) if isinstance(result, tuple) else [result]
    if len(results) <= max(positions, default=-1):
        raise InternalError(
            f"PyTorch execute failure: the model returned {len(results)} outputs, the configuration expects "
            f"{max(positions) + 1}"
        )
    return [results[at] for at in positions]
