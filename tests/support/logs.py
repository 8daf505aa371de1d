"""Logs of servers under test, and what was said there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from trireme.api.logging import LineHandler, Log, LogSettings, LogStreams, logger


@contextmanager
def unheard_log(**settings: Any) -> Iterator[Log]:
    """A log that no logger sends lines to: its settings are real, what it writes goes nowhere.

    The level is only set when settings are changed: a server that many tests share, and with it this log, may be there
    while other tests count what is said.

    Args:
        settings: fields of `LogSettings`.
    """
    nowhere = LogStreams(lambda _line: None, lambda _line: None)
    handler = LineHandler(nowhere, nowhere)
    level = logger.level
    try:
        log = Log(LogSettings(**settings), handler)
        logger.setLevel(level)
        yield log
    finally:
        logger.setLevel(level)
        handler.close()


def said_by(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """The messages of one logger. Servers that other tests share may be talking as well."""
    return [record.getMessage() for record in caplog.records if record.name == name]
