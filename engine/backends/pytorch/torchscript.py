"""TorchScript modules, ``model.pt`` (docs/reference/backends.md#torchscript)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ...errors import InternalError, InvalidArgumentError
from .program import Program, TensorNames, Values, error_types, load_error


class TorchScriptProgram(Program):
    """A scripted or traced module, its inputs and outputs found by convention (see below).

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
            check_count(model_name, "input", len(names.inputs), len(arguments))
        if not (self._takes_dict or self._by_argument):
            order = positions(model_name, "input", names.inputs, required=names.stateful)
            self._order = [names.inputs[order.index(at)] for at in range(len(order))]
        self._outputs = positions(model_name, "output", names.outputs, required=names.stateful)

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
    """Every tensor of the model must be configured.

    Raises:
        InvalidArgumentError: there are more or fewer.
    """
    if configured != provided:
        raise InvalidArgumentError(
            f"unable to load model '{model_name}', configuration expects {configured} {role}s, model provides "
            f"{provided}"
        )


def structural_names(prefix: str, paths: Iterable[Sequence[object]]) -> list[str]:
    """Names for paths into a tree: ``prefix[0][key]``."""
    return [prefix + "".join(f"[{step}]" for step in path) for path in paths]
