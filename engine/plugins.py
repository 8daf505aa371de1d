"""Classes by name: Trireme's own, and those that installed packages offer as entry points.

Backends, caches and repository agents are found this way. An entry point is imported when it is first asked for. What
its import raises is the installed package's fault, whatever it is, and becomes an error that names the place.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from .errors import InvalidArgumentError, UnavailableError

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
        raise UnavailableError(f"{user} the package {package}: pip install trireme[{extra}] ({error})") from error


class Plugins(Generic[T]):
    """The classes of one kind. Callable from any thread.

    Args:
        own: by name; these need no entry point, and come first.
    """

    def __init__(self, group: str, kind: str, base: type[T], own: Mapping[str, type[T]]) -> None:
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
        if name in self._own:
            return self._own[name]
        return next(map(self._import, entry_points(group=self._group, name=name)), None)

    def __contains__(self, name: str) -> bool:
        return name in self._own or bool(entry_points(group=self._group, name=name))

    def places(self) -> dict[str, str]:
        """Where the installed ones are (``module:Class``), by name."""
        return {entry_point.name: entry_point.value for entry_point in entry_points(group=self._group)}

    def _import(self, entry_point: EntryPoint) -> type[T]:
        try:
            found = entry_point.load()
        except Exception as error:
            raise UnavailableError(
                f"{self._kind} '{entry_point.name}' cannot be imported from '{entry_point.value}': {error}"
            ) from error
        if not (isinstance(found, type) and issubclass(found, self._base)):
            raise UnavailableError(
                f"{self._kind} '{entry_point.name}': '{entry_point.value}' is not a subclass of the interface's "
                f"{self._base.__name__}"
            )
        return found
