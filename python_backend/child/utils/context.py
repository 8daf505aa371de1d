"""Which model the code that calls the utilities belongs to.

In a process of its own there is one model and never a doubt. In the server's process there may be several: the code
that runs a model's code says so first (`entered`), which holds for that thread or task. A thread that user code starts
itself knows nothing of this; it is taken to belong to the model that was installed last, which is right but for the
instance's name in error texts.
"""

from __future__ import annotations

import contextvars

from .errors import TritonModelException
from .host import Host


class ModelContext:
    """One model instance and what it may do now.

    Args:
        host: the server, as this instance sees it.
        version_directory: what ``get_model_dir()`` answers.

    Attributes:
        connected: `initialize` has begun, so that the model may ask the server for things; it may always log.
        serving: `initialize` is over and `finalize` has not begun, so that the model may call other models.
    """

    __slots__ = ("connected", "host", "serving", "version_directory")

    def __init__(self, host: Host, version_directory: str) -> None:
        self.host = host
        self.version_directory = version_directory
        self.connected = False
        self.serving = False


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
    """The context of the calling code.

    Raises:
        TritonModelException: no model is hosted here.
    """
    context = _known.running.get() or _known.installed
    if context is None:
        raise TritonModelException("triton_python_backend_utils is used outside of a model that a server hosts.")
    return context


def asking(what: str) -> Host:
    """The server, for `what` (a function's name).

    Raises:
        TritonModelException: the model is only being imported or completed.
    """
    context = current()
    if not context.connected:
        raise TritonModelException(f"{what} is not available before initialize, as in auto_complete_config.")
    return context.host


class entered:  # noqa: N801 - used like a function, and quicker than a generator
    """Run code of the model of `context`: ``with entered(context): ...``."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: ModelContext) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = _known.running.set(self._context)

    def __exit__(self, *failure: object) -> None:
        _known.running.reset(self._token)
