"""How far a long piece of work is: a bar at a terminal where rich is installed, else lines on standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec

Progress = Callable[[str, float], None]
"""Told what is being done, and which part of all is done, 0 to 1."""


@contextlib.contextmanager
def shown_progress(title: str) -> Iterator[Progress]:
    """Show it while the block runs."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield _line
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        *(TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda text, part: bar.update(task, description=text, completed=part)


def _line(text: str, part: float) -> None:
    sys.stderr.write(f"{part:4.0%}  {text}\n")
    sys.stderr.flush()
