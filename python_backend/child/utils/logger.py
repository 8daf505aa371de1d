"""`Logger`: lines in the server's log, with the place in the user's code that wrote them
(docs/reference/python-backend.md#metrics-and-the-log)."""

from __future__ import annotations

import enum
import sys

from .arguments import text
from .context import current


class LogLevel(enum.IntEnum):
    """How grave a line is."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3

    __str__ = enum.Enum.__str__


class Logger:
    """Writes to the server's log. All methods are static."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        _write(message, level)

    @staticmethod
    def log_info(message: str) -> None:
        _write(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        _write(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        _write(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        _write(message, LogLevel.VERBOSE)


def _write(message: str, level: LogLevel) -> None:
    """Log for the caller of the caller."""
    message = text("Logger: message", message)
    if not isinstance(level, LogLevel):
        raise TypeError(f"Logger: level must be a LogLevel, such as Logger.INFO, found type {type(level)}")
    frame = sys._getframe(2)
    current().host.log(level.name, frame.f_code.co_filename, frame.f_lineno, message)
