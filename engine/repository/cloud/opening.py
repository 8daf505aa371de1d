"""Repositories in object stores, as the options and the environment say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ...clock import Clock
from ...options import ServerOptions
from ..temporary import TemporaryFolder
from .addresses import StoreAddress, parse_address
from .cache import RepositoryCache
from .credentials import find_credential
from .repository import CloudRepository
from .settings import store_settings
from .store import RemoteStore, open_store

_MOUNTS = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "as": "TRITON_AZURE_MOUNT_DIRECTORY",
}
"""Variables that say where models of a cloud are kept, unless the options do."""


def open_stores(
    texts: Sequence[str], options: ServerOptions, environment: Mapping[str, str], clock: Clock
) -> list[CloudRepository]:
    """A repository for each address; looks at nothing yet. InternalError if an address is malformed."""
    place = CachePlace(options, environment)
    return [
        CloudRepository(
            address,
            partial(_open, address, environment),
            partial(place.cache, address),
            clock,
            namespacing=options.model_namespacing,
            shared=options.confinement.account is not None,
        )
        for address in map(parse_address, texts)
    ]


def _open(address: StoreAddress, environment: Mapping[str, str]) -> RemoteStore:
    return open_store(address, store_settings(address, find_credential(address, environment), environment, Path.home()))


class CachePlace:
    """Where the caches of repositories are: in the directory that the options name, or the variable for the cloud, or
    else in a temporary one, in which nothing stays that is not used."""

    def __init__(self, options: ServerOptions, environment: Mapping[str, str]) -> None:
        self._options = options
        self._environment = environment

    def cache(self, address: StoreAddress) -> RepositoryCache:
        """A repository's part. InternalError if it cannot be made."""
        given = self._options.repository_cache_directory or self._environment.get(_MOUNTS[address.scheme])
        if given:
            return RepositoryCache(Path(given), address.text, self._options.repository_cache_bytes or None)
        folder = TemporaryFolder("repository")
        if self._options.confinement.account is not None:
            folder.share()
        return RepositoryCache(folder.path, address.text, 0, keep=folder)
