"""Why models did not load, from the server's log: the index has no reason for a configuration that was refused."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator

_FAILED = re.compile(
    r"(?:Poll failed for model directory|failed to load|failed to poll model) '(.+?)'(?: version \d+)?: (.*)", re.DOTALL
)


class LoadLog(logging.Handler):
    """A handler that writes nothing.

    Attributes:
        failures: the last text of each model.
        warnings: one after the other.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.failures: dict[str, str] = {}
        self.warnings: list[str] = []

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear the server's log for the length of a `with` block."""
        log = logging.getLogger("trireme")
        log.addHandler(self)
        try:
            yield
        finally:
            log.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "bare", False):
            return
        message = record.getMessage()
        if found := _FAILED.match(message):
            self.failures[found[1]] = found[2]
        elif record.levelno == logging.WARNING:
            self.warnings.append(message)


def is_load_failure(record: logging.LogRecord) -> bool:
    """Whether a log line says that a model did not load, or is the detail of one that does."""
    message = record.getMessage()
    return _FAILED.match(message) is not None or message.startswith("Error parsing text-format")
