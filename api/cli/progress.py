"""What a person at a terminal sees while models load: what is loading, since when, and how many are done."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ...engine.description import ModelState
from ..logging import LineHandler, Streams

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

OnLoad = Callable[[str, int, str], None]


@contextlib.contextmanager
def load_display(log: LineHandler) -> Iterator[OnLoad]:
    """Show how loading goes, on stderr, if that is a terminal; gone when the block ends.

    Log lines that go to the same terminal appear above it.

    Yields:
        What to call with (model, version, state) when a version's state changes.
    """
    if not sys.stderr.isatty():
        yield lambda _model, _version, _state: None
        return
    from rich.console import Console  # only here: a service has no terminal, and needs nothing that draws
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        board, console = LoadBoard(progress), progress.console

        def above(line: bytes) -> None:
            console.print(Text(line.decode(errors="replace").rstrip("\n")), soft_wrap=True)

        before = log.log
        if before is log.console:
            log.log = Streams(above if os.isatty(1) else before.ordinary, above)
        try:
            yield board.update
        finally:
            log.log = before


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
