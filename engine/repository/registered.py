"""Repositories that are registered while the server runs, beside those that it was started with
(docs/reference/model-control.md#registered-repositories).

Rules:
 1. A directory is registered once, and is looked at from the next load on. Nothing is loaded by registering.
 2. A model may be called otherwise than its directory; then its configuration may name it otherwise, too.
 3. A registered directory that cannot be read has no models; the others are found all the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import AlreadyExistsError, InvalidArgumentError, TriremeError, UnsupportedError
from ..options import ControlMode, ServerOptions
from .local import LocalModel, LocalRepository
from .source import ModelSource, RepositorySource, Scan

logger = logging.getLogger("trireme.repository")

_NOT_EXPLICIT = "repository {} is not allowed if model control mode is not EXPLICIT"


class RenamedModel(LocalModel):
    """A model whose name is not that of its directory, whatever its configuration says."""

    def _read(self, options: ServerOptions, config_json: str | None) -> Any:
        message = super()._read(options, config_json)
        message.name = self.name
        return message


class RegisteredRepositories:
    """The models of a source, and those of the directories that are registered (see `RepositorySource`). Callable from
    several threads."""

    def __init__(self, first: RepositorySource, options: ServerOptions) -> None:
        self._first = first
        self._options = options
        self._lock = threading.Lock()  # guards what follows
        self._names: dict[Path, Mapping[str, str]] = {}

    def register(self, path: Path, names: Mapping[str, str]) -> None:
        """Add a directory. Reads the disk, so it is called off the event loop.

        Args:
            path: absolute.
            names: of models that are not called like their directories, by the names of those.

        Raises:
            UnsupportedError: not in this control mode.
            InvalidArgumentError: there is no such directory.
            AlreadyExistsError: it is registered, or a name is given to a model of another directory.
        """
        self._check_mode("registration")
        if not path.is_dir():
            raise InvalidArgumentError(f"failed to register '{path}', repository not found")
        if path in self._options.model_repository:
            raise _known(path)
        with self._lock:
            if not self._options.model_namespacing:
                taken = {name for given in self._names.values() for name in given.values()}
                for name in taken.intersection(names.values()):
                    raise AlreadyExistsError(
                        f"failed to register '{name}', there is a conflicting mapping for '{name}'"
                    )
            if path in self._names:
                raise _known(path)
            self._names[path] = dict(names)
        logger.info("Model repository registered: %s", path)

    def unregister(self, path: Path) -> None:
        """Take a directory away again. What is loaded from it stays loaded.

        Raises:
            UnsupportedError: not in this control mode.
            InvalidArgumentError: it is not registered.
        """
        self._check_mode("unregistration")
        with self._lock:
            known = self._names.pop(path, None)
        if known is None:
            raise InvalidArgumentError(f"failed to unregister '{path}', repository not found")
        logger.info("Model repository unregistered: %s", path)

    def _check_mode(self, what: str) -> None:
        if self._options.model_control_mode is not ControlMode.EXPLICIT:
            raise UnsupportedError(_NOT_EXPLICIT.format(what))

    def scan(self) -> Scan:
        """See `RepositorySource`."""
        first = self._first.scan()
        with self._lock:
            registered = tuple(self._names.items())
        if not registered:
            return first
        sources = [*first.models]
        for path, names in registered:
            sources += self._look(path, names)
        found: dict[str, list[ModelSource]] = {name: [] for name in first.duplicates}
        for source in sources:
            found.setdefault(source.id, []).append(source)
        duplicates = {each for each, places in found.items() if len(places) != 1}
        models = tuple(places[0] for each, places in sorted(found.items()) if each not in duplicates)
        return Scan(models, tuple(sorted(duplicates)))

    def _look(self, path: Path, names: Mapping[str, str]) -> Iterable[ModelSource]:
        try:
            models = LocalRepository([path], namespacing=self._options.model_namespacing).scan().models
        except TriremeError as error:
            logger.warning("registered repository '%s' cannot be read: %s", path, error.message)
            return
        for model in models:
            if isinstance(model, LocalModel) and model.directory.name in names:
                yield RenamedModel(model.directory, names[model.directory.name], model.namespace)
            else:
                yield model


def _known(path: Path) -> AlreadyExistsError:
    return AlreadyExistsError(f"model repository '{path}' has already been registered")
