"""What a model's process prints, or has logged, on its way to the server's console and log.

What it prints is passed on as it is: whole lines, in pieces of many, as records with the attribute `bare`, which the
log writes without a preamble. JSON logs make an object of each line.
"""

from __future__ import annotations

import codecs
import logging
import os

LONGEST_LINE = 65_536
"""Characters; longer lines are broken."""

_READ_BYTES = 65_536
_PIPE_BYTES = 1 << 20
"""No pipe of a user's holds more."""

_LEVELS = {"INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR, "VERBOSE": logging.DEBUG}

logger = logging.getLogger("trireme.python")


def log_line(level: str, filename: str, line: int, text: str) -> None:
    """A line in the server's log, as if it came from the user's file; INFO if the utilities know no such level."""
    number = _LEVELS.get(level, logging.INFO)
    if logger.isEnabledFor(number):
        logger.handle(logger.makeRecord(logger.name, number, filename, line, text, (), None))


class OutputLog:
    """One of a process's output streams: the reading end of a pipe, which `close` closes. INFO lines go to the server's
    standard output, graver ones to its standard error."""

    def __init__(self, descriptor: int, name: str, pace: Pace, level: int = logging.INFO) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._name = name
        self._pace = pace
        self._level = level
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = ""

    def read(self, now_s: float) -> float | None:
        """Pass on the lines that there are. Seconds to wait before the next call; None at the end of the stream."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return 0.0
        lines = self._take(data)
        return self._pace.spend(len(data), lines // PRINTED_PER_LINE, now_s) if data else None

    def close(self) -> None:
        """Pass on what is left, and close the pipe. Processes that the model started may still hold the other end, and
        write faster than it can be passed on: more than a pipe holds was not left by the model."""
        left = _PIPE_BYTES
        data = b"?"
        while left > 0 and data:
            try:
                data = os.read(self._descriptor, min(left, _READ_BYTES))
            except BlockingIOError:
                break
            left -= len(data)
            self._take(data)
        self._take(b"")
        os.close(self._descriptor)

    def _take(self, data: bytes) -> int:
        """Pass on all whole lines, with this at their end (nothing: there will not be more); how many they are."""
        text = self._rest + self._decoder.decode(data, final=not data)
        end = text.rfind("\n") + 1 if data else len(text)
        while len(text) - end >= LONGEST_LINE:  # of the last one, broken
            if end:
                self._write(text[:end])
            text = text[end:]
            end = LONGEST_LINE
        piece, self._rest = text[:end], text[end:]
        if piece:
            self._write(piece)
        return piece.count("\n") + 1

    def _write(self, piece: str) -> None:
        logger.log(self._level, "%s", piece.removesuffix("\n"), extra={"bare": True, "model": self._name})


# How fast a model's output and log lines are taken in.
#
# Rules:
#  1. Output costs time: `BYTES_PER_S` and `LINES_PER_S` say how much. What it costs is owed from then on.
#  2. Up to `BURST_S` may be owed. What is more has to be waited for before more is taken; the model waits meanwhile,
#     when its pipe, or its window for log lines, is full.


BYTES_PER_S = 32 << 20
LINES_PER_S = 10_000
PRINTED_PER_LINE = 5
"""Lines of output that cost as much as a log line: they are passed on together."""
BURST_S = 0.25


class Pace:
    """The pace of one instance, whatever it writes to."""

    __slots__ = ("_paid_at_s",)

    def __init__(self) -> None:
        self._paid_at_s = 0.0

    def spend(self, nbytes: int, lines: int, now_s: float) -> float:
        """Output was taken, of which the log makes so many lines; seconds to wait before more is."""
        cost_s = nbytes / BYTES_PER_S + lines / LINES_PER_S
        self._paid_at_s = max(self._paid_at_s, now_s) + cost_s
        return max(0.0, self._paid_at_s - now_s - BURST_S)
