"""What an object store lists, as models (docs/reference/model-control.md#layout).

Rules:
 1. Names of objects are paths: the first part, below the repository, is a model, and what is left of it a file in the
    model's directory. An object beside the models is none.
 2. Object stores have no directories, but tools make empty objects to stand for them. Such an object is one whose name
    others continue; or an empty one whose name is that of a version, directly below the model. What is not empty and
    has others below it cannot be a file, and its model cannot be loaded.
 3. A model with an object whose name cannot be a file's cannot be loaded either.
 4. An object is what it was as long as its name, its size and its entity tag are the same; in a store without entity
    tags, the time when it was modified.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

_MAX_NAME_BYTES = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object of a model.

    Attributes:
        path: below the model's directory, with slashes.
        name: in the store, the whole one.
        size: in bytes.
        tag: rule 4; without quotes.
        has_tag: `tag` is an entity tag.
        modified_ns: since the Unix epoch.
    """

    path: str
    name: str
    size: int
    tag: str
    has_tag: bool
    modified_ns: int

    @property
    def key(self) -> str:
        """Names its contents among all those of the repository (rule 4): 32 hexadecimal digits."""
        text = "\0".join((self.name, str(self.size), self.tag))
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]

    @property
    def in_config(self) -> bool:
        """Whether it is a configuration: a change of it alone may be made in place."""
        return self.path == "config.pbtxt" or (self.path.startswith("configs/") and self.path.count("/") == 1)


@dataclass(frozen=True)
class RemoteModel:
    """What a store has of a model.

    Attributes:
        objects: its files by path.
        directories: paths of those that are there without a file.
        problem: why it cannot be a directory; empty if it can.
    """

    objects: tuple[RemoteObject, ...]
    directories: tuple[str, ...] = ()
    problem: str = ""

    @cached_property
    def versions(self) -> Mapping[str, int]:
        """Its versions, by the names of their directories (docs/reference/model-control.md#versions)."""
        tops = {path.partition("/")[0] for path in (each.path for each in self.objects) if "/" in path}
        tops.update(path.partition("/")[0] for path in self.directories)
        return {name: int(name) for name in tops if _is_number(name) and str(int(name)) == name}

    def of_versions(self, versions: Iterable[int] | None) -> tuple[RemoteObject, ...]:
        """The files that are needed to serve these versions: theirs, and those of no version.

        Args:
            versions: None for all.
        """
        if versions is None:
            return self.objects
        wanted = set(versions)
        left_out = {name for name, version in self.versions.items() if version not in wanted}
        return tuple(each for each in self.objects if each.path.partition("/")[0] not in left_out)


def group_models(objects: Sequence[RemoteObject]) -> dict[str, RemoteModel]:
    """The models of a repository (rule 1).

    Args:
        objects: with paths below the repository.
    """
    found: dict[str, list[RemoteObject]] = {}
    for each in objects:
        model, slash, path = each.path.partition("/")
        if slash and model:
            own = RemoteObject(path, each.name, each.size, each.tag, each.has_tag, each.modified_ns)
            found.setdefault(model, []).append(own)
    return {model: _model(model, found[model]) for model in sorted(found)}


def _model(name: str, objects: Sequence[RemoteObject]) -> RemoteModel:
    parents = {parent for each in objects for parent in _parents(each.path)}
    files: list[RemoteObject] = []
    directories: set[str] = set()
    problem = _odd_name(name)
    for each in objects:
        path = each.path.rstrip("/")
        empty = each.size == 0
        if empty and (not path or path != each.path or path in parents or _is_number(path)):
            directories.add(path)
            problem = problem or (_odd_name(path) if path else "")
        elif path in parents:
            problem = problem or f"the object '{each.name}' is not empty, and others have names below it"
        else:
            files.append(each)
            problem = problem or _odd_name(each.path)
    directories = {path for path in directories if path and path not in parents}
    files.sort(key=lambda each: each.path)
    return RemoteModel(tuple(files), tuple(sorted(directories)), problem)


def _parents(path: str) -> list[str]:
    parts = path.rstrip("/").split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _odd_name(path: str) -> str:
    for part in path.split("/"):
        if part in ("", ".", "..") or _CONTROL.search(part) or len(part.encode(errors="replace")) > _MAX_NAME_BYTES:
            return f"the name {path!r} of an object cannot be that of a file"
    return ""
