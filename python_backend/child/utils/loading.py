"""Importing a user's ``model.py`` (docs/reference/python-backend.md#files-and-imports).

The module is named ``<version>.<file stem>``, and there is a package ``<version>`` whose path is the version's
directory, so that ``from .helper import x`` works; the directory itself is on ``sys.path``, so that ``import helper``
does too.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
import types
from collections.abc import Iterable

CLASS = "TritonPythonModel"


def import_model(path: str, package: str) -> type:
    """The user's class.

    Args:
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


# How what user code raised is told to people: type, text, and where in the user's own code
# (docs/reference/python-backend.md#error-texts).


MOST_CHARACTERS = 32 << 10

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""What user code calls; its frames say nothing to the user."""
_DRIVERS = tuple(os.path.join(os.path.dirname(os.path.abspath(__file__)), name) for name in ("runner.py", "loading.py"))
"""What calls user code; neither do these, or those outside of them (of an event loop, say)."""


class ModelError(Exception):
    """User code failed, or is not what it must be; the text is for people, with the user's file and line."""


def describe(error: BaseException) -> str:
    """``ValueError: text``, then the user's frames, the innermost first.

    A group of one exception, as nurseries and task groups raise, is about that one.
    """
    while len(getattr(error, "exceptions", ())) == 1:
        error = error.exceptions[0]  # type: ignore[attr-defined]
    frames = user_frames(error)
    where = "".join(f"  {filename}({line}): {function}\n" for filename, line, function in frames)
    text = f"{type(error).__name__}: {_text(error)}"
    return shortened(f"{text}\n\nAt:\n{where}" if where else text)


def shortened(text: str) -> str:
    """A text for the server: of one that is longer than `MOST_CHARACTERS`, the beginning and the end."""
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters) ...\n{text[-half:]}"


def user_frames(error: BaseException) -> list[tuple[str, int, str]]:
    """File, line and function of the frames outside of this folder and the import machinery, the innermost first."""
    walked = traceback.walk_tb(error.__traceback__)
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked]
    drivers = [number for number, frame in enumerate(frames, 1) if frame[0] in _DRIVERS]
    frames = frames[max(drivers, default=0) :]
    frames = [frame for frame in frames if not frame[0].startswith((_OURS, "<frozen "))]
    if not frames and isinstance(error, SyntaxError) and error.filename:
        frames = [(error.filename, error.lineno or 0, "<module>")]
    return frames[::-1]


def _text(error: BaseException) -> str:
    try:
        return str(error) or "<EMPTY MESSAGE>"
    except Exception as second:  # noqa: BLE001 - a __str__ of user code
        return f"<no text: {type(second).__name__}>"
