"""Which files an app consists of: its own, and those beside it that it imports, at the top or within functions.

They are found by reading, and nothing is run. What only a run can know (``importlib.import_module`` of a name that is
put together) is not found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def local_sources(app: Path) -> list[Path]:
    """The app's file first, then the others by name. What cannot be read as Python imports nothing."""
    directory = app.parent
    found: set[Path] = set()
    pending = [app]
    while pending:
        path = pending.pop()
        if path in found:
            continue
        found.add(path)
        for name in _imported(path, directory):
            pending.extend(_files_of(name, directory))
    return [app, *sorted(found - {app})]


def _imported(path: Path, directory: Path) -> Iterator[str]:
    """Dotted names; of ``from a import b`` also ``a.b``, which may be a module."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    package = path.relative_to(directory).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
            yield from (f"{base}.{each.name}".lstrip(".") for each in node.names)


def _files_of(name: str, directory: Path) -> Iterator[Path]:
    """Files that importing this name runs, of those below the directory."""
    base = directory
    for part in name.split("."):
        base = base / part
        for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if path.is_file():
                yield path
