"""The models that SageMaker has loaded on an endpoint of several models, each from a repository of its own
(docs/reference/cloud-front-ends.md#several-models).

Rules:
 1. The platform tells models apart by names of its own; what a model is called here, a header says.
 2. Loading registers the model's directory, and takes it away again if the model does not load. A model is listed once
    it is loaded; its name is taken before.
 3. A caller that leaves does not end its load: the model is listed then, and can be unloaded.
 4. Unloading is of the model that was loaded, whatever the header says then; a model of its name in another repository
    stays. It waits until no version is left, for 350 seconds at most, and then takes the directory away.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import trio

from ...actors.offload import Offload
from ...engine.description import ModelActorStatistics, ModelState
from ...engine.errors import AlreadyExistsError, InvalidArgumentError, TriremeError
from ...engine.repository.registered import RegisteredRepositories
from ...engine.tensor import Buffer

UNLOAD_LIMIT_S = 350.0
"""The platform waits ten seconds longer."""

MODELS = Path("/opt/ml/models")
"""Where the platform puts models: a directory for each, with a directory ``model`` in it."""

_PART = re.compile(r"[0-9A-Za-z._]+")
_ENSEMBLE = re.compile(rb'platform:\s*"ensemble"')
_GUARDED = ("/dev/", "/proc/", "/sys/")
_CONFIG = "config.pbtxt"


class HostingServer(Protocol):
    """What of `InferenceServer` it takes."""

    @property
    def repositories(self) -> RegisteredRepositories: ...
    @property
    def offload(self) -> Offload: ...
    def model_statistics(self) -> list[ModelActorStatistics]: ...
    async def load_model(self, name: str, parameters: Mapping[str, str | Buffer]) -> None: ...
    async def unload_model(self, name: str, unload_dependents: bool = False, namespace: str = "") -> None: ...
    async def changed(self) -> None: ...


class GuardedPathError(InvalidArgumentError):
    """A path that is none of models at all."""


class HostedModel(NamedTuple):
    """A model that is listed: its platform's name, and its repository."""

    name: str
    repository: str
    ready: bool


@dataclass(slots=True, eq=False)
class _Hosted:
    repository: Path
    model: str
    loaded: bool = False
    leaving: bool = False


class HostedModels:
    """What is loaded for the platform.

    Args:
        root: where models are.
    """

    def __init__(self, server: HostingServer, root: Path = MODELS) -> None:
        self._server = server
        self._root = root
        self._hosted: dict[str, _Hosted] = {}

    def __contains__(self, name: str) -> bool:
        hosted = self._hosted.get(name)
        return hosted is not None and hosted.loaded

    def listed(self) -> list[HostedModel]:
        """In the order of loading."""
        return [
            HostedModel(name, str(each.repository), ModelState.READY in self._states(each))
            for name, each in self._hosted.items()
            if each.loaded
        ]

    def repository_of(self, name: str) -> str | None:
        """Of a model that is listed."""
        return str(self._hosted[name].repository) if name in self else None

    async def load(self, name: str, model: str, url: str) -> None:
        """Load a model.

        Args:
            name: the platform's.
            model: what it is called here.
            url: its path.

        Raises:
            AlreadyExistsError: the name is taken, or the path.
            TriremeError: the path is none of a model, or the model does not load.
        """
        path = model_path(url, self._root)
        for each in (name, model):
            if not _is_utf8(each):
                raise InvalidArgumentError(f"the name of a model must be in UTF-8, got: {each!a}")
            if not each or "/" in each:
                raise InvalidArgumentError(
                    f"the name of a model must not be empty, or have a slash in it, got: '{each}'"
                )
        offload, repositories = self._server.offload, self._server.repositories
        repository, names = await offload(_find, path, model)
        await offload(repositories.register, repository, names)
        if name in self._hosted:
            repositories.unregister(repository)
            raise AlreadyExistsError(f"model '{name}' has already been loaded")
        hosted = self._hosted[name] = _Hosted(repository, model)
        try:
            await self._server.load_model(model, {})
        except TriremeError:
            del self._hosted[name]
            repositories.unregister(repository)
            raise
        except trio.Cancelled:
            hosted.loaded = True  # rule 3
            raise
        hosted.loaded = True

    async def unload(self, name: str) -> bool:
        """Unload a model, and what only it needs; whether there was one.

        Raises:
            TriremeError: it cannot be unloaded, or its directory not be taken away.
        """
        hosted = self._hosted.get(name)
        if hosted is None or not hosted.loaded or hosted.leaving:
            return False
        hosted.leaving = True
        try:
            await self._server.unload_model(hosted.model, True, namespace=str(hosted.repository))
            with trio.move_on_after(UNLOAD_LIMIT_S):
                while not self._states(hosted) <= {ModelState.UNAVAILABLE}:
                    await self._server.changed()
        except (TriremeError, trio.Cancelled):
            hosted.leaving = False
            raise
        del self._hosted[name]
        self._server.repositories.unregister(hosted.repository)
        return True

    def _states(self, hosted: _Hosted) -> set[ModelState]:
        """Of its versions."""
        namespaces = ("", str(hosted.repository))
        versions = [each for each in self._server.model_statistics() if each.name == hosted.model]
        return {each.state for each in versions if each.namespace in namespaces}


def model_path(url: str, root: Path) -> Path:
    """The path that a load request names.

    Raises:
        GuardedPathError: the system's own.
        InvalidArgumentError: it is not one of `root`.
    """
    path = Path(os.path.abspath(url))
    if f"{path}/".startswith(_GUARDED):
        raise GuardedPathError(f'"url" property value cannot start with {", ".join(_GUARDED)}')
    parts = list(path.relative_to(root).parts) if path.is_relative_to(root) else []
    if len(parts) not in (2, 3) or parts[1] != "model" or not all(map(_PART.fullmatch, parts)):
        raise InvalidArgumentError(
            f"Invalid \"url\" '{url}': expected a path of the form {root}/<hash>/model[/<subdir>]"
        )
    return path


def _is_utf8(text: str) -> bool:
    """Of a header, whose other bytes are surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _find(path: Path, model: str) -> tuple[Path, dict[str, str]]:
    """The repository that a path means, and of which of its directories the model is. A path with a configuration is
    a model's, any other one a repository's: the model is the ensemble in it, or else its last one."""
    if (path / _CONFIG).is_file():
        return path.parent, {path.name: model}
    chosen = ""
    try:
        directories = sorted(each for each in path.iterdir() if each.is_dir())
    except OSError:
        return path, {}
    for each in directories:
        chosen = each.name
        if _is_ensemble(each / _CONFIG):
            break
    return path, {chosen: model} if chosen else {}


def _is_ensemble(config: Path) -> bool:
    try:
        return _ENSEMBLE.search(config.read_bytes()) is not None
    except OSError:
        return False
