"""``runtime: "model.py"``: a module as Python source, or TorchScript run as such
(docs/reference/backends.md#modules-in-python)."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import InternalError, UnavailableError
from .program import Program, TensorNames, Values, error_types, load_error
from .torchscript import load_torchscript, module_device, pick


class PythonProgram(Program):
    """A module whose inputs and outputs are in the order of the configuration."""

    def __init__(self, module: Any, names: TensorNames, device: Any) -> None:
        self.device = device
        self._module = module
        self._names = names

    def run(self, inputs: Values) -> Sequence[Any]:
        result = self._module(*[inputs[name] for name in self._names.inputs if name in inputs])
        return pick(tuple(result) if isinstance(result, list) else result, range(len(self._names.outputs)))


def find_python_model(directory: Path, filename: str) -> Path:
    """The file to load from a version directory.

    Raises:
        UnavailableError: there is none.
    """
    candidates = list(dict.fromkeys(name for name in (filename, "model.py", "model.pt") if name))
    for name in candidates:
        if (directory / name).is_file():
            return directory / name
    raise UnavailableError(f"No model found in {directory}/[{', '.join(candidates)}]")


def load_python_module(torch: Any, path: Path, model_name: str, device: Any) -> Any:
    """Make the module that a file defines, with the state of the ``.pt`` file beside it, if there is one.

    Args:
        device: where it goes; None to leave it where it is.

    Raises:
        InternalError: the file cannot be executed, defines no module, or the state does not fit.
    """
    if path.suffix != ".py":
        return load_torchscript(torch, path, model_name, device)
    spec = importlib.util.spec_from_file_location(f"trireme_pytorch_{model_name}_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(source)
    except (*error_types(torch), ImportError, SyntaxError, OSError) as error:
        raise load_error(model_name, error) from error
    classes: list[Any] = [
        found
        for found in vars(source).values()
        if inspect.isclass(found) and issubclass(found, torch.nn.Module) and found.__module__ == source.__name__
    ]
    if not classes:
        raise InternalError(f"failed to load model '{model_name}': {path.name} defines no subclass of torch.nn.Module")
    try:
        module = classes[0]()
        state = path.with_suffix(".pt")
        if state.is_file():
            module.load_state_dict(torch.load(state, map_location="cpu", weights_only=True))
        module = module.eval()
        return module if device is None else module.to(device)
    except (*error_types(torch), OSError) as error:
        raise load_error(model_name, error) from error


def python_program(torch: Any, module: Any, names: TensorNames, device: Any) -> PythonProgram:
    """The module as a program on `device`; None for where its first parameter is."""
    return PythonProgram(module, names, module_device(torch, module) if device is None else device)
