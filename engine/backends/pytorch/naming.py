"""Which tensor of the configuration is which of the model's (docs/reference/backends.md#torchscript,
docs/reference/backends.md#exported-programs).

TorchScript knows argument names for inputs and nothing for outputs, so configurations say it by convention:

 1. inputs that all are called like arguments of ``forward`` are those arguments;
 2. names that all end in ``__<index>`` (``INPUT__0``) are positions;
 3. anything else goes by the order in the configuration.

An exported program has a tree of arguments and one of results, whose leaves have structural names: ``ARGS[0]``,
``ARGS[1][key]``, ``KWARGS[key]``, ``RESULT``, ``RESULT[0]``, ``RESULT[key]``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence

from ...errors import InvalidArgumentError

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
