"""Reading TOML, or tables of JSON, strictly: errors say where something is unknown, of the wrong type or missing.

`tomllib` does not tell lines of what it has read well, so they are looked for in the text (`key_lines`); what stands
within a value over several lines has the line on which the value begins.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

from .errors import InvalidArgumentError

T = TypeVar("T")
KeyPath = tuple[str | int, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_PARTS = rf"({_PART}(?:\s*\.\s*{_PART})*)"
_HEADER = re.compile(rf"\s*(\[\[?)\s*{_PARTS}\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(rf"\s*{_PARTS}\s*=")


class FaultyEntryError(Exception):
    """An entry is not as it should be.

    Attributes:
        path: of the entry: keys, and positions in lists.
        text: what was found and what is expected.
    """

    def __init__(self, path: KeyPath, text: str) -> None:
        super().__init__(f"{_shown_path(path)}{text}")
        self.path = path
        self.text = text


def read_strictly(text: str, name: str, read: Callable[[FileTable], T]) -> T:
    """What `read` makes of the file of that name.

    Raises:
        InvalidArgumentError: it is not TOML, or something in it is not as it should be.
    """
    try:
        return read_values(tomllib.loads(text), read)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgumentError(f"{name}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise InvalidArgumentError(f"{name}: nested too deeply") from error
    except ValueError as error:  # what Python does not make a number of
        raise InvalidArgumentError(f"{name}: {error}") from error
    except FaultyEntryError as error:
        raise placed_fault(text, name, error) from error


def placed_fault(text: str, name: str, error: FaultyEntryError) -> InvalidArgumentError:
    """What is wrong with an entry, with the line on which it begins in the file of that name."""
    lines = key_lines(text)
    line = next((lines[part] for part in _prefixes(error.path) if part in lines), None)
    where = name if line is None else f"{name}:{line}"
    return InvalidArgumentError(f"{where}: {error}")


def read_values(values: dict[str, Any], read: Callable[[FileTable], T]) -> T:
    """What `read` makes of a table that was read already, of TOML or JSON.

    Raises:
        FaultyEntryError: something in it is not as it should be.
    """
    root = FileTable(values, ())
    result = read(root)
    root.finish()
    return result


class FileTable:
    """A table of the file. What was neither asked for by the end (`finish`) nor expected (`expect`) is unknown."""

    def __init__(self, values: dict[str, Any], path: KeyPath) -> None:
        self._values = values
        self.path = path
        self._asked: set[str] = set()
        self._inner: list[FileTable] = []

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def fault(self, key: str | None, found: str, expected: str) -> FaultyEntryError:
        """The error that an entry, or without a key the table itself, is not as it should be."""
        path = self.path if key is None else (*self.path, key)
        return FaultyEntryError(path, f"found {found}, expected {expected}")

    def expect(self, *keys: str) -> None:
        """Refuse all other keys at once: a misspelt one is named before what is missing for it."""
        self._asked.update(keys)
        self._refuse_unknown()

    def get(self, key: str, kind: type[T] | tuple[type[T], ...], expected: str) -> T | None:
        """A value of the given type; None if it is not there."""
        self._asked.add(key)
        value = self._values.get(key)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and bool not in kinds)):
            raise self.fault(key, shown_value(value), expected)
        return value

    def need(self, key: str, kind: type[T] | tuple[type[T], ...], expected: str) -> T:
        """The same, for what has to be there."""
        value = self.get(key, kind, expected)
        if value is None:
            raise self.fault(None, f"no {key}", f"{key} = {expected}")
        return value

    def number(self, key: str, *, least: float = 0.0, whole: bool = False) -> float | None:
        """A number greater than `least`; or None."""
        kinds: tuple[type, ...] = (int,) if whole else (int, float)
        expected = f"a {'whole ' if whole else ''}number greater than {least:g}"
        value = self.get(key, kinds, expected)
        if value is not None and not least < value <= 1e15:
            raise self.fault(key, shown_value(value), f"{expected}, up to 1e15")
        return value

    def texts(self, key: str, fault_of: Callable[[str], str | None], expected: str) -> tuple[str, ...]:
        """A list of texts, with nothing wrong about any of them; empty if it is not there."""
        found = self.get(key, list, expected) or []
        for position, text in enumerate(found):
            reason = "it is no text" if not isinstance(text, str) else fault_of(text)
            if reason is not None:
                raise FaultyEntryError(
                    (*self.path, key, position), f"found {shown_value(text)} ({reason}), expected {expected}"
                )
        return tuple(found)

    def table(self, key: str, expected: str) -> FileTable | None:
        """A table within this one; None if it is not there."""
        values = self.get(key, dict, expected)
        return None if values is None else self._enter(values, (*self.path, key))

    def tables(self, key: str, expected: str) -> Iterator[FileTable]:
        """Those of a list of tables."""
        for position, values in enumerate(self.get(key, list, expected) or []):
            path = (*self.path, key, position)
            if not isinstance(values, dict):
                raise FaultyEntryError(path, f"found {shown_value(values)}, expected {expected}")
            yield self._enter(values, path)

    @property
    def keys(self) -> Collection[str]:
        return self._values.keys()

    def finish(self) -> None:
        """Refuse what was not asked for, here and in the tables within."""
        self._refuse_unknown()
        for inner in self._inner:
            inner.finish()

    def _refuse_unknown(self) -> None:
        import difflib  # only for what is refused

        for key in self._values:
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                expected = f"one of {', '.join(sorted(self._asked))}{hint}"
                raise FaultyEntryError((*self.path, key), f"found an unknown key, expected {expected}")

    def _enter(self, values: dict[str, Any], path: KeyPath) -> FileTable:
        section = FileTable(values, path)
        self._inner.append(section)
        return section


def shown_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def key_lines(text: str) -> dict[KeyPath, int]:
    """On which line each table and key of a TOML text begins, as far as one can tell without reading values."""
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}  # of tables in each list so far
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if found := _HEADER.match(line):
            table = ()
            *outer, last = _key_parts(found[2])
            for part in outer:
                table = _in_list((*table, part), counts)
                lines.setdefault(table, number)
            table = (*table, last)
            if found[1] == "[[":
                counts[table] = counts.get(table, 0) + 1
                table = _in_list(table, counts)
            lines.setdefault(table, number)
        elif found := _KEY.match(line):
            path = table
            for part in _key_parts(found[1]):
                path = (*path, part)
                lines.setdefault(path, number)
    return lines


def _in_list(path: KeyPath, counts: dict[KeyPath, int]) -> KeyPath:
    """The last table of the list, if that is one."""
    return (*path, counts[path] - 1) if path in counts else path


def _key_parts(text: str) -> list[str]:
    return [part.strip("\"'") for part in re.findall(_PART, text)]


def _prefixes(path: KeyPath) -> Iterable[KeyPath]:
    return (path[:length] for length in range(len(path), 0, -1))


def _shown_path(path: KeyPath) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{text.removeprefix('.')}: " if text else ""
