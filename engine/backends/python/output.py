"""What a model's process prints, or has logged, becomes lines of the server's log."""

from __future__ import annotations

import logging
import os

LONGEST_LINE_BYTES = 8192
"""Longer lines are broken."""

_READ_BYTES = 65_536
_PIPE_BYTES = 1 << 20
"""No pipe of a user's holds more."""

_LEVELS = {"INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR, "VERBOSE": logging.DEBUG}

logger = logging.getLogger("trireme.python")


def log_line(level: str, filename: str, line: int, text: str) -> None:
    """A line in the server's log, as if it came from the user's file.

    Args:
        level: as the utilities name it; INFO if they do not.
    """
    number = _LEVELS.get(level, logging.INFO)
    if logger.isEnabledFor(number):
        logger.handle(logger.makeRecord(logger.name, number, filename, line, text, (), None))


class OutputLog:
    """One of a process's output streams.

    Args:
        descriptor: the reading end of a pipe; `close` closes it.
        name: of the instance, for people.
        level: for the lines.
    """

    def __init__(self, descriptor: int, name: str, level: int = logging.INFO) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._name = name
        self._level = level
        self._rest = b""

    def read(self) -> bool:
        """Log what there is; False at the end of the stream."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        self._split(data)
        if not data:
            self._log_rest()
        return bool(data)

    def close(self) -> None:
        """Log what is left, and close the pipe. Processes that the model started may still hold the other end, and
        write faster than it can be logged: more than a pipe holds was not left by the model."""
        left = _PIPE_BYTES
        while left > 0:
            try:
                data = os.read(self._descriptor, min(left, _READ_BYTES))
            except BlockingIOError:
                break
            if not data:
                break
            left -= len(data)
            self._split(data)
        self._log_rest()
        os.close(self._descriptor)

    def _split(self, data: bytes) -> None:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        while len(self._rest) > LONGEST_LINE_BYTES:
            lines.append(self._rest[:LONGEST_LINE_BYTES])
            self._rest = self._rest[LONGEST_LINE_BYTES:]
        for line in lines:
            self._log(line)

    def _log_rest(self) -> None:
        rest, self._rest = self._rest, b""
        self._log(rest)

    def _log(self, line: bytes) -> None:
        if line:
            logger.log(self._level, "[%s] %s", self._name, line.decode("utf-8", "replace").rstrip("\r"))
