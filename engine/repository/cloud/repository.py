"""A repository in an object store. What a backend is given is always a local directory.

Rules:
 1. A look lists the repository, and fetches nothing.
 2. A model is fetched when it is about to be read: first what is in no version, then the versions that its
    configuration asks for. With repository agents, which may look at any file, all of it.
 3. What the cache has is not fetched again (`cache`). All of a load is fetched before the load begins, into a directory
    of its own; what serves is not touched.
 4. If the model has changed by the time that it is fetched, it is listed and fetched anew, `ATTEMPTS` times at most.
 5. Each look that finds a model other than the one before gives it a new revision, which stands for the time of its
    change. So only models that have changed are read again.
 6. When access is refused, the store is opened anew for the next call: credentials may have been replaced.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Collection, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ...backends.interface import ModelFiles
from ...cancellation import Cancellation
from ...clock import Clock
from ...config import select_versions
from ...config.model import ModelConfig, version_policy
from ...config.phases import read_message
from ...errors import InternalError, InvalidArgumentError, NotFoundError, TriremeError, UnavailableError
from ...options import ServerOptions
from ..agents import AgentRegistry
from ..local import LocalModel
from ..source import ModelSource, Scan
from ..temporary import TemporaryFolder
from .addresses import StoreAddress
from .cache import RepositoryCache
from .download import Download
from .listing import RemoteModel, RemoteObject, group_models
from .plans import same_bytes
from .store import ObjectChangedError, RemoteStore

logger = logging.getLogger("trireme.repository")

ATTEMPTS = 3

T = TypeVar("T")


class CloudRepository:
    """See above. Callable from several threads.

    Args:
        open_store: opens the store, with the credentials of that moment.
        open_cache: makes the repository's part of the cache, when it is first needed.
        namespacing: models of equal names from other repositories are other models.
        shared: users other than the server's read model directories, too.
    """

    def __init__(
        self,
        address: StoreAddress,
        open_store: Callable[[], RemoteStore],
        open_cache: Callable[[], RepositoryCache],
        clock: Clock,
        *,
        namespacing: bool = False,
        shared: bool = False,
    ) -> None:
        self.address = address
        self._clock = clock
        self._open_store = open_store
        self._open_cache = open_cache
        self._namespace = address.text if namespacing else ""
        self._shared = shared
        self._lock = threading.Lock()  # guards everything below
        self._store: RemoteStore | None = None
        self._cache: RepositoryCache | None = None
        self._seen = False
        self._models: dict[str, tuple[int, RemoteModel]] = {}  # what the last look found, with revisions
        self._revisions = itertools.count(1)

    def scan(self) -> Scan:
        """See `RepositorySource`.

        Raises:
            InvalidArgumentError: there never was anything.
        """
        listed = self._ask(lambda store: store.list())
        found = group_models(listed)
        with self._lock:
            self._seen = self._seen or bool(listed) or not self.address.prefix
            if not self._seen:
                raise InvalidArgumentError(f"repository path is not a valid directory: {self.address}")
            before, self._models = self._models, {}
            for name, model in found.items():
                known = before.get(name)
                unchanged = known is not None and known[1] == model
                self._models[name] = known if unchanged and known is not None else (next(self._revisions), model)
            named = sorted(self._models.items())
        return Scan(tuple(CloudModel(self, name, *each, namespace=self._namespace) for name, each in named))

    def model(self, name: str) -> RemoteModel:
        """What the store has of a model now.

        Raises:
            NotFoundError: nothing.
            TriremeError: the store cannot be read.
        """
        found = group_models(self._ask(lambda store: store.list(f"{name}/"))).get(name)
        if found is None:
            raise NotFoundError(f"model '{name}' is not in the repository '{self.address}' any more")
        return found

    def new_directory(self, name: str) -> tuple[TemporaryFolder, Path]:
        """A folder with an empty directory for a model in it."""
        folder = self._opened_cache().new_model()
        if self._shared:
            folder.share()
        directory = folder.path / name
        directory.mkdir()
        return folder, directory

    def bring(self, name: str, wanted: Collection[RemoteObject], directory: Path, cancellation: Cancellation) -> bool:
        """Put files into a model's directory, from the cache if it has them.

        Returns:
            Whether something was fetched.

        Raises:
            ObjectChangedError: an object is not there any more as it was listed.
            TriremeError: it cannot be fetched.
        """
        cache = self._opened_cache()
        missing = cache.link(wanted, directory)
        if missing:
            self._ask(lambda store: Download(name, missing, directory, store, cache, cancellation, self._clock).run())
        return bool(missing)

    def clean(self) -> None:
        """Remove from the cache what may leave it."""
        with self._lock:
            models = [model for _, model in self._models.values()]
        self._opened_cache().clean(models)

    def _ask(self, what: Callable[[RemoteStore], T]) -> T:
        """Rule 6."""
        with self._lock:
            if self._store is None:
                self._store = self._open_store()
            store = self._store
        try:
            return what(store)
        except UnavailableError:
            with self._lock:
                if self._store is store:
                    self._store = None
            raise

    def _opened_cache(self) -> RepositoryCache:
        with self._lock:
            if self._cache is None:
                self._cache = self._open_cache()
            return self._cache


class CloudModel(ModelSource):
    """A model in an object store, as one look found it.

    Args:
        revision: `repository`, rule 5.
    """

    distant = True

    def __init__(
        self, repository: CloudRepository, name: str, revision: int, listed: RemoteModel, namespace: str = ""
    ) -> None:
        super().__init__(name, namespace)
        self._repository = repository
        self._revision = revision
        self._listed = listed

    def modified_ns(self) -> int:
        """The revision."""
        return self._revision

    def fetch(self, options: ServerOptions, config_json: str | None, cancellation: Cancellation) -> FetchedModel:
        """See `ModelSource.fetch`."""
        listed = self._listed
        for _ in range(ATTEMPTS):
            try:
                return self._fetch(listed, options, config_json, cancellation)
            except ObjectChangedError as error:
                logger.info("fetching model '%s' anew: %s", self.name, error.message)
                listed = self._repository.model(self.name)
        raise UnavailableError(
            f"model '{self.name}' of the repository '{self._repository.address}' has changed {ATTEMPTS} times while it "
            "was being fetched"
        )

    def _fetch(
        self, listed: RemoteModel, options: ServerOptions, config_json: str | None, cancellation: Cancellation
    ) -> FetchedModel:
        if listed.problem:
            raise InvalidArgumentError(
                f"'{self._repository.address}' has no usable model '{self.name}': {listed.problem}"
            )
        with contextlib.ExitStack() as undo:
            folder, directory = self._repository.new_directory(self.name)
            undo.callback(folder.remove)
            for path in listed.directories:
                (directory / path).mkdir(parents=True, exist_ok=True)
            first = self._repository.bring(self.name, listed.of_versions(()), directory, cancellation)
            message = read_message(
                directory,
                config_name=options.model_config_name,
                override_json=config_json,
                auto_complete=options.auto_complete,
            )
            then = self._repository.bring(self.name, _wanted(listed, message), directory, cancellation)
            if (first or then) and not same_bytes(self._repository.model(self.name).objects, listed.objects):
                raise ObjectChangedError("it has changed since it was listed")
            undo.pop_all()
        if first or then:
            self._repository.clean()
        return FetchedModel(self._repository, folder, directory, self.name, self.namespace, listed)

    def open(
        self, options: ServerOptions, config_json: str | None, agents: AgentRegistry
    ) -> tuple[ModelSource, ModelConfig]:
        raise _not_fetched()

    def message(self, options: ServerOptions, config_json: str | None = None) -> Any | None:
        fetched = self.fetch(options, config_json, Cancellation())
        try:
            return fetched.message(options, config_json)
        finally:
            fetched.forget()

    def versions(self, config: ModelConfig) -> tuple[int, ...]:
        raise _not_fetched()

    def files(self, version: int) -> ModelFiles:
        raise _not_fetched()


def _not_fetched() -> InternalError:
    return InternalError("a model in an object store is fetched before it is opened")


def _wanted(listed: RemoteModel, message: Any) -> tuple[RemoteObject, ...]:
    """Rule 2."""
    if message.model_repository_agents.agents:
        return listed.objects
    there = tuple(listed.versions.values())
    policy = version_policy(message)
    policy = replace(policy, specific=tuple(version for version in policy.specific if version in there))
    try:
        return listed.of_versions(select_versions(policy, there, message.name))
    except InvalidArgumentError:  # nothing is left, which ends the load
        return listed.of_versions(())


class FetchedModel(LocalModel):
    """A model of an object store in a local directory, which is of one load.

    Args:
        listed: what the repository had when it was fetched.
    """

    temporary = True

    def __init__(
        self,
        repository: CloudRepository,
        folder: TemporaryFolder,
        directory: Path,
        name: str,
        namespace: str,
        listed: RemoteModel,
    ) -> None:
        super().__init__(directory, name, namespace)
        self._repository = repository
        self._folder = folder
        self._listed = listed
        self._served = False

    def contents(self) -> Hashable:
        """Everything that the repository has of the model, but for the configurations."""
        own = frozenset((each.path, each.key) for each in self._listed.objects if not each.in_config)
        return self._repository.address, own, self._listed.directories

    def outdated(self, contents: Hashable, modified_ns: int) -> bool:
        """Whether the repository has something else now; False if it cannot be asked."""
        try:
            return not same_bytes(self._repository.model(self.name).objects, self._listed.objects)
        except NotFoundError:
            return True
        except TriremeError:
            return False

    def load_ended(self, succeeded: bool) -> None:
        self._served = succeeded

    def forget(self) -> None:
        """Remove the directory."""
        self._folder.remove()

    def dispose(self) -> None:
        """Remove the directory, and what nothing needs any more from the cache: but not if it could not be loaded, for
        then it is tried again, and should not have to be fetched again for that."""
        self.forget()
        if self._served:
            self._repository.clean()
