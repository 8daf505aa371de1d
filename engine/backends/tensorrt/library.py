"""The tensorrt package: imported when a model needs it, never before; its log; the libraries with plugins.

TensorRT says why something failed in its log only: calls return None or False. So the log keeps what is said while a
call is made.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...errors import InvalidArgumentError, UnavailableError

_log = logging.getLogger(__name__)

_OLDEST_MAJOR = 10
"""Of TensorRT's versions, the first whose engines may be used by several contexts with one profile at a time."""

_LEVELS = {
    "INTERNAL_ERROR": logging.ERROR,
    "ERROR": logging.ERROR,
    "WARNING": logging.WARNING,
    "INFO": logging.INFO,
    "VERBOSE": logging.DEBUG,
}


@dataclass(frozen=True, slots=True)
class Library:
    """TensorRT, ready for use: one a process, because its log is.

    Attributes:
        trt: the package.
        log: the ``ILogger`` that everything is made with; outlives all of that.
        errors: what it has been told that failed.
        building: held while an engine is read, which TensorRT does one at a time.
    """

    trt: Any
    log: Any
    errors: ErrorTexts
    building: threading.Lock = field(default_factory=threading.Lock)


class ErrorTexts:
    """The errors that TensorRT has logged on the calling thread. Used from any thread."""

    def __init__(self) -> None:
        self._local = threading.local()

    def add(self, text: str) -> None:
        """An error was logged."""
        texts = getattr(self._local, "texts", None)
        if texts is not None:
            texts.append(text)

    @contextmanager
    def caught(self) -> Iterator[list[str]]:
        """Collect what the calling thread logs meanwhile."""
        texts: list[str] = []
        self._local.texts = texts
        try:
            yield texts
        finally:
            self._local.texts = None


def import_library(plugins: Sequence[str] = ()) -> Library:
    """TensorRT, with its own plugins and those of more libraries.

    Args:
        plugins: paths of libraries that register plugins when they are loaded.

    Raises:
        UnavailableError: it is not installed, broken, or too old.
        InvalidArgumentError: a library of plugins cannot be loaded.
    """
    try:
        trt = importlib.import_module("tensorrt")
    except (ImportError, OSError) as error:
        raise UnavailableError(
            f"the backend 'tensorrt' needs the package tensorrt: pip install trireme[tensorrt] ({error})"
        ) from error
    if int(trt.__version__.partition(".")[0]) < _OLDEST_MAJOR:
        raise UnavailableError(
            f"the backend 'tensorrt' needs TensorRT {_OLDEST_MAJOR} or later, not {trt.__version__}: pip install "
            "trireme[tensorrt]"
        )
    errors = ErrorTexts()
    log = _make_log(trt, errors)
    for path in plugins:
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise InvalidArgumentError(f"unable to load the TensorRT plugins of '{path}': {error}") from None
    trt.init_libnvinfer_plugins(log, "")
    return Library(trt, log, errors)


def _make_log(trt: Any, errors: ErrorTexts) -> Any:
    """An ``ILogger`` that writes to Trireme's log. TensorRT calls it from any thread."""

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)  # not super(): the class is one of C++

        def log(self, severity: Any, message: str) -> None:
            level = _LEVELS[severity.name]
            _log.log(level, "TensorRT: %s", message)
            if level >= logging.ERROR:
                errors.add(message)

    return Log()
