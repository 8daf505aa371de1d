"""The repositories of a server, wherever they are, as one source of models."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..clock import Clock
from ..options import ServerOptions
from .cloud.addresses import is_store_address
from .local import LocalRepository
from .source import RepositorySource, Scan


def open_repositories(options: ServerOptions, environment: Mapping[str, str], clock: Clock) -> RepositorySource:
    """What `options.model_repository` names. Looks at nothing yet.

    Raises:
        InternalError: an address is malformed.
    """
    given = {str(each) for each in options.model_repository}
    stores = sorted(text for text in given if is_store_address(text))
    directories = [Path(text) for text in given.difference(stores)]
    local = LocalRepository(directories, namespacing=options.model_namespacing)
    if not stores:
        return local
    from .cloud.opening import open_stores

    clouds = open_stores(stores, options, environment, clock)
    return JoinedRepositories([*([local] if directories else []), *clouds], namespacing=options.model_namespacing)


class JoinedRepositories:
    """Several sources, looked at as one."""

    def __init__(self, sources: Sequence[RepositorySource], *, namespacing: bool) -> None:
        self._sources = tuple(sources)
        self._namespacing = namespacing

    def scan(self) -> Scan:
        """See `RepositorySource`. A name that several of them have is a duplicate, unless there are namespaces."""
        scans = [source.scan() for source in self._sources]
        models = sorted(itertools.chain.from_iterable(scan.models for scan in scans), key=lambda model: model.id)
        if self._namespacing:
            return Scan(tuple(models))
        duplicates = {name for scan in scans for name in scan.duplicates}
        duplicates.update(name for name, count in Counter(model.name for model in models).items() if count > 1)
        return Scan(tuple(model for model in models if model.name not in duplicates), tuple(sorted(duplicates)))
