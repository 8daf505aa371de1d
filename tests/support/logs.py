"""A log for servers under test: its settings are real, what it writes goes nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trireme.api.logging import LineHandler, Log, LogSettings, Streams, logger


@contextmanager
def unheard_log(**settings: Any) -> Iterator[Log]:
    """A log that no logger sends lines to.

    Args:
        settings: fields of `LogSettings`.
    """
    nowhere = Streams(lambda _line: None, lambda _line: None)
    handler = LineHandler(nowhere, nowhere)
    level = logger.level
    try:
        yield Log(LogSettings(**settings), handler)
    finally:
        logger.setLevel(level)
        handler.close()
