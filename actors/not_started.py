"""A server that goes on although it could not start (``--exit-on-error=false``): its repository cannot be read, say.

It answers about itself, and refuses whatever is about models with ``Server not ready``, for good, as Triton does. These
two take the places of their namesakes, so that a server that did start pays nothing for the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Never

from ..engine.backends.services import NOT_READY
from ..engine.description import IndexEntry
from ..engine.errors import InternalError, UnavailableError
from ..engine.request import LATEST
from ..engine.tensor import Buffer
from .model_control import ModelControl
from .repository import Repository


class StartupError(InternalError):
    """The server could not start as it was told to.

    Attributes:
        index: the repository index at that moment, before everything was unloaded again.
    """

    def __init__(self, message: str, index: Sequence[IndexEntry]) -> None:
        super().__init__(message)
        self.index = tuple(index)


class NoRepository(Repository):
    """Has no models; each call about one is refused with the reason."""

    def find(self, name: str, version: int = LATEST) -> Never:
        raise _not_ready()

    def model_ready(self, name: str, version: int = LATEST) -> Never:
        raise _not_ready()

    def statistics(self, name: str = "", version: int = LATEST) -> Never:
        raise _not_ready()

    def index(self, ready_only: bool = False) -> Never:
        raise _not_ready()


class NoControl(ModelControl):
    """Loads nothing."""

    repository_class = NoRepository

    async def rescan(self) -> None:
        raise _not_ready()

    async def load(self, name: str, parameters: Mapping[str, str | Buffer]) -> None:
        raise _not_ready()

    async def unload(self, name: str, unload_dependents: bool) -> None:
        raise _not_ready()


def _not_ready() -> UnavailableError:
    return UnavailableError(NOT_READY)
