"""Finds out which models an app declares, in a process of its own: ``python -m trireme.apps.inspecting FILE FD``.

So what the app does when it is imported does nothing to the server, and each look sees the file as it is now. The
process writes JSON to the descriptor: models, or what is wrong.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import Any

from .config_text import config_text
from .declared.declaration import AnswerManner, declaration_of
from .declared.errors import DeclarationError, Faults, Problem, collected_problems
from .declared.sources import CopiedModules
from .declared.types import ELEMENT_TYPES
from .writing import WrittenModel

LIMIT_S = 300.0
"""For the import of an app, with all that it loads."""


class AppError(Exception):
    """An app cannot be served: the text has file, line and what is wrong, for each of its problems."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems: Sequence[Problem] = problems


def declared_models(app: Path, account: Mapping[str, Any] | None = None) -> list[WrittenModel]:
    """The models of an app, in the order in which it has them. Blocks until it has been imported.

    Args:
        account: of `subprocess.Popen`: as whom the app is imported.

    Raises:
        AppError: it cannot be imported, a declaration is faulty, or there is none.
    """
    if not app.is_file():
        raise AppError(
            Problem("there is no such file", f"correct the path, or make one: trireme init {app.name}", str(app))
        )
    reads, writes = os.pipe()
    with open(reads, "rb") as told:
        try:
            command = [sys.executable, "-m", __spec__.name, str(app), str(writes)]
            process = subprocess.Popen(command, pass_fds=(writes,), stdin=subprocess.DEVNULL, **(account or {}))
        except OSError as error:  # another user may not be able to run this interpreter
            text = f"no process can be started to import it: {error}"
            raise AppError(Problem(text, "let the models' user run this interpreter", str(app))) from None
        finally:
            os.close(writes)
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            text = f"its import has taken longer than {LIMIT_S:g} s"
            raise AppError(Problem(text, "do what takes long in a class's __init__", str(app))) from None
        finally:
            process.kill()
        answer = told.read()
    if not answer:
        text = f"the process that imported it ended with status {process.returncode}"
        raise AppError(Problem(text, f"to see more: python {app}", str(app)))
    said = json.loads(answer)
    if said["problems"]:
        raise AppError(*(Problem(**each) for each in said["problems"]))
    return [_read(each) for each in said["models"]]


def _read(said: Mapping[str, Any]) -> WrittenModel:
    return WrittenModel(
        said["name"], said["variable"], AnswerManner(said["manner"]), said["config"], place=said["place"]
    )


_EXAMPLE = """\
write, for example:
    from trireme import FP32, model
    @model
    def double(x: FP32[...]) -> FP32[...]:
        return 2 * x"""


def models_of(namespace: Mapping[str, Any], app: str) -> list[WrittenModel]:
    """The models among a module's names.

    Raises:
        DeclarationError: there is none, or two have one name.
    """
    found: dict[str, WrittenModel] = {}
    faults = Faults()
    seen: set[int] = set()
    for variable, value in namespace.items():
        declaration = declaration_of(value)
        if declaration is None or id(value) in seen:
            continue
        seen.add(id(value))
        name, place = declaration.name, declaration.place
        if name in found:
            text = f"the name '{name}' is that of the model at {found[name].place}, too"
            file, _, line = place.rpartition(":")
            faults.problems.append(Problem(text, 'write, for example: @model(name="another")', file, int(line)))
        else:
            found[name] = WrittenModel(name, variable, declaration.manner, config_text(declaration), place=place)
    if not found:
        raise DeclarationError(Problem("it declares no model", _EXAMPLE, app))
    faults.tell()
    return list(found.values())


def _inspect(app: str) -> dict[str, Any]:
    """What the process says."""
    models: list[WrittenModel] = []
    with collected_problems() as problems:
        try:
            module = CopiedModules(os.path.dirname(app)).import_app(os.path.basename(app), "inspected")
            if not problems:
                models = models_of(vars(module), app)
        except DeclarationError as error:
            problems.extend(error.problems)
        except Exception as error:  # noqa: BLE001 - what the app raises
            problems.append(raised_problem(error, app))
    return {
        "problems": [asdict(each) for each in problems],
        "models": [{**asdict(each), "manner": each.manner.value} for each in models],
    }


def raised_problem(error: BaseException, app: str) -> Problem:
    """What an app raised, with the innermost place in its directory that is code of its own.

    Trireme and other packages may lie in that directory, too: in a checkout, or in an environment that stands there.
    """
    remedy = _remedy(error) or f"mend it; to see more: python {app}"
    if isinstance(error, SyntaxError) and error.filename:
        shown = f"\n  {error.text.strip()}" if error.text else ""
        return Problem(f"{type(error).__name__}: {error.msg}{shown}", remedy, error.filename, error.lineno or 0)
    directory = os.path.join(os.path.dirname(app), "")
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename.startswith(directory) and not _of_a_package(frame)
    ]
    file, line = frames[-1] if frames else (app, 0)
    above = "".join(f"\n  called from {file}:{line}" for file, line in frames[-2::-1])
    return Problem(f"{type(error).__name__}: {error}{above}", remedy, file, line)


def _of_a_package(frame: FrameType) -> bool:
    package = frame.f_globals.get("__package__") or ""
    return package.partition(".")[0] == "trireme" or "site-packages" in Path(frame.f_code.co_filename).parts


_TYPES = {each.name for each in ELEMENT_TYPES}


def _remedy(error: BaseException) -> str:
    """What is to be done about what an app raised, where that is known."""
    name = getattr(error, "name", None) or ""
    if isinstance(error, ModuleNotFoundError):
        top = name.partition(".")[0]
        return f"install the package that has '{top}', beside Trireme, or correct the name"
    if isinstance(error, NameError) and name in {*_TYPES, "model", "RequestContext"}:
        return f"write at the top: from trireme import {name}"
    if isinstance(error, NameError) or (isinstance(error, ImportError) and name == "trireme"):
        quoted = re.search(r"name '(\w+)'", str(error))
        near = get_close_matches(quoted[1] if quoted else "", sorted(_TYPES), n=2)
        return f"did you mean: {' or '.join(near)}? Types are: {', '.join(sorted(_TYPES))}" if near else ""
    if isinstance(error, FileNotFoundError):
        own = 'pathlib.Path(__file__).with_name("NAME")'
        return f"put the file there, or give its path from the code's own directory: {own}"
    return ""


def main(words: Sequence[str]) -> None:
    """Say what the app has."""
    app, descriptor = words
    answer = json.dumps(_inspect(app)).encode()
    with open(int(descriptor), "wb") as told:
        told.write(answer)


if __name__ == "__main__":
    main(sys.argv[1:])
