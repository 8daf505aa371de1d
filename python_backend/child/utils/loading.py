"""Importing a user's ``model.py`` (docs/reference/python-backend.md#files-and-imports).

The module is named ``<version>.<file stem>``, and there is a package ``<version>`` whose path is the version's
directory, so that ``from .helper import x`` works; the directory itself is on ``sys.path``, so that ``import helper``
does too.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Iterable

from .failures import ModelError, describe

CLASS = "TritonPythonModel"


def import_model(path: str, package: str) -> type:
    """The user's class.

    Args:
        path: of the file.
        package: name that the file's directory gets as a package.

    Raises:
        ModelError: no such file, it cannot be imported, or has no such class.
    """
    if not os.path.isfile(path):
        raise ModelError(f"Python model file not found in '{path}'")
    name = f"{package}.{os.path.splitext(os.path.basename(path))[0]}"
    parent = types.ModuleType(package)
    parent.__path__ = [os.path.dirname(path)]
    sys.modules[package] = parent
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ModelError(f"Python model file '{path}' does not end in .py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    writes_no_cache = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # a server that follows its repository would take a cache for a change of the model
    try:
        specification.loader.exec_module(module)
    except BaseException as error:
        raise ModelError(describe(error)) from error
    finally:
        sys.dont_write_bytecode = writes_no_cache
    if not isinstance(getattr(module, CLASS, None), type):
        raise ModelError(f"AttributeError: module '{name}' has no attribute '{CLASS}'")
    return getattr(module, CLASS)


def add_paths(paths: Iterable[str]) -> None:
    """Let imports look into these directories last."""
    for path in paths:
        if path not in sys.path:
            sys.path.append(path)


def forget(package: str, directory: str) -> None:
    """Let a later import read everything under `directory` anew, and give back what it holds now."""
    inside = os.path.join(directory, "")
    for name, module in sys.modules.copy().items():  # in one go: other threads may be importing
        file = getattr(module, "__file__", None) or ""
        if name == package or name.startswith(f"{package}.") or file.startswith(inside):
            sys.modules.pop(name, None)  # another thread may be forgetting it, too
    sys.path[:] = [path for path in sys.path if not os.path.join(path, "").startswith(inside)]
