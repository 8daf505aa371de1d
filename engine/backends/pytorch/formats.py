"""Model files of PyTorch, and the programs that they become: TorchScript modules, ``model.pt``
(docs/reference/backends.md#torchscript); exported programs; modules as Python source."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ...errors import InternalError, InvalidArgumentError, UnavailableError
from ..framework import ModelTensors
from .program import Program, Values, error_types, load_error


class ModuleProgram(Program):
    """A module.

    Args:
        device: where inputs go; None for where the module's first parameter is, the CPU if it has none.
    """

    def __init__(self, torch: Any, module: Any, device: Any) -> None:
        if device is None:
            parameter = next(iter(module.parameters()), None)
            device = torch.device("cpu") if parameter is None else parameter.device
        self.device = device
        self._module = module


class TorchScriptProgram(ModuleProgram):
    """A scripted or traced module, its inputs and outputs found by convention (see below).

    Raises:
        InvalidArgumentError: its arguments do not fit the configuration.
    """

    def __init__(self, torch: Any, module: Any, model_name: str, names: ModelTensors, device: Any = None) -> None:
        super().__init__(torch, module, device)
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
        inputs, stateful = list(names.inputs), bool(names.sequences.states)
        if not self._takes_dict:
            check_count(model_name, "input", len(inputs), len(arguments))
        if not (self._takes_dict or self._by_argument):
            order = positions(model_name, "input", inputs, required=stateful)
            self._order = [inputs[order.index(at)] for at in range(len(order))]
        self._outputs = positions(model_name, "output", list(names.outputs), required=stateful)

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


def pick(result: Any, positions: Sequence[int]) -> list[Any]:
    """The results at some positions of what a module returned. Raises `InternalError`: it returned fewer."""
    results = list(result) if isinstance(result, tuple) else [result]
    if len(results) <= max(positions, default=-1):
        raise InternalError(
            f"PyTorch execute failure: the model returned {len(results)} outputs, the configuration expects "
            f"{max(positions) + 1}"
        )
    return [results[at] for at in positions]


# Which tensor of the configuration is which of the model's (docs/reference/backends.md#torchscript,
# docs/reference/backends.md#exported-programs).
#
# TorchScript knows argument names for inputs and nothing for outputs, so configurations say it by convention:
#
#  1. inputs that all are called like arguments of ``forward`` are those arguments;
#  2. names that all end in ``__<index>`` (``INPUT__0``) are positions;
#  3. anything else goes by the order in the configuration.
#
# An exported program has a tree of arguments and one of results, whose leaves have structural names: ``ARGS[0]``,
# ``ARGS[1][key]``, ``KWARGS[key]``, ``RESULT``, ``RESULT[0]``, ``RESULT[key]``.


_log = logging.getLogger(__name__)

_INDEXED = re.compile(r".+__(\d+)", re.ASCII | re.DOTALL)


def indexes(names: Sequence[str]) -> list[int] | None:
    """The index that each name ends in; None unless all have one, each of the numbers from 0 on once."""
    found = [_INDEXED.fullmatch(name) for name in names]
    numbers = [int(match[1]) for match in found if match]
    return numbers if sorted(numbers) == list(range(len(names))) else None


def positions(model_name: str, role: str, names: Sequence[str], *, required: bool = False) -> list[int]:
    """The position of each tensor, by index, else by the order of the configuration.

    Args:
        role: ``input`` or ``output``.
        required: names must have an index: models with implicit state need them.

    Raises:
        InvalidArgumentError: they have none, and must.
    """
    found = indexes(names)
    if found is not None:
        return found
    if required:
        raise InvalidArgumentError(
            f"PyTorch model '{model_name}' is using sequence batching with state but not all inputs and outputs follow "
            "the <name>__<index> naming convention. "
        )
    if len(names) > 1:
        _log.warning(
            "the %ss of PyTorch model '%s' do not follow the <name>__<index> naming convention, so the order of the "
            "configuration is used: %s",
            role,
            model_name,
            ", ".join(names),
        )
    return list(range(len(names)))


def leaf_positions(model_name: str, role: str, names: Sequence[str], leaves: Sequence[str]) -> list[int]:
    """The position of each tensor among the leaves of an exported program's tree, by structural name or by index.

    Args:
        leaves: their structural names, in the order of the flattened tree.

    Raises:
        InvalidArgumentError: a name is that of no leaf.
    """
    found = indexes(names)
    if found is not None:
        return found
    for name in names:
        if name not in leaves:
            raise InvalidArgumentError(
                f"unexpected inference {role} '{name}' for model '{model_name}', allowed {role}s are: "
                f"{', '.join(leaves)}, or {role.upper()}__<index>"
            )
    return [leaves.index(name) for name in names]


def check_count(model_name: str, role: str, configured: int, provided: int) -> None:
    """Every tensor of the model must be configured. Raises `InvalidArgumentError`: there are more or fewer."""
    if configured != provided:
        raise InvalidArgumentError(
            f"unable to load model '{model_name}', configuration expects {configured} {role}s, model provides "
            f"{provided}"
        )


def structural_name(prefix: str, path: Iterable[object]) -> str:
    """The name of a path into a tree: ``prefix[0][key]``."""
    return prefix + "".join(f"[{step}]" for step in path)


# Exported programs, ``model.pt2``: written by ``torch.export.save``, or compiled by AOTInductor
# (docs/reference/backends.md#exported-programs).
#
# Rules:
#  1. A program has devices written into it, where it makes tensors of its own. So all of it is moved to the instance's
#     device, which moving the module that it becomes would not do.
#  2. A compiled one is loaded for the GPU of its instance, or it would be on the first. One that is an instance's own
#     runs without the locks that guard it against other threads: with them, a run waits for the one before it to be
#     computed, and holds the interpreter's lock meanwhile.


_COMPILED = "/data/aotinductor/"


class ExportedProgram(Program):
    """A callable whose arguments and results are trees of tensors.

    Args:
        call: takes and gives what `in_spec` and `out_spec` describe.

    Raises:
        InvalidArgumentError: the trees do not fit the configuration.
    """

    def __init__(
        self, torch: Any, call: Any, in_spec: Any, out_spec: Any, model_name: str, names: ModelTensors, device: Any
    ) -> None:
        self.device = device
        self._tree = torch.utils._pytree
        self._call = call
        self._in_spec = in_spec
        # The root of the tree is (positional arguments, keyword arguments).
        paths = _paths(self._tree, in_spec)
        arguments = [structural_name("KWARGS" if which else "ARGS", rest) for which, *rest in paths]
        results = [structural_name("RESULT", path) for path in _paths(self._tree, out_spec)]
        taken = list(names.inputs)
        check_count(model_name, "input", len(taken), len(arguments))
        inputs = leaf_positions(model_name, "input", taken, arguments)
        self._inputs = [taken[inputs.index(at)] for at in range(len(inputs))]
        self._outputs = leaf_positions(model_name, "output", list(names.outputs), results)
        if max(self._outputs, default=-1) >= len(results):
            check_count(model_name, "output", max(self._outputs) + 1, len(results))

    def run(self, inputs: Values) -> Sequence[Any]:
        args, kwargs = self._tree.tree_unflatten([inputs[name] for name in self._inputs], self._in_spec)
        leaves = self._tree.tree_leaves(self._call(*args, **kwargs))
        return [leaves[at] for at in self._outputs]


def load_exported(
    torch: Any, path: Path, model_name: str, names: ModelTensors, device: Any, *, alone: bool = True
) -> ExportedProgram:
    """Read a program, and have it ready to run on `device`.

    Args:
        alone: it is for one instance; otherwise several run it at a time.

    Raises:
        InternalError: torch cannot read it.
        InvalidArgumentError: it does not fit the configuration, or was compiled for another kind of device.
        UnavailableError: torch is too old to load it where it is to be.
    """
    try:
        compiled = _is_compiled(path)
        if compiled:
            loaded = _load_compiled(torch, path, device, alone)
            in_spec, out_spec = map(torch.utils._pytree.treespec_loads, loaded.loader.get_call_spec())
            made_for = loaded.get_metadata().get("AOTI_DEVICE_KEY", device.type)
        else:
            passes = getattr(torch.export, "passes", None) or importlib.import_module("torch.export.passes")
            program = passes.move_to_device_pass(torch.export.load(str(path)), str(device))
            in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
            loaded = program.module()
            made_for = device.type
    except (*error_types(torch), zipfile.BadZipFile, OSError) as error:
        raise load_error(model_name, error) from error
    if made_for != device.type:
        raise InvalidArgumentError(
            f"unable to load model '{model_name}', it was compiled for device '{made_for}', the instance is on "
            f"'{device.type}'"
        )
    return ExportedProgram(torch, loaded, in_spec, out_spec, model_name, names, device)


def _load_compiled(torch: Any, path: Path, device: Any, alone: bool) -> Any:
    """Rule 2."""
    load = torch._inductor.aoti_load_package
    if device.index is None:
        return load(str(path), run_single_threaded=alone)
    if "device_index" not in inspect.signature(load).parameters:
        raise UnavailableError(f"compiled programs on GPUs need PyTorch 2.8 or later, not {torch.__version__}")
    return load(str(path), run_single_threaded=alone, device_index=device.index)


def _is_compiled(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any(_COMPILED in f"/{name}" for name in archive.namelist())


def _paths(tree: Any, spec: Any) -> list[tuple[object, ...]]:
    """For each leaf, the indices and keys that lead to it."""
    example = tree.tree_unflatten(list(range(spec.num_leaves)), spec)
    leaves, _ = tree.tree_flatten_with_path(example)
    return [tuple(getattr(step, "idx", getattr(step, "key", step)) for step in path) for path, _ in leaves]


# ``runtime: "model.py"``: a module as Python source, or TorchScript run as such
# (docs/reference/backends.md#modules-in-python).


class PythonProgram(ModuleProgram):
    """A module whose inputs and outputs are in the order of the configuration."""

    def __init__(self, torch: Any, module: Any, names: ModelTensors, device: Any = None) -> None:
        super().__init__(torch, module, device)
        self._names = names

    def run(self, inputs: Values) -> Sequence[Any]:
        result = self._module(*[inputs[name] for name in self._names.inputs if name in inputs])
        return pick(tuple(result) if isinstance(result, list) else result, range(len(self._names.outputs)))


def find_python_model(directory: Path, filename: str) -> Path:
    """The file to load from a version directory. Raises `UnavailableError`: there is none."""
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
