"""What a person at a terminal sees while models load: what is loading, since when, and how many are done."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from ..logging import LineHandler, Streams

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
    from .load_board import load_progress  # only here: a service has no terminal, and needs nothing that draws

    with load_progress() as (board, above):
        before = log.log
        if before is log.console:
            log.log = Streams(above if os.isatty(1) else before.ordinary, above)
        try:
            yield board.update
        finally:
            log.log = before
