"""Classes by name: Trireme's own, and those that installed packages offer as entry points.

Backends, caches and repository agents are found this way. A class is imported when it is first asked for, and
so is what reads the entry points: it has to look at every installed package. What the import of a class raises is
the installed package's fault, whatever it is, and becomes an error that names the place.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


def import_package(package: str, user: str, extra: str) -> Any:
    """A package that comes with an extra of Trireme: imported when something needs it, never before.

    Args:
        user: what needs it, and the verb, for the error.

    Raises:
        UnavailableError: it is not installed, or broken.
    """
    try:
        return importlib.import_module(package)
    except (ImportError, OSError) as error:
        raise UnavailableError(
            f"{user} the package {package}: pip install trireme-server[{extra}] ({error})"
        ) from error


def entry_points(group: str, name: str | None = None) -> Iterable[EntryPoint]:
    """Those that installed packages offer; of any name, if None."""
    from importlib import metadata

    return metadata.entry_points(group=group) if name is None else metadata.entry_points(group=group, name=name)


class Plugins(Generic[T]):
    """The classes of one kind. Callable from any thread.

    Args:
        own: by name, the class or where it is (``module:Class``); these need no entry point, and come first.
    """

    def __init__(self, group: str, kind: str, base: type[T], own: Mapping[str, type[T] | str]) -> None:
        self._group = group
        self._kind = kind
        self._base = base
        self._own = dict(own)

    def get(self, name: str, missing: str) -> type[T]:
        """The class of that name.

        Raises:
            InvalidArgumentError: there is none; the text is `missing`.
            UnavailableError: it is installed, but cannot be imported.
        """
        found = self.find(name)
        if found is None:
            raise InvalidArgumentError(missing)
        return found

    def find(self, name: str) -> type[T] | None:
        """The same, and None if there is none."""
        own = self._own.get(name)
        if isinstance(own, str):
            return self._import(name, own, lambda: _imported(own))
        if own is not None:
            return own
        for point in entry_points(group=self._group, name=name):
            return self._import(name, point.value, point.load)
        return None

    def __contains__(self, name: str) -> bool:
        return name in self._own or bool(entry_points(group=self._group, name=name))

    def place(self, name: str) -> str:
        """Where the class of that name is (``module:Class``); empty if it is not known, or was given as a class."""
        own = self._own.get(name)
        if own is not None:
            return own if isinstance(own, str) else ""
        return next((point.value for point in entry_points(group=self._group, name=name)), "")

    def _import(self, name: str, place: str, load: Callable[[], Any]) -> type[T]:
        try:
            found = load()
        except Exception as error:
            raise UnavailableError(f"{self._kind} '{name}' cannot be imported from '{place}': {error}") from error
        if not (isinstance(found, type) and issubclass(found, self._base)):
            raise UnavailableError(
                f"{self._kind} '{name}': '{place}' is not a subclass of the interface's {self._base.__name__}"
            )
        return found


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
