"""``--request-log``: the arrivals of requests, in a file that the simulator can play (`engine.logs.request_log`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...engine.clock import SystemClock
from ...engine.errors import InvalidArgumentError
from ...engine.logs.request_log import RequestLog
from ...engine.request import InferenceRequest

logger = logging.getLogger("trireme.serve")

_BUFFER_BYTES = 1 << 16


class _Lines:
    """A file that takes lines for as long as it can. What is lost for want of disk space is no reason to fail requests,
    so the first failure is logged and ends the log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w", buffering=_BUFFER_BYTES, encoding="utf-8")
        self._broken = False

    def write(self, line: str) -> None:
        if self._broken:
            return
        try:
            self._file.write(line)
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if not self._broken:
            self._broken = True
            logger.error("the request log '%s' ends here: %s", self._path, error.strerror)


@contextmanager
def logging_requests(path: Path) -> Iterator[Callable[[InferenceRequest, int], None]]:
    """Open a request log for the length of a `with` block; what was in the file is overwritten. It yields what to call
    with each request that arrives, and its batch size. InvalidArgumentError if the file cannot be opened."""
    try:
        lines = _Lines(path)
    except OSError as error:
        raise InvalidArgumentError(f"cannot open request log '{path}': {error.strerror}") from error
    try:
        yield RequestLog(lines.write, SystemClock()).arrived
    finally:
        lines.close()
