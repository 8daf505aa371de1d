"""Which model the code that calls the utilities belongs to.

In a process of its own there is one model and never a doubt. In the server's process there may be several: the code
that runs a model's code says so first (`entered`), which holds for that thread or task. A thread that user code starts
itself knows nothing of this; it is taken to belong to the model that was installed last, which is right but for the
instance's name in error texts.
"""

from __future__ import annotations

import contextvars
import enum
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

from .errors import HostError, TritonModelException, text
from .response import Host


@dataclass(eq=False)
class ModelContext:
    """One model instance and what it may do now: `connected` once `initialize` has begun, it may ask the server for
    things (it may always log); `serving` until `finalize` begins, it may call other models."""

    host: Host
    version_directory: str
    connected: bool = False
    serving: bool = False


class _Known:
    """The contexts of this process: the one of the running thread or task, and the one installed last."""

    def __init__(self) -> None:
        self.running: contextvars.ContextVar[ModelContext | None] = contextvars.ContextVar("model", default=None)
        self.installed: ModelContext | None = None


_known = _Known()


def install(context: ModelContext) -> None:
    """Make `context` the one of code that runs outside of `entered`."""
    _known.installed = context


def uninstall(context: ModelContext) -> None:
    """Forget `context` if it is still the one installed last."""
    if _known.installed is context:
        _known.installed = None


def current() -> ModelContext:
    """The context of the calling code. TritonModelException if no model is hosted here."""
    context = _known.running.get() or _known.installed
    if context is None:
        raise TritonModelException("triton_python_backend_utils is used outside of a model that a server hosts.")
    return context


def asking(what: str) -> Host:
    """The server, for `what` (a function's name). TritonModelException if the model is only being imported or
    completed."""
    context = current()
    if not context.connected:
        raise TritonModelException(f"{what} is not available before initialize, as in auto_complete_config.")
    return context.host


def ask(host: Host, failure: str, method: str, *arguments: Any) -> Any:
    """Ask the server (`Host.ask`). TritonModelException if it refuses; the text begins with `failure`."""
    try:
        return host.ask(method, *arguments)
    except HostError as error:
        raise TritonModelException(
            f"{failure}: Failed to process the request for model '{host.instance_name}', message: {error}"
        ) from None


class entered:  # noqa: N801 - used like a function, and quicker than a generator
    """Run code of the model of `context`: ``with entered(context): ...``."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: ModelContext) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = _known.running.set(self._context)

    def __exit__(self, *failure: object) -> None:
        _known.running.reset(self._token)


# `Logger`: lines in the server's log, with the place in the user's code that wrote them
# (docs/reference/python-backend.md#metrics-and-the-log).


class LogLevel(enum.IntEnum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3

    __str__ = enum.Enum.__str__


def _write(message: str, level: LogLevel = LogLevel.INFO) -> None:
    """Log for the caller."""
    message = text("Logger: message", message)
    if not isinstance(level, LogLevel):
        raise TypeError(f"Logger: level must be a LogLevel, such as Logger.INFO, found type {type(level)}")
    frame = sys._getframe(1)
    current().host.log(level.name, frame.f_code.co_filename, frame.f_lineno, message)


class Logger:
    """Writes to the server's log. All methods are static."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    log = staticmethod(_write)
    log_info = staticmethod(partial(_write, level=LogLevel.INFO))
    log_warn = staticmethod(partial(_write, level=LogLevel.WARNING))
    log_error = staticmethod(partial(_write, level=LogLevel.ERROR))
    log_verbose = staticmethod(partial(_write, level=LogLevel.VERBOSE))


# Where a tensor should lie: `MemoryType` and `PreferredMemory` (docs/reference/python-backend.md#module-members); and
# the memory that is shared with the server.


class MemoryType(enum.IntEnum):
    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1

    __str__ = enum.Enum.__str__


class PreferredMemory:
    """Where the outputs of a request to another model should lie."""

    __slots__ = ("_device_id", "_memory_type")

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self._memory_type = preferred_memory_type
        self._device_id = preferred_device_id


DEFAULT_MEMORY = PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU)
"""Wherever the answering model leaves them."""


class SharedMemory:
    """``c_python_backend_utils.shared_memory``."""

    __slots__ = ()

    def free_memory(self) -> int:
        """Bytes of shared memory that have been made and are free for the model's next messages. None is made before it
        is needed, and more whenever it is, so that 0 does not mean that there is none left."""
        return current().host.free_memory()
