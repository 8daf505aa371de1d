"""Exported programs, ``model.pt2``: written by ``torch.export.save``, or compiled by AOTInductor
(docs/reference/backends.md#exported-programs).

Rules:
 1. A program has devices written into it, where it makes tensors of its own. So all of it is moved to the instance's
    device, which moving the module that it becomes would not do.
 2. A compiled one is loaded for the GPU of its instance, or it would be on the first. One that is an instance's own
    runs without the locks that guard it against other threads: with them, a run waits for the one before it to be
    computed, and holds the interpreter's lock meanwhile.
"""

from __future__ import annotations

import importlib
import inspect
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import InvalidArgumentError, UnavailableError
from .program import Program, TensorNames, Values, error_types, load_error
from .torchscript import check_count, leaf_positions, structural_names

_COMPILED = "/data/aotinductor/"


class ExportedProgram(Program):
    """A callable whose arguments and results are trees of tensors.

    Args:
        call: takes and gives what `in_spec` and `out_spec` describe.

    Raises:
        InvalidArgumentError: the trees do not fit the configuration.
    """

    def __init__(
        self, torch: Any, call: Any, in_spec: Any, out_spec: Any, model_name: str, names: TensorNames, device: Any
    ) -> None:
        self.device = device
        self._tree = torch.utils._pytree
        self._call = call
        self._in_spec = in_spec
        arguments = [_argument_name(path) for path in _paths(self._tree, in_spec)]
        results = structural_names("RESULT", _paths(self._tree, out_spec))
        check_count(model_name, "input", len(names.inputs), len(arguments))
        inputs = leaf_positions(model_name, "input", names.inputs, arguments)
        self._inputs = [names.inputs[inputs.index(at)] for at in range(len(inputs))]
        self._outputs = leaf_positions(model_name, "output", names.outputs, results)
        if max(self._outputs, default=-1) >= len(results):
            check_count(model_name, "output", max(self._outputs) + 1, len(results))

    def run(self, inputs: Values) -> Sequence[Any]:
        args, kwargs = self._tree.tree_unflatten([inputs[name] for name in self._inputs], self._in_spec)
        leaves = self._tree.tree_leaves(self._call(*args, **kwargs))
        return [leaves[at] for at in self._outputs]


def load_exported(
    torch: Any, path: Path, model_name: str, names: TensorNames, device: Any, *, alone: bool = True
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


def _argument_name(path: Sequence[object]) -> str:
    """The root of the tree is (positional arguments, keyword arguments)."""
    which, *rest = path
    (name,) = structural_names("KWARGS" if which else "ARGS", [rest])
    return name
