"""What is drawn at a terminal while models load."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from ...engine.description import ModelState
from ..logging import Write


@contextlib.contextmanager
def load_progress() -> Iterator[tuple[LoadBoard, Write]]:
    """A board on stderr, gone when the block ends, and what writes lines above it."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield LoadBoard(progress), _above(progress.console)


def _above(console: Console) -> Write:
    return lambda line: console.print(Text(line.decode(errors="replace").rstrip("\n")), soft_wrap=True)


class LoadBoard:
    """A line for each version that is loading, under one that counts."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._loading: dict[tuple[str, int], TaskID] = {}
        self._ready = self._failed = 0
        self._total = progress.add_task("looking for models")

    def update(self, model: str, version: int, state: str) -> None:
        """A version's state is now `state`, the name of a `ModelState`."""
        line = self._loading.pop((model, version), None)
        if line is not None:
            self._progress.remove_task(line)
        if state == ModelState.LOADING.value:
            self._loading[model, version] = self._progress.add_task(f"  {model}, version {version}")
        elif line is not None:
            self._ready += state == ModelState.READY.value
            self._failed += state != ModelState.READY.value
        counts = f"loading models: {self._ready} ready, {len(self._loading)} loading"
        counts += f", {self._failed} failed" if self._failed else ""
        self._progress.update(self._total, description=counts, refresh=True)
