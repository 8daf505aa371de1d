"""Models in an object store in memory, and the repository that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore

from trireme.engine.clock import SystemClock
from trireme.engine.repository.cloud.addresses import parse_address
from trireme.engine.repository.cloud.cache import RepositoryCache
from trireme.engine.repository.cloud.repository import CloudRepository
from trireme.engine.repository.cloud.store import RemoteStore

ADDRESS = parse_address("s3://bucket/models")


class Told:
    """A store that notes what it is asked for, and has things happen before it answers.

    Attributes:
        asked: `list` for a listing, else an object's path and a range.
        before: called with what is about to be asked.
        refusal: raised in place of all answers.
        knows_conditions: it gives an object only as long as that has the entity tag which is asked for.
    """

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.asked: list[str | tuple[str, int, int]] = []
        self.before: Callable[[str | tuple[str, int, int]], None] = lambda _asked: None
        self.refusal: Exception | None = None
        self.knows_conditions = True

    def put(self, files: Mapping[str, bytes]) -> None:
        """Objects, by their paths below the repository."""
        for path, data in files.items():
            self.store.put(f"models/{path}", data)

    def drop(self, *paths: str) -> None:
        self.store.delete([f"models/{path}" for path in paths])

    @property
    def read(self) -> list[str]:
        """Paths of objects that were read, once each, in order."""
        return list(dict.fromkeys(each[0] for each in self.asked if isinstance(each, tuple)))

    # What the library's stores have.

    def list(self, prefix: str | None, *, chunk_size: int) -> Any:
        self._note("list")
        return self.store.list(prefix, chunk_size=chunk_size)

    def get(self, name: str, *, options: Any) -> Any:
        self._note((name.removeprefix("models/"), *options["range"]))
        if not self.knows_conditions:
            options = {"range": options["range"]}
        return self.store.get(name, options=options)

    def _note(self, asked: str | tuple[str, int, int]) -> None:
        self.asked.append(asked)
        self.before(asked)
        if self.refusal is not None:
            raise self.refusal


def repository(told: Told, cache: Path, *, limit_bytes: int | None = None) -> CloudRepository:
    """A server's view of the store, with a cache in a directory."""
    return CloudRepository(
        ADDRESS,
        lambda: RemoteStore(ADDRESS, told),
        lambda: RepositoryCache(cache, ADDRESS.text, limit_bytes),
        SystemClock(),
    )
