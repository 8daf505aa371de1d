"""Finds out which models an app declares, in a process of its own: ``python -m trireme.apps.inspecting FILE FD``.

So what the app does when it is imported does nothing to the server, and each look sees the file as it is now. The
process writes JSON to the descriptor: models, or what is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .config_text import config_text
from .declared.declaration import AnswerManner, declaration_of
from .declared.errors import DeclarationError
from .declared.sources import CopiedModules
from .writing import WrittenModel

LIMIT_S = 300.0
"""For the import of an app, with all that it loads."""


class AppError(Exception):
    """An app cannot be served: the text has file, line and what is wrong."""


def declared_models(app: Path, account: Mapping[str, Any] | None = None) -> list[WrittenModel]:
    """The models of an app, in the order in which it has them. Blocks until it has been imported.

    Args:
        account: of `subprocess.Popen`: as whom the app is imported.

    Raises:
        AppError: it cannot be imported, a declaration is faulty, or there is none.
    """
    if not app.is_file():
        raise AppError(f"{app}: there is no such file")
    reads, writes = os.pipe()
    with open(reads, "rb") as told:
        try:
            command = [sys.executable, "-m", __spec__.name, str(app), str(writes)]
            process = subprocess.Popen(command, pass_fds=(writes,), stdin=subprocess.DEVNULL, **(account or {}))
        except OSError as error:  # another user may not be able to run this interpreter
            raise AppError(f"{app}: no process can be started to import it: {error}") from None
        finally:
            os.close(writes)
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AppError(f"{app}: its import has taken longer than {LIMIT_S:g} s") from None
        finally:
            process.kill()
        answer = told.read()
    if not answer:
        raise AppError(f"{app}: the process that imported it ended with status {process.returncode}")
    said = json.loads(answer)
    if "error" in said:
        raise AppError(said["error"])
    return [_read(each) for each in said["models"]]


def _read(said: Mapping[str, str]) -> WrittenModel:
    return WrittenModel(said["name"], said["variable"], AnswerManner(said["manner"]), said["config"])


def models_of(namespace: Mapping[str, Any], app: str) -> list[WrittenModel]:
    """The models among a module's names.

    Raises:
        DeclarationError: there is none, or two have one name.
    """
    found: dict[str, WrittenModel] = {}
    places: dict[str, str] = {}
    seen: set[int] = set()
    for variable, value in namespace.items():
        declaration = declaration_of(value)
        if declaration is None or id(value) in seen:
            continue
        seen.add(id(value))
        name = declaration.name
        if name in found:
            raise DeclarationError(
                f"{declaration.place}: the name '{name}' is that of the model at {places[name]}, too\n"
                '  write, for example: @model(name="another")'
            )
        found[name] = WrittenModel(name, variable, declaration.manner, config_text(declaration))
        places[name] = declaration.place
    if not found:
        raise DeclarationError(
            f"{app}: it declares no model\n"
            "  write, for example:\n"
            "    from trireme import FP32, model\n"
            "    @model\n"
            "    def double(x: FP32[...]) -> FP32[...]:\n"
            "        return 2 * x"
        )
    return list(found.values())


def _inspect(app: str) -> dict[str, Any]:
    """What the process says."""
    try:
        module = CopiedModules(os.path.dirname(app)).import_app(os.path.basename(app), "inspected")
        models = models_of(vars(module), app)
    except DeclarationError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - what the app raises
        return {"error": where_raised(error, app)}
    return {
        "models": [
            {"name": each.name, "variable": each.variable, "manner": each.manner.value, "config": each.config}
            for each in models
        ]
    }


def where_raised(error: BaseException, app: str) -> str:
    """``FILE:LINE: ValueError: text``, the innermost place in the app's directory first."""
    more = f"\n  mend it; to see more: python {app}"
    if isinstance(error, SyntaxError) and error.filename:
        shown = f"\n  {error.text.strip()}" if error.text else ""
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}{shown}{more}"
    directory = os.path.join(os.path.dirname(app), "")
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename.startswith(directory)
    ]
    file, line = frames[-1] if frames else (app, 0)
    above = "".join(f"\n  called from {file}:{line}" for file, line in frames[-2::-1])
    return f"{file}:{line}: {type(error).__name__}: {error}{above}{more}"


def main(words: Sequence[str]) -> None:
    """Say what the app has."""
    app, descriptor = words
    answer = json.dumps(_inspect(app)).encode()
    with open(int(descriptor), "wb") as told:
        told.write(answer)


if __name__ == "__main__":
    main(sys.argv[1:])
