"""Dataclasses as plain values, and back: how plans are written to files."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def plain(value: Any) -> Any:
    """Plain values; of a dataclass, the fields that do not have their default."""
    if is_dataclass(value) and not isinstance(value, type):
        given = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
        return {name: plain(each) for name, (each, default) in given.items() if each != default}
    if isinstance(value, enum.Enum):
        return value.value
    return [plain(each) for each in value] if isinstance(value, tuple) else value


def read_plain(kind: Any, value: Any) -> Any:
    """What `plain` made plain, as this kind of value.

    Raises:
        TypeError, ValueError: it is none.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise TypeError(f"expected a {kind.__name__}, not {value!r}")
        hints = get_type_hints(kind)
        unknown = sorted(set(value) - set(hints))
        if unknown:
            raise TypeError(f"{kind.__name__} has no {', '.join(unknown)}")
        return kind(**{name: read_plain(hints[name], each) for name, each in value.items()})
    if get_origin(kind) is tuple:
        return tuple(read_plain(get_args(kind)[0], each) for each in value)
    if get_origin(kind) in (Union, UnionType):
        kinds = get_args(kind)
        if type(None) in kinds:
            return read_plain(kinds[0], value)
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    else:
        kinds = (int, float) if kind is float else (kind,)
    if type(value) not in kinds:
        raise TypeError(f"expected {' or '.join(each.__name__ for each in kinds)}, not {value!r}")
    return value
